"""What a league came to, on the terminal and in files."""

from __future__ import annotations

import sys
from typing import Any

from rlstack.config import ConfigError
from rlstack.evaluation.table import print_rows

from .challenge import print_results
from .elo import Elo, fit_elo
from .league import League
from .ratings import Ratings, ratings_from
from .records import cross_table
from .tables import curves_of, save_curves, write_csv
from .tournaments import standings


def show_ranking(league: League, plots: bool) -> None:
    """Prints ranking and cross table, and leaves them beside the league, with a picture of ratings over games.

    Raises:
        ConfigError: the league has no players.
    """
    if not league.members:
        raise ConfigError(f"players: the league in {league.folder} has none")
    anchors = dict(league.ratings.state_dict()["parameters"]["anchors"])
    fitted = fit_elo([game.scored for game in league.games], anchors)
    rows = [{**row, "fitted_elo": fitted.get(row["player"])} for row in standings(league.games, league.ratings)]
    cross = cross_table(league.games, [row["player"] for row in rows])
    print_results(rows, "player")
    print_rows(cross, sys.stdout)
    print()
    write_csv(league.folder / "ranking.csv", rows)
    write_csv(league.folder / "cross_table.csv", cross)
    if plots and league.games:
        save_curves(league.folder / "elo.png", rating_curves(league), anchors)
    print(f"{len(league.games)} games in {league.rounds} rounds, in {league.folder}")


def rating_curves(league: League) -> dict[str, list[float]]:
    """Elo of every player after each of its games, by name."""
    anchors = dict(league.ratings.state_dict()["parameters"]["anchors"])
    return curves_of(league.games, _at_first(league, anchors))


def _at_first(league: League, anchors: dict[str, float]) -> Ratings:
    """Elo before all games: game by game is how pictures show it."""
    if league.ratings.kind != "elo":
        return Elo(anchors=anchors)
    return ratings_from({**league.ratings.state_dict(), "players": {}})


def member_rows(league: League) -> list[dict[str, Any]]:
    """A row a member, best first by conservative rating."""
    ratings = league.ratings
    rows = []
    for place, name in enumerate([name for name in ratings.ranking() if name in league.members], start=1):
        member, deviation = league.members[name], ratings.deviation(name)
        rows.append(
            {
                "rank": place,
                "name": name,
                "kind": member.kind,
                "commander": member.commander_name,
                "rating": f"{ratings.rating(name):.0f}",
                "deviation": None if deviation is None else f"{deviation:.0f}",
                "conservative": f"{ratings.conservative(name):.0f}",
                "games": ratings.games(name),
            }
        )
    return rows


def show_members(league: League) -> None:
    """Prints who is in a league."""
    rows = member_rows(league)
    if rows:
        print_rows(rows, sys.stdout)
    counted = {kind: sum(row["kind"] == kind for row in rows) for kind in ("commander", "candidate", "player")}
    told = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counted.items())
    print(f"{told}; {len(league.games)} games, {league.ratings.kind}, in {league.folder}")
