"""Runs as jobs of Hydra's launchers, for populations and searches: each job begins a run or continues it."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rlstack.config import ConfigError, build, to_plain
from rlstack.config.overrides import override

from .folder import take_results
from .space import Space, assignment

if TYPE_CHECKING:
    from rlstack.training.config import ObjectiveConfig, TrainConfig

Launch = Callable[[Sequence[Sequence[str]], int], Any]
"""Runs jobs, given as overrides with the number of the first; returns when all have ended."""

Compose = Callable[[list[str]], DictConfig]
"""Composes a run's configuration from overrides."""


def checked(compose: Compose, space: Space, fixed: Sequence[str]) -> TrainConfig:
    """Returns the configuration of a run with a sample of the options that vary.

    Raises:
        ConfigError: the configuration has a mistake; no work has begun.
    """
    from rlstack.training.config import TrainConfig, with_length

    drawn = {key: dimension.draw(Random(0)) for key, dimension in space.items()}
    return build(TrainConfig, with_length(composed(compose, fixed, drawn)))


def composed(compose: Compose, fixed: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the resolved configuration of a run with these values of the options that vary."""
    from rlstack.training.run import debugged

    whole = compose([*fixed, *starmap(assignment, values.items())])
    return debugged(to_plain(OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])))


def job(run: Path, beginning: Sequence[str], always: Sequence[str] = ()) -> list[str]:
    """Returns the overrides that begin a run, or continue it.

    Args:
        run: folder of the run.
        beginning: overrides of a new run.
        always: overrides of new and continued runs.
    """
    if (run / "config.yaml").is_file():
        return [f"resume={run}", *always]
    return [*beginning, f"run_dir={run}", *always]


def check_settings(path: Path, kind: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises a :class:`ConfigError` if a file was begun with other settings."""
    for key, value in ours.items():
        if theirs.get(key) != value:
            begun = f"whose {key} is {theirs.get(key)}, not {value}; hydra.sweeper.folder=<another> begins a new one"
            raise ConfigError(f"{path.parent} holds a {kind} {begun}")


def tell_failures(folder: Path) -> None:
    """Prints the errors that jobs have reported in a folder, and removes the reports."""
    for result in take_results(folder):
        if "error" in result:
            print(f"a run failed: {result['error']} ({' '.join(result['overrides'])})", file=sys.stderr, flush=True)


def wait_for(run: Path) -> None:
    """Waits until no job of a killed command trains this run."""
    from rlstack.runs.run_directory import taken

    announced = False
    while True:
        try:
            with taken(run):
                return
        except ConfigError as error:
            if not announced:
                print(f"waiting: {error}", flush=True)
            announced = True
            time.sleep(1)


def reached(run: Path, until: int) -> bool:
    """Returns whether the run has been trained to ``until`` frames and evaluated there."""
    from rlstack.runs.run_directory import RunDirectory

    directory = RunDirectory(run)
    latest = directory.checkpoints.latest()
    frames = -1 if latest is None else int(latest.stem.partition("_")[2])
    return frames >= until and directory.evaluation(frames).is_file()


def scores_so_far(run: Path, objective: ObjectiveConfig, every: int | None = None) -> list[float]:
    """Returns :func:`rlstack.training.loggers.scores`; none if the metric has not been logged yet."""
    from rlstack.training.loggers import scores

    try:
        return scores(run, objective, every)
    except ConfigError:
        return []


def with_three_digits(values: Mapping[str, Any]) -> dict[str, str]:
    """Formats hyperparameters for a table."""
    return {key: f"{value:.3g}" if isinstance(value, float) else str(value) for key, value in values.items()}


def show_scores(rows: Sequence[Mapping[str, Any]], first: Path, direction: str) -> None:
    """Prints a table of runs, and how to evaluate the one with the best score.

    Args:
        rows: the rows of the table.
        first: folder of the run with the best score.
        direction: ``maximize`` or ``minimize``.
    """
    from rlstack.evaluation.figures import print_rows

    print_rows(rows, sys.stdout)
    end = "highest" if direction == "maximize" else "lowest"
    best = shlex.quote(override("checkpoint", first))
    print(f"evaluate the run with the {end} score, of a single seed: rlstack evaluate {best}")
