"""One player against several others: the games, the report, its files and its table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from tensordict.nn import TensorDictModuleBase

from envs.whole_files import write_json
from rlstack.config import ConfigError
from rlstack.evaluation.table import print_rows
from rlstack.runs.worlds import world_options

from .elo import fit_elo
from .matches import Arena
from .players import PolicyPlayer, Source
from .ratings import Ratings, rating_system
from .replays import BestGames
from .tables import SUMMARY, challenge_report, save_curves, write_csv
from .tournaments import challenger

_COUNTS = ("games", "wins", "draws", "losses")
_RATES = {
    "decided_win_rate": "success",
    "decided_win_rate_low": "success_low",
    "decided_win_rate_high": "success_high",
}


def challenge(
    arena: Arena,
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
        arena: where all of them are known by name.
        timestep: frames that the player had trained for.
        best: keeps the best games.

    Returns :func:`~rlstack.play.tables.challenge_report`, and ``fitted_elo``: the rating that makes all results most
    likely, opponents without an anchor rated beside it.

    Raises:
        ConfigError: no opponents, or two of one name.
    """
    try:
        schedule = challenger(name, opponents, games)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    played = arena.play(schedule, seed, best)
    fitted = fit_elo([game.scored for game in played], dict(arena.sides.anchors))
    return {**challenge_report(name, played, ratings, timestep), "fitted_elo": fitted[name]}


@dataclass(frozen=True)
class Trial:
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


def hold(
    trial: Trial,
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
    arena = Arena(trial.env["name"], world_options(trial.env), device=device)
    others = [arena.add(source) for source in trial.opponents]
    player = arena.add(PolicyPlayer(arena.build(1, 0), policy, name))
    best = BestGames(arena.world, 1, player) if trial.video and BestGames.can_record(arena.world) else None
    place, ratings = folder(), anchored_ratings(arena)
    report = challenge(arena, player, others, trial.games, trial.seed, ratings, frames, best)
    facts = {"policy": origin, "env": trial.env, "seed": trial.seed}
    written = save_report(place, report, dict(arena.sides.anchors), trial.plots, **facts)
    print(f"{origin} in {arena.world}, seed {trial.seed}, {trial.games} games against each")
    print_report(report, ratings.kind)
    return written + (best.save(place) if best is not None else [])


def anchored_ratings(arena: Arena, system: str = "elo", options: Mapping[str, Any] | None = None) -> Ratings:
    """An empty rating system in which the world's own players have the ratings that they have.

    Raises:
        ConfigError: no such system or option.
    """
    return rating_system(system, **{"anchors": dict(arena.sides.anchors), **(options or {})})


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


def print_report(report: Mapping[str, Any], kind: str, stream: TextIO | None = None) -> None:
    """The opponents as a table, then the player's rating."""
    print_results(report["opponents"], "opponent", stream)
    out = stream or sys.stdout
    first = f"{report['final_elo']:.0f} ({kind}, began at {report['initial_elo']:.0f})"
    print(f"rating of {report['player']}: {first}; of all games at once: {report['fitted_elo']:.0f} (Elo)", file=out)


def print_results(rows: Sequence[Mapping[str, Any]], who: str, stream: TextIO | None = None) -> None:
    """Records of players, a row each: ``success`` is the share of the decided games that were won.

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
    print_rows(shown, stream or sys.stdout)
    print(file=stream or sys.stdout)
