"""Searches with Optuna on Hydra's launchers: each batch of trials is a batch of runs.

Sampler and pruner have no state: each trial is drawn by a sampler that is seeded by the search and the trial's number,
and knows the trials in ``search.json`` that had finished before its batch. So a search that stops and continues, or is
killed, makes the same trials as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hydra.core.hydra_config import HydraConfig

from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.envs.extras import needs
from rlstack.training.hooks import Hook

from .folder import JOBS, in_sweep
from .jobs import Compose, Launch, checked, job, reached, show_scores, tell_failures, wait_for
from .space import RangeDimension, Space, assignment, check_values, split
from .state import check_settings, read_state, reading, write_state

if TYPE_CHECKING:
    from rlstack.evaluation.results import Evaluation
    from rlstack.training.config import ObjectiveConfig
    from rlstack.training.loop import Training

KIND = "search"
FILE = "search.json"
_MAY_CHANGE = ("folder", "n_trials", "n_jobs", "params")


@dataclass
class SearchConfig:
    """The options of ``conf/hydra/sweeper/search.yaml``."""

    folder: str
    n_trials: Annotated[int, Interval(low=1)]
    n_jobs: Annotated[int, Interval(low=1)]
    direction: Literal["maximize", "minimize"]
    seed: int
    pruner: Literal["median", "none"]
    pruner_trials: Annotated[int, Interval(low=1)]
    pruner_evaluations: Annotated[int, Interval(low=0)]
    params: dict[str, str] = field(default_factory=dict)


@dataclass
class SearchTrial:
    """One run of a search.

    Attributes:
        hyperparameters: values by key.
        known: number of trials that had finished when it was drawn, with which it is compared.
        scores: scores of its evaluations, without those that are not finite.
    """

    hyperparameters: dict[str, Any]
    known: Annotated[int, Interval(low=0)]
    state: Literal["running", "complete", "pruned", "failed"] = "running"
    scores: list[float] = field(default_factory=list)


class Search:
    """The trials so far, and the rules for the next.

    Args:
        config: configuration of the search.
        space: the options that vary.
        settings: other settings by name that must stay equal for a search to continue.

    Raises:
        ConfigError: the folder holds a search with other settings, or its file cannot be read.
    """

    def __init__(self, config: SearchConfig, space: Space, settings: dict[str, Any]) -> None:
        self.config, self.space, self.folder = config, space, Path(config.folder)
        ours = {key: value for key, value in asdict(config).items() if key not in _MAY_CHANGE}
        described = {key: str(dimension) for key, dimension in space.items()}
        self.settings = {**settings, **ours, "space": described}
        self.trials: list[SearchTrial] = []
        if (path := self.folder / FILE).is_file():
            self.trials = read_trials(self.folder)
            check_settings(path, KIND, read_state(path, KIND)["settings"], self.settings)
            for trial in self.trials:
                check_values(path, KIND, space, trial.hyperparameters)

    def run(self, number: int) -> Path:
        """Returns the folder of a trial's run."""
        return self.folder / f"trial_{number}"

    def batch(self) -> list[int]:
        """Returns the numbers of the next trials, which run side by side; none at the end of the search."""
        if left := [number for number, trial in enumerate(self.trials) if trial.state == "running"]:
            return left
        first, jobs = len(self.trials), self.config.n_jobs
        known = first // jobs * jobs  # batches begin at multiples, even if the search has stopped in between
        numbers = range(first, min(known + jobs, self.config.n_trials))
        self.trials += [SearchTrial(self._drawn(number, known), known) for number in numbers]
        self._write()
        return list(numbers)

    def finish(self, number: int, complete: bool, scores: Sequence[float]) -> None:
        """Sets the state of a trial to complete, pruned or failed; :meth:`keep` writes it.

        Args:
            complete: whether its run has reached its end.
            scores: scores of its evaluations; a run whose last one is not finite has failed.
        """
        trial = self.trials[number]
        trial.scores = [score for score in scores if math.isfinite(score)]
        if complete:
            trial.state = "complete" if scores and math.isfinite(scores[-1]) else "failed"
        else:
            behind = falls_behind(self.config, self.trials[: trial.known], trial.scores)
            trial.state = "pruned" if behind else "failed"

    def keep(self) -> None:
        """Writes the states of the trials.

        Raises:
            ConfigError: every trial so far has failed; nothing is written, and they run again next time.
        """
        if all(trial.state == "failed" for trial in self.trials):
            raise ConfigError(f"{self.folder}: every trial so far has failed")
        self._write()

    def ranked(self) -> list[int]:
        """Returns numbers from worst to best; failed trials come first, then pruned ones."""
        sign, states = 1 if self.config.direction == "maximize" else -1, ("failed", "running", "pruned", "complete")
        scores = [sign * trial.scores[-1] if trial.scores else -math.inf for trial in self.trials]
        merits = [(states.index(trial.state), score) for trial, score in zip(self.trials, scores)]
        return sorted(range(len(merits)), key=merits.__getitem__)

    def _drawn(self, number: int, known: int) -> dict[str, Any]:
        """Draws hyperparameters with Optuna's tree-structured Parzen estimator (Bergstra et al. 2011)."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState, create_trial

        def distribution(key: str) -> Any:
            dimension = self.space[key]
            if not isinstance(dimension, RangeDimension):
                return CategoricalDistribution(dimension.values)
            if dimension.whole:
                return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
            return FloatDistribution(dimension.low, dimension.high, log=dimension.log)

        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        varies = {key: distribution(key) for key in self.space}
        seed = Random(f"{self.config.seed} {number}").randrange(2**32)
        study = _study(self.config, sampler=TPESampler(seed=seed))
        for trial in self.trials[:known]:
            value = trial.scores[-1] if trial.state == "complete" else None
            drawn: dict[str, Any] = {"params": trial.hyperparameters, "distributions": varies}
            scores = dict(enumerate(trial.scores))
            study.add_trial(create_trial(state=states[trial.state], value=value, intermediate_values=scores, **drawn))
        params = study.ask(varies).params
        return {key: params[key] for key in self.space}

    def _write(self) -> None:
        write_state(self.folder / FILE, KIND, settings=self.settings, trials=list(map(asdict, self.trials)))


def read_trials(folder: Path) -> list[SearchTrial]:
    """Reads the trials in the file of a search.

    Raises:
        ConfigError: the file cannot be read.
    """
    content = read_state(folder / FILE, KIND)
    with reading(folder / FILE, KIND):
        trials = [build(SearchTrial, trial) for trial in content["trials"]]
        for number, trial in enumerate(trials):
            if trial.known > number or any(before.state == "running" for before in trials[: trial.known]):
                raise ValueError(f"trial {number} knows trials that had not finished")
            if trial.state == "complete" and not trial.scores:
                raise ValueError(f"trial {number} has no score")
        return trials


def falls_behind(config: SearchConfig, before: Sequence[SearchTrial], scores: Sequence[float]) -> bool:
    """Returns whether a trial is to be pruned by Optuna's median rule.

    A trial is pruned if its best score so far is worse than the median of the scores that earlier complete trials had
    after as many evaluations.
    """
    if config.pruner == "none" or not scores:
        return False
    from optuna.pruners import MedianPruner
    from optuna.trial import TrialState, create_trial

    pruner = MedianPruner(n_startup_trials=config.pruner_trials, n_warmup_steps=config.pruner_evaluations)
    study = _study(config, pruner=pruner)
    for trial in before:
        if trial.state == "complete":
            values = dict(enumerate(trial.scores))
            study.add_trial(create_trial(state=TrialState.COMPLETE, value=trial.scores[-1], intermediate_values=values))
    trial = study.ask()
    for step, score in enumerate(scores):
        trial.report(score, step)
    return bool(trial.should_prune())


def _study(config: SearchConfig, **parts: Any) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction=config.direction, **parts)


# -- on launchers ---------------------------------------------------------------------------------------------------


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
    rows = []
    for number in order:
        trial = found.trials[number]
        score = trial.scores[-1] if trial.scores else None
        rows.append(({"trial": str(number), "score": score}, trial.hyperparameters, {"state": trial.state}))
    print(f"\nsearch finished: {found.folder}")
    show_scores(rows, found.run(order[-1]), found.config.direction)
    print(f"hyperparameters and scores of every trial: {found.folder / FILE}")
    print("for more trials, repeat the command with a higher hydra.sweeper.n_trials")
