"""One player against several others: the games, the report, its files and its table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase

from envs.whole_files import write_json
from rlstack.config import ConfigError
from rlstack.runs.worlds import world_options

from .games import GameResult, WinLossRecord, challenger, rated
from .matches import GameRunner
from .players import PolicyPlayer, Source
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
    timestep: int = 0,
    best: BestGames | None = None,
) -> dict[str, Any]:
    """Plays so many games against each opponent, sides swapped in every other one.

    Args:
        runner: where all of them are known by name.
        timestep: frames that the player had trained for.
        best: keeps the best games.

    Returns :func:`challenge_report`, and ``fitted_elo``: the rating that makes all results most likely, opponents
    without an anchor rated beside it.

    Raises:
        ConfigError: no opponents, or two of one name.
    """
    try:
        schedule = challenger(name, opponents, games)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    played = runner.play(schedule, seed, best)
    fitted = fit_elo([game.scored for game in played], runner.sides.anchors)
    return {**challenge_report(name, played, ratings, timestep), "fitted_elo": fitted[name]}


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


def save_report(
    folder: Path, report: Mapping[str, Any], anchors: Mapping[str, float], plots: bool, **more: Any
) -> list[Path]:
    """Writes ``results.json`` (the report and ``more``), ``summary.csv``, ``game_by_game.csv`` and ``elo.png``."""
    write_json(folder / "results.json", {**report, **more}, nan=False)
    write_csv(folder / "summary.csv", report["opponents"], SUMMARY)
    write_csv(folder / "game_by_game.csv", report["game_by_game"])
    written = ["results.json", "summary.csv", "game_by_game.csv"]
    if plots:
        curve = [row["elo"] for row in report["elo_history"]]
        save_curves(folder / "elo.png", {report["player"]: curve}, anchors)
        written.append("elo.png")
    return [folder / name for name in written]


def print_report(report: Mapping[str, Any], kind: str) -> None:
    """Prints the opponents as a table, then the player's rating."""
    print_results(report["opponents"], "opponent")
    first = f"{report['final_elo']:.0f} ({kind}, began at {report['initial_elo']:.0f})"
    print(f"rating of {report['player']}: {first}; of all games at once: {report['fitted_elo']:.0f} (Elo)")


@dataclass(frozen=True)
class Challenge:
    """How an agent is judged by games.

    Attributes:
        env: group of the world, without opponents inside.
        opponents: sources of whom it meets.
        games: against each.
        plots, video: draw its rating; film the best game that it won, in worlds with replays.
    """

    env: dict[str, Any]
    opponents: Sequence[Source]
    games: int
    seed: int
    plots: bool = True
    video: bool = True


def play_challenge(
    config: Challenge,
    policy: TensorDictModuleBase,
    name: str,
    frames: int,
    origin: str,
    folder: Callable[[], Path],
    device: torch.device | str = "cpu",
) -> list[Path]:
    """Plays the games of a policy made for the world, prints the table and writes everything into a folder.

    Args:
        name: of the policy among the players.
        frames: it has trained for.
        origin: where it comes from, for people.
        folder: makes the folder, once everybody is there.

    Returns what was written.

    Raises:
        ConfigError: one line: a world without two sides, or no such opponent.
    """
    runner = GameRunner(config.env["name"], world_options(config.env), device=device)
    others = [runner.add(source) for source in config.opponents]
    player = runner.add(PolicyPlayer(runner.build(1, 0), policy, name))
    best = BestGames(runner.world, 1, player) if config.video and BestGames.can_record(runner.world) else None
    place, ratings = folder(), anchored_ratings(runner)
    report = challenge(runner, player, others, config.games, config.seed, ratings, frames, best)
    facts = {"policy": origin, "env": config.env, "seed": config.seed}
    written = save_report(place, report, runner.sides.anchors, config.plots, **facts)
    print(f"{origin} in {runner.world}, seed {config.seed}, {config.games} games against each")
    print_report(report, ratings.kind)
    return written + (best.save(place) if best is not None else [])
