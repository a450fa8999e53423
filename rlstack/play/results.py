"""Shows the results of games: records and ratings of all players, on the terminal, in CSV files and as pictures."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import write_json, write_text
from rlstack.evaluation.figures import print_rows, saved_figure
from rlstack.runs.manifest import seal, unseal
from rlstack.training.environment import utc_now

from .games import GameResult, WinLossRecord, in_turns, pairing, pairs
from .league import League
from .matches import BestGames, GameRunner
from .ratings import Elo, Ratings, fit_elo

_COUNTS = ("games", "wins", "draws", "losses")


def print_results(rows: Sequence[Mapping[str, Any]], who: str) -> None:
    """Prints records of players, one row each; ``success`` is the share of wins among decided games.

    Args:
        who: column with the names.
    """
    shown = []
    ratings = [key for key in ("rating", "deviation", "fitted_elo") if any(row.get(key) is not None for row in rows)]
    for row in rows:
        line: dict[str, Any] = {key: row[key] for key in ("rank", who) if key in row}
        line |= {key: row[key] for key in ratings}  # a member without games has no fitted rating
        line |= {key: row[key] for key in _COUNTS}
        line |= {f"success{end}": row[f"decided_win_rate{end}"] for end in ("", "_low", "_high")}
        goals = {key: f"{row[key]:g}" for key in ("goals_for", "goals_against") if who == "opponent"}
        shown.append(line | goals | {"goal_diff": f"{row['goal_diff']:+g}"})
    print_rows(shown, sys.stdout)
    print()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows with equal keys atomically; missing numbers stay empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0] if rows else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def save_curves(path: Path, curves: Mapping[str, Sequence[float]], anchors: Mapping[str, float]) -> None:
    """Draws ratings over games, one line per player, and anchors as dashed lines.

    Args:
        path: path of the picture; its suffix sets the format.
        curves: ratings after each of a player's games, by name.
        anchors: fixed ratings by name.
    """
    with saved_figure(path, "Ratings over games") as (axes,):
        for name, values in curves.items():
            if name not in anchors:
                axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.2)
        for name, value in anchors.items():
            axes.axhline(value, color="gray", linestyle="--", linewidth=0.8)
            axes.annotate(name, (1.0, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="gray")
        axes.set(xlabel="games of the player", ylabel="rating")


# -- one against several -------------------------------------------------------------------------------------------


def challenge(
    runner: GameRunner,
    name: str,
    opponents: Sequence[str],
    games: int,
    seed: int,
    ratings: Ratings,
    folder: Path,
    timestep: int = 0,
    best: BestGames | None = None,
    plots: bool = True,
    **facts: Any,
) -> list[Path]:
    """Plays games against each opponent, with sides swapped in every other game; prints and writes the results.

    Args:
        runner: runner that has all players by name.
        ratings: ratings before the games, which are then updated.
        folder: folder for ``results.json`` (:func:`challenge_report`, ``fitted_elo``, the rating that makes all results
            most likely, and ``facts``), ``summary.csv``, ``game_by_game.csv`` and, with ``plots``, ``elo.png``.
        timestep: frames of the player's training.
        best: recorder that keeps the best games.

    Returns the paths of the files.

    Raises:
        ConfigError: there are no opponents, or two have the same name.
    """
    schedule = in_turns([pairing(*pair, games) for pair in pairs([name, *opponents], "challenger")])
    played = runner.play(schedule, seed, best)
    fitted = fit_elo([game.scored for game in played], ratings.anchors, ratings.beginner.rating)[name]
    report = challenge_report(name, played, ratings, timestep)
    unseal(folder)
    write_json(folder / "results.json", {**report, "fitted_elo": fitted, **facts, "seed": seed}, nan=False)
    write_csv(folder / "summary.csv", report["opponents"])
    write_csv(folder / "game_by_game.csv", report["game_by_game"])
    written = ["results.json", "summary.csv", "game_by_game.csv"]
    if plots:
        written.append("elo.png")
        anchors = {met: rating for met, rating in ratings.anchors.items() if met in opponents}
        save_curves(folder / written[-1], {name: [row["elo"] for row in report["elo_history"]]}, anchors)
    seal(folder, written)
    print_results(report["opponents"], "opponent")
    first = f"{report['final_elo']:.0f} ({ratings.kind}, began at {report['initial_elo']:.0f})"
    print(f"rating of {name}: {first}; fitted to all games at once: {fitted:.0f} (Elo)")
    return [folder / file for file in written]


def challenge_report(name: str, games: Sequence[GameResult], ratings: Ratings, timestep: int = 0) -> dict[str, Any]:
    """Summarises one player's games and updates the ratings with them, in order.

    Args:
        name: the player, who took part in all games.
        ratings: ratings before the games; the call updates them.
        timestep: frames of the player's training.

    Returns JSON: ``player``, ``total_games``, ``wins``, ``losses``, ``draws``, rates with intervals; ``opponents``, one
    row of ``summary.csv`` each, whose ``elo_change`` is with Glicko-2 that of the whole period; ``elo_history`` with
    ``game``, ``opponent``, ``elo``; ``elo_ratings``, ``final_elo``, ``game_by_game``.
    """
    start = ratings.rating(name)
    rows = rated([game.seen_by(name) for game in games], ratings)
    end, now = ratings.rating(name), utc_now()
    opponents = []
    for opponent in dict.fromkeys(row["opponent"] for row in rows):
        theirs = [row for row in rows if row["opponent"] == opponent]
        change = sum(row["elo_change"] for row in theirs) if ratings.kind == "elo" else end - start
        rating = {"elo_before": theirs[0]["elo_before"], "elo_after": theirs[-1]["elo_after"], "elo_change": change}
        record = WinLossRecord.of(name, games, opponent).as_row()
        opponents.append({"timestamp": now, "timestep": timestep, "opponent": opponent, **record, **rating})
    whole = WinLossRecord.of(name, games).as_row()
    return {
        "player": name,
        "total_games": whole.pop("games"),
        **whole,
        "opponents": opponents,
        "elo_history": [{"game": row["game"], "opponent": row["opponent"], "elo": row["elo_after"]} for row in rows],
        "elo_ratings": {each: ratings.rating(each) for each in ratings.ranking()},
        "initial_elo": start,
        "final_elo": end,
        "game_by_game": rows,
    }


def rated(games: Sequence[GameResult], ratings: Ratings) -> list[dict[str, Any]]:
    """Updates ratings game by game (with Glicko-2 as one period) and describes each game.

    Returns one row per game with the numbers of the player on the first side: ``game`` (from 1), ``player``,
    ``opponent``, ``player_score`` and ``opponent_score`` (points), ``goal_diff``, ``result`` (1, 0.5, 0),
    ``expected_score``, ``elo_before``, ``elo_after``, ``elo_change`` (None for one of several games of a period),
    ``steps``.
    """
    rows: list[dict[str, Any]] = []
    for period in [[game] for game in games] if ratings.kind == "elo" else [games]:
        before = [(ratings.rating(game.first), ratings.expected(game.first, game.second)) for game in period]
        ratings.record([game.scored for game in period])
        for game, (old, expected) in zip(period, before):
            new = ratings.rating(game.first)
            row: dict[str, Any] = {"game": len(rows) + 1, "player": game.first, "opponent": game.second}
            row |= {"player_score": game.points_first, "opponent_score": game.points_second}
            row |= {"goal_diff": game.points_first - game.points_second, "result": game.score}
            row |= {"expected_score": expected, "elo_before": old, "elo_after": new}
            rows.append(row | {"elo_change": new - old if len(period) == 1 else None, "steps": game.steps})
    return rows


# -- leagues -------------------------------------------------------------------------------------------------------


def standings(league: League) -> list[dict[str, Any]]:
    """Returns one row per member, best first.

    A row has ``rank``, ``player``, ``kind``, ``commander`` (the commander's name), ``rating``, ``deviation`` (None with
    Elo), ``conservative`` rating, and the record, see :meth:`WinLossRecord.as_row`.
    """
    rows, ratings = [], league.ratings
    for place, name in enumerate([name for name in ratings.ranking() if name in league.members], start=1):
        member = league.members[name]
        row = {"rank": place, "player": name, "kind": member.kind, "commander": member.commander_name}
        row |= {"rating": ratings.rating(name), "deviation": ratings.deviation(name)}
        row["conservative"] = ratings.conservative(name)
        rows.append(row | WinLossRecord.of(name, league.games).as_row())
    return rows


def cross_table(games: Sequence[GameResult], names: Sequence[str]) -> list[dict[str, str]]:
    """Returns one row per player: ``player``, wins-draws-losses against each (``-`` against itself), ``total``."""
    rows = []
    for name in names:
        cells = {other: "-" if other == name else str(WinLossRecord.of(name, games, other)) for other in names}
        rows.append({"player": name, **cells, "total": str(WinLossRecord.of(name, games))})
    return rows


def rating_curves(league: League) -> dict[str, list[float]]:
    """Returns the Elo rating of every player of a league after each of its games, by name."""
    known = league.ratings
    start = {"anchors": known.anchors, "start": known.beginner.rating}
    ratings = Elo(**(asdict(known.options) if isinstance(known, Elo) else start))
    curves: dict[str, list[float]] = {}
    for game in league.games:
        ratings.record([game.scored])
        for name in game[:2]:
            curves.setdefault(name, []).append(ratings.rating(name))
    return curves


def show_ranking(league: League, plots: bool) -> None:
    """Prints ranking and cross table, and writes them beside the league with a picture of ratings over games.

    An Elo league is ranked by the ratings that fit all its games, since ratings updated game by game stay near that
    of a beginner for long.

    Raises:
        ConfigError: the league has no players.
    """
    if not league.members:
        raise ConfigError(f"players: the league in {league.folder} has none")
    anchors = league.ratings.anchors
    fitted = fit_elo([game.scored for game in league.games], anchors, league.ratings.beginner.rating)
    rows = [row | {"fitted_elo": fitted.get(row["player"])} for row in standings(league)]
    if isinstance(league.ratings, Elo):
        rows.sort(key=lambda row: -fitted.get(row["player"], -math.inf))
        rows = [row | {"rank": place} for place, row in enumerate(rows, start=1)]
    cross = cross_table(league.games, [row["player"] for row in rows])
    print_results(rows, "player")
    print_rows(cross, sys.stdout)
    print()
    write_csv(league.folder / "ranking.csv", rows)
    write_csv(league.folder / "cross_table.csv", cross)
    if plots and league.games:
        curves = rating_curves(league)
        save_curves(league.folder / "elo.png", curves, {name: anchors[name] for name in anchors.keys() & curves.keys()})
    print(f"{len(league.games)} games in {league.rounds} round{'s' * (league.rounds != 1)}, in {league.folder}")


def show_members(league: League) -> None:
    """Prints the members of a league."""
    rows = standings(league)
    keys = ("rank", "player", "kind", "commander", "rating", "deviation", "conservative", "games")
    if rows:
        print_rows([{key: row[key] for key in keys} for row in rows], sys.stdout)
    counted = {kind: sum(row["kind"] == kind for row in rows) for kind in ("commander", "candidate", "player")}
    counts = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counted.items())
    print(f"{counts}; {len(league.games)} games, {league.ratings.kind}, in {league.folder}")
