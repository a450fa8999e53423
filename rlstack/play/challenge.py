"""One player against several others: the games, the report, its files and its table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.whole_files import write_json
from rlstack.config import ConfigError

from .games import GameResult, WinLossRecord, challenger, rated
from .matches import GameRunner
from .ratings import Ratings, fit_elo, rating_system
from .replays import BestGames
from .tables import print_results, save_curves, write_csv

SUMMARY = (
    *("timestamp", "timestep", "opponent", "games", "wins", "draws", "losses", "win_rate", "win_rate_low"),
    *("win_rate_high", "decided_win_rate", "decided_win_rate_low", "decided_win_rate_high", "score", "goals_for"),
    *("goals_against", "goal_diff", "elo_before", "elo_after", "elo_change"),
)
"""Columns of ``summary.csv``; the published ones are among them."""


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
    """Plays so many games against each opponent, sides swapped in every other one; prints and writes the results.

    Args:
        runner: where all of them are known by name.
        ratings: before the games, which they take in.
        folder: of ``results.json`` (:func:`challenge_report`, ``fitted_elo``, the rating that makes all results most
            likely, and ``facts``), ``summary.csv``, ``game_by_game.csv`` and, with ``plots``, ``elo.png``.
        timestep: frames that the player had trained for.
        best: keeps the best games.

    Returns what was written.

    Raises:
        ConfigError: no opponents, or two of one name.
    """
    try:
        schedule = challenger(name, opponents, games)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    played = runner.play(schedule, seed, best)
    fitted = fit_elo([game.scored for game in played], runner.sides.anchors)[name]
    report = challenge_report(name, played, ratings, timestep)
    write_json(folder / "results.json", {**report, "fitted_elo": fitted, **facts, "seed": seed}, nan=False)
    write_csv(folder / "summary.csv", report["opponents"], SUMMARY)
    write_csv(folder / "game_by_game.csv", report["game_by_game"])
    written = ["results.json", "summary.csv", "game_by_game.csv"]
    if plots:
        curve = [row["elo"] for row in report["elo_history"]]
        save_curves(folder / "elo.png", {name: curve}, runner.sides.anchors)
        written.append("elo.png")
    print_results(report["opponents"], "opponent")
    first = f"{report['final_elo']:.0f} ({ratings.kind}, began at {report['initial_elo']:.0f})"
    print(f"rating of {name}: {first}; of all games at once: {fitted:.0f} (Elo)")
    return [folder / file for file in written]


def challenge_report(name: str, games: Sequence[GameResult], ratings: Ratings, timestep: int = 0) -> dict[str, Any]:
    """Sums up one player's games; ratings take them in, in their order.

    Args:
        name: of the player, who took part in all games.
        ratings: before the games; after the call they are those after them.
        timestep: frames that the player had trained for.

    Returns JSON: ``player``, ``total_games``, ``wins``, ``losses``, ``draws``, rates with intervals; ``opponents``, a
    row of :data:`SUMMARY` each; ``elo_history`` with ``game``, ``opponent``, ``elo``; ``elo_ratings``, ``final_elo``,
    ``game_by_game``.
    """
    start = ratings.rating(name)
    rows = rated([game.seen_by(name) for game in games], ratings)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    opponents = []
    for opponent in dict.fromkeys(row["opponent"] for row in rows):
        theirs = [row for row in rows if row["opponent"] == opponent]
        opponents.append(
            {
                "timestamp": now,
                "timestep": timestep,
                "opponent": opponent,
                **WinLossRecord.of(name, games, opponent).as_row(),
                "elo_before": theirs[0]["elo_before"],
                "elo_after": theirs[-1]["elo_after"],
                "elo_change": sum(row["elo_change"] for row in theirs),
            }
        )
    whole = WinLossRecord.of(name, games).as_row()
    return {
        "player": name,
        "total_games": whole.pop("games"),
        **whole,
        "opponents": opponents,
        "elo_history": [{"game": row["game"], "opponent": row["opponent"], "elo": row["elo_after"]} for row in rows],
        "elo_ratings": {each: ratings.rating(each) for each in ratings.names()},
        "initial_elo": start,
        "final_elo": ratings.rating(name),
        "game_by_game": rows,
    }


def anchored_ratings(runner: GameRunner, system: str = "elo", options: Mapping[str, Any] | None = None) -> Ratings:
    """An empty rating system in which the world's own players have the ratings that they have.

    Raises:
        ConfigError: no such system or option.
    """
    return rating_system(system, **{"anchors": dict(runner.sides.anchors), **(options or {})})
