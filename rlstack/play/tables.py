"""Results of games on the terminal and in files: CSV, and pictures of ratings over games."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.whole_files import replacing, write_text
from rlstack.config import ConfigError
from rlstack.evaluation.table import print_rows

from .games import cross_table, rating_curves, standings
from .league import League
from .ratings import Elo, fit_elo, rating_system

_COUNTS = ("games", "wins", "draws", "losses")
_RATES = {
    "decided_win_rate": "success",
    "decided_win_rate_low": "success_low",
    "decided_win_rate_high": "success_high",
}


def print_results(rows: Sequence[Mapping[str, Any]], who: str) -> None:
    """Prints records of players, a row each: ``success`` is the share of the decided games that were won.

    Args:
        who: the column of the names.
    """
    shown = []
    for row in rows:
        line: dict[str, Any] = {key: row[key] for key in ("rank", who) if key in row}
        ratings = {key: row.get(key) for key in ("rating", "deviation", "fitted_elo")}
        line |= {key: f"{value:.0f}" for key, value in ratings.items() if value is not None}
        line |= {key: row[key] for key in _COUNTS}
        line |= {new: row[old] for old, new in _RATES.items()}
        goals = {key: f"{row[key]:g}" for key in ("goals_for", "goals_against") if who == "opponent"}
        shown.append(line | goals | {"goal_diff": f"{row['goal_diff']:+g}"})
    print_rows(shown, sys.stdout)
    print()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Writes rows of the same keys, wholly or not at all; missing numbers are left empty."""
    chosen = list(columns or (rows[0] if rows else ()))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, chosen, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def save_curves(path: Path, curves: Mapping[str, Sequence[float]], anchors: Mapping[str, float] | None = None) -> None:
    """Draws ratings over games, a line a player; anchors as dashed lines.

    Args:
        path: of the picture; its ending says of which kind.
        curves: ratings after each of a player's games, by name.
        anchors: fixed ratings by name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        if name not in (anchors or {}):
            axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.2)
    for name, value in (anchors or {}).items():
        axes.axhline(value, color="gray", linestyle="--", linewidth=0.8)
        axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="gray")
    axes.set(xlabel="game", ylabel="rating")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    with replacing(path) as (partial,):
        figure.savefig(partial, dpi=120)


# -- leagues -------------------------------------------------------------------------------------------------------


def show_ranking(league: League, plots: bool) -> None:
    """Prints ranking and cross table, and leaves them beside the league, with a picture of ratings over games.

    Raises:
        ConfigError: the league has no players.
    """
    if not league.members:
        raise ConfigError(f"players: the league in {league.folder} has none")
    anchors = league.ratings.anchors
    fitted = fit_elo([game.scored for game in league.games], anchors)
    rows = [{**row, "fitted_elo": fitted.get(row["player"])} for row in standings(league.games, league.ratings)]
    cross = cross_table(league.games, [row["player"] for row in rows])
    print_results(rows, "player")
    print_rows(cross, sys.stdout)
    print()
    write_csv(league.folder / "ranking.csv", rows)
    write_csv(league.folder / "cross_table.csv", cross)
    if plots and league.games:
        save_curves(league.folder / "elo.png", league_curves(league), anchors)
    print(f"{len(league.games)} games in {league.rounds} rounds, in {league.folder}")


def league_curves(league: League) -> dict[str, list[float]]:
    """Elo of every player of a league after each of its games, by name: pictures show it game by game."""
    ratings, elo = league.ratings, isinstance(league.ratings, Elo)
    parameters = ratings.parameters if elo else {"anchors": ratings.anchors}
    return rating_curves(league.games, rating_system("elo", **parameters))


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
