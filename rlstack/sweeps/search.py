"""The trials of a search with Optuna: how each is drawn, and when one is pruned.

Sampler and pruner have no state: each trial is drawn by a sampler that is seeded by the search and the trial's number,
and knows the trials in ``search.json`` that had finished before its batch. So a search that stops and continues, or is
killed, makes the same trials as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from rlstack.config import ConfigError, Interval, build

from .space import RangeDimension, Space, check_values
from .state import check_settings, read_state, reading, write_state

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
        sign = 1 if self.config.direction == "maximize" else -1

        def merit(number: int) -> tuple[int, float]:
            trial = self.trials[number]
            order = ("failed", "running", "pruned", "complete").index(trial.state)
            return order, sign * trial.scores[-1] if trial.scores else -math.inf

        return sorted(range(len(self.trials)), key=merit)

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
            study.add_trial(
                create_trial(
                    state=states[trial.state],
                    value=value,
                    params=trial.hyperparameters,
                    distributions=varies,
                    intermediate_values=dict(enumerate(trial.scores)),
                )
            )
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
