"""Searches with Optuna on Hydra's launchers: each batch of trials is a batch of jobs of ``rlstack.train``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig

from rlstack.config import ConfigError, build, to_plain
from rlstack.envs.extras import needs
from rlstack.training.hooks import Hook

from .folder import JOBS, in_sweep
from .jobs import Compose, Launch, checked, job, reached, show_scores, tell_failures, wait_for
from .search import FILE, Search, SearchConfig, falls_behind, read_trials
from .space import assignment, split

if TYPE_CHECKING:
    from rlstack.evaluation.results import Evaluation
    from rlstack.training.config import ObjectiveConfig
    from rlstack.training.loop import Training


def search(options: Mapping[str, Any], arguments: Sequence[str], compose: Compose, launch: Launch) -> None:
    """Runs the trials of a search, or continues the one in its folder, and prints the result.

    Args:
        options: options of the sweeper; see :class:`SearchConfig`.
        arguments: the command line of a run with ranges for some options.
        compose: function that composes a run's configuration from overrides.
        launch: function that runs jobs; see :data:`rlstack.sweeps.jobs.Launch`.

    Raises:
        ConfigError: options or arguments have a mistake or Optuna is missing, before any work; or all trials fail.
    """
    if find_spec("optuna") is None:
        raise ConfigError(f"hydra/sweeper=search {needs('sweep')}")
    config = build(SearchConfig, to_plain(options), "hydra.sweeper")
    space, fixed = split([*(f"{key}={value}" for key, value in config.params.items()), *arguments], may_vary=("",))
    run = checked(compose, space, fixed)
    found = Search(config, space, {"arguments": fixed})
    while numbers := found.batch():
        left = [number for number in numbers if not _finished(found, number, run.objective)]
        jobs = [
            job(found.run(number), [*fixed, *starmap(assignment, found.trials[number].hyperparameters.items())])
            for number in left
        ]
        if jobs:
            print(f"trials {numbers[0] + 1} to {numbers[-1] + 1} of {config.n_trials}", flush=True)
            for number in left:
                wait_for(found.run(number))
            launch(jobs, left[0])
        tell_failures(found.folder / JOBS)
        for number in left:
            _finished(found, number, run.objective)
        found.keep()
    show(found)


def _finished(found: Search, number: int, objective: ObjectiveConfig) -> bool:
    """Decides the state of a trial by its run; returns False if it has yet to run or to continue."""
    from rlstack.runs.run_directory import RunDirectory
    from rlstack.training.loggers import METRICS_FILE, scores

    run = found.run(number)
    if not (run / METRICS_FILE).is_file() or not (run / "config.yaml").is_file():
        found.finish(number, complete=False, scores=[])
    else:
        try:
            history = scores(run, objective)
        except ConfigError:  # the run was killed before its first evaluation
            history = []
        found.finish(number, reached(run, RunDirectory.open(run).read_config()["total_frames"]), history)
    return found.trials[number].state != "failed"


class Pruning(Hook):
    """Ends the run of a trial that falls behind those before it.

    Args:
        config: configuration of the search.
        number: number of the trial.
    """

    def __init__(self, config: SearchConfig, number: int) -> None:
        self._config, trials = config, read_trials(Path(config.folder))
        self._before = trials[: trials[number].known]

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        from rlstack.training.loggers import scores

        found = [score for score in scores(training.run.path, training.config.objective) if math.isfinite(score)]
        if falls_behind(self._config, self._before, found):
            training.event(f"pruned at {training.frames:,} frames: it falls behind the trials before it")
            training.finish()


def pruning(run: str) -> list[Hook]:
    """Returns the hooks of a run, given by its folder, if it is a trial of a search."""
    sweeper: Any = to_plain(HydraConfig.get().sweeper) if in_sweep() else {}
    if not str(sweeper.pop("_target_", "")).endswith(".SearchSweeper"):
        return []
    return [Pruning(build(SearchConfig, sweeper, "hydra.sweeper"), int(Path(run).name.removeprefix("trial_")))]


def show(found: Search) -> None:
    """Prints a table of the trials, the one with the best score last, and the paths of the files."""
    order = found.ranked()
    rows = [
        (
            {"trial": str(number), "score": trial.scores[-1] if trial.scores else None},
            trial.hyperparameters,
            {"state": trial.state},
        )
        for number in order
        for trial in [found.trials[number]]
    ]
    print(f"\nsearch finished: {found.folder}")
    show_scores(rows, found.run(order[-1]), found.config.direction)
    print(f"hyperparameters and scores of every trial: {found.folder / FILE}")
    print("for more trials, repeat the command with a higher hydra.sweeper.n_trials")
