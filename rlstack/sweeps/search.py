"""Searches with Optuna on Hydra's launchers: each batch of trials is a batch of runs.

Optuna keeps the trials in ``search.jsonl``, its journal. Each trial is drawn by a sampler that is seeded by the search
and the trial's number, and is told its end only with the others of its batch. So a search that stops and continues, or
is killed, makes the same trials as an uninterrupted one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal

from hydra.core.hydra_config import HydraConfig

from rlstack.config import ConfigError, Interval, build, to_plain
from rlstack.config.allowed import check_named, links_in, sign
from rlstack.config.errors import writing
from rlstack.envs.foundation.files import check_regular
from rlstack.envs.foundation.packages import needs
from rlstack.runs.manifest import changed, check, sealed
from rlstack.training.hooks import Hook

from .folder import JOBS, telling
from .jobs import (
    Compose,
    Launch,
    check_settings,
    checked,
    job,
    reached,
    scores_so_far,
    show_scores,
    tell_failures,
    wait_for,
    with_three_digits,
)
from .space import RangeDimension, Space, assignment, check_values, split

if TYPE_CHECKING:
    import optuna

    from rlstack.evaluation.results import Evaluation
    from rlstack.training.config import ObjectiveConfig, TrainConfig
    from rlstack.training.loop import Training

KIND = "search"
FILE = "search.jsonl"
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


def open_study(config: SearchConfig) -> optuna.Study:
    """Returns the study in the folder of a search, or begins it.

    Raises:
        ConfigError: its file cannot be read or written, or the folder links to places outside that the user has not
            allowed.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    folder = Path(config.folder)
    path = folder / FILE
    check(path)
    check_named(links_in(folder), path)
    if not path.exists() and (folder / "trial_0").exists():
        raise ConfigError(f"{folder}: holds trials but no {FILE}; hydra.sweeper.folder=<another> begins a new search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    median = optuna.pruners.MedianPruner(config.pruner_trials, config.pruner_evaluations)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        sign(folder, links_in(folder))
        try:
            begun = path.exists() and check_regular(path).stat().st_size > 0
            shared: dict[str, Any] = {
                "storage": JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path)))),
                "study_name": KIND,
                "pruner": median if config.pruner == "median" else optuna.pruners.NopPruner(),
            }
            if begun:  # create_study(load_if_exists=True) would write a line
                return optuna.load_study(**shared)
            with sealed(folder, FILE):
                return optuna.create_study(direction=config.direction, **shared)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
            raise ConfigError(f"{path}: not a search ({error!r})") from None


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
        settings = {**settings, **ours, "space": described}
        path = self.folder / FILE
        if path.is_file():
            content = path.read_bytes()
            if not content.endswith(b"\n") and not changed(self.folder, FILE):
                # A part of a line, which a killed process or a full disk has left; Optuna would append to it.
                with writing(path):
                    os.truncate(path, content.rfind(b"\n") + 1)
        self.study = open_study(config)
        if (theirs := self.study.user_attrs.get("settings")) is None:
            with sealed(self.folder, FILE):
                self.study.set_user_attr("settings", settings)
        else:
            check_settings(self.folder / FILE, KIND, theirs, settings)
        for trial in self.study.trials:
            check_values(self.folder / FILE, KIND, space, trial.params)
            if type(known := trial.user_attrs.get("known")) is not int or not 0 <= known <= trial.number:
                raise ConfigError(f"{self.folder / FILE}: not a search (trial {trial.number} was drawn from {known!r})")

    def run(self, number: int) -> Path:
        """Returns the folder of a trial's run."""
        return self.folder / f"trial_{number}"

    def batch(self) -> list[int]:
        """Returns the numbers of the next trials, which run side by side; none at the end of the search."""
        trials, jobs = self.study.trials, self.config.n_jobs
        running = [trial.number for trial in trials if not trial.state.is_finished()]
        first = running[0] if running else len(trials)
        known = first // jobs * jobs  # batches begin at multiples, even if the search has stopped in between
        with sealed(self.folder, FILE):
            for number in range(len(trials), min(known + jobs, self.config.n_trials)):
                self._draw(number, known)
                running.append(number)
        return running

    def _draw(self, number: int, known: int) -> None:
        """Adds a trial, drawn from the ``known`` ones before its batch by Optuna's TPE (Bergstra et al. 2011)."""
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        def distribution(key: str) -> Any:
            dimension = self.space[key]
            if not isinstance(dimension, RangeDimension):
                return CategoricalDistribution(dimension.values)
            if dimension.whole:
                return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
            return FloatDistribution(dimension.low, dimension.high, log=dimension.log)

        seed = Random(f"{self.config.seed} {number}").randrange(2**32)
        varies = {key: distribution(key) for key in self.space}
        params = beside(self.study, known, TPESampler(seed=seed)).ask(varies).params
        more: dict[str, Any] = {"user_attrs": {"known": known}, "distributions": varies}
        self.study.add_trial(optuna.create_trial(state=TrialState.RUNNING, params=params, **more))

    def finish(self, ended: Mapping[int, tuple[bool, Sequence[float]]]) -> None:
        """Stores how trials have ended: complete, pruned or failed.

        Args:
            ended: by number, whether a trial's run has reached its end, and the scores of its evaluations. A complete
                run whose last score is not finite has failed.

        Raises:
            ConfigError: every trial so far has failed; nothing is stored, and they run again next time.
        """
        import optuna
        from optuna.trial import TrialState

        states = {}
        for number, (complete, scores) in ended.items():
            if complete:
                states[number] = TrialState.COMPLETE if scores and math.isfinite(scores[-1]) else TrialState.FAIL
            else:
                states[number] = TrialState.PRUNED if falls_behind(self.study, number, scores) else TrialState.FAIL
        before = [trial.state for trial in self.study.trials if trial.state.is_finished()]
        if all(state == TrialState.FAIL for state in (*before, *states.values())):
            raise ConfigError(f"{self.folder}: every trial so far has failed")
        with sealed(self.folder, FILE):
            for number, state in states.items():
                scores = ended[number][1]
                trial = optuna.Trial(self.study, self.study.trials[number]._trial_id)
                for step, score in enumerate(scores):
                    if math.isfinite(score):
                        trial.report(score, step)
                self.study.tell(number, scores[-1] if state == TrialState.COMPLETE else None, state)

    def ranked(self) -> list[int]:
        """Returns numbers from worst to best; failed trials come first, then pruned ones."""
        sign, states = 1 if self.config.direction == "maximize" else -1, ("FAIL", "RUNNING", "PRUNED", "COMPLETE")
        merits = []
        for trial in self.study.trials:
            score = score_of(trial)
            merits.append((states.index(trial.state.name), -math.inf if score is None else sign * score))
        return sorted(range(len(merits)), key=merits.__getitem__)


def beside(study: optuna.Study, known: int, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
    """Returns a study in memory of the first ``known`` trials, to draw and judge by without a trace in the file."""
    import optuna

    copied = optuna.create_study(direction=study.direction, sampler=sampler, pruner=study.pruner)
    copied.add_trials(study.trials[:known])
    return copied


def falls_behind(study: optuna.Study, number: int, scores: Sequence[float]) -> bool:
    """Returns whether a trial with these scores of its evaluations is to be pruned by Optuna's median rule.

    A trial is pruned if its best score so far is worse than the median of the scores that complete trials before its
    batch had at the same evaluation. Scores that are not finite do not count.
    """
    judged = beside(study, study.trials[number].user_attrs["known"]).ask()
    finite = {step: score for step, score in enumerate(scores) if math.isfinite(score)}
    for step, score in finite.items():
        judged.report(score, step)
    return bool(finite) and judged.should_prune()


def score_of(trial: optuna.trial.FrozenTrial) -> float | None:
    """Returns the last score of a trial; None if it has none."""
    last = trial.last_step
    return trial.intermediate_values[last] if trial.value is None and last is not None else trial.value


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
    searched = Search(config, space, {"arguments": fixed})
    while numbers := searched.batch():
        ended = {number: _ended(searched.run(number), run.objective) for number in numbers}
        pruned = {number: falls_behind(searched.study, number, scores) for number, (_, scores) in ended.items()}
        left = [number for number in numbers if not (ended[number][0] or pruned[number])]
        params = {number: searched.study.trials[number].params for number in left}
        jobs = [job(searched.run(number), [*fixed, *starmap(assignment, params[number].items())]) for number in left]
        if jobs:
            print(f"trials {numbers[0] + 1} to {numbers[-1] + 1} of {config.n_trials}", flush=True)
            for number in left:
                wait_for(searched.run(number))
            with telling(config.n_trials, list(space), left[0]):
                launch(jobs, left[0])
        tell_failures(searched.folder / JOBS)
        searched.finish({number: _ended(searched.run(number), run.objective) for number in numbers})
    show(searched)


def _ended(run: Path, objective: ObjectiveConfig) -> tuple[bool, list[float]]:
    """Returns whether the run of a trial has reached its end, and the scores of its evaluations."""
    from rlstack.runs.run_directory import RunDirectory
    from rlstack.training.config import TrainConfig
    from rlstack.training.loggers import METRICS_FILE

    if not (run / METRICS_FILE).is_file() or not (run / "config.yaml").is_file():
        return False, []
    stored = RunDirectory.open(run).read_config()
    every = _left_out(build(TrainConfig, stored))
    return reached(run, stored["total_frames"]), scores_so_far(run, objective, every)


def _left_out(config: TrainConfig) -> int | None:
    """Returns the frames between evaluations if a run may leave some out to save time; otherwise None."""
    return config.evaluation_every if config.eval.every is None else None


class Pruning(Hook):
    """Ends the run of a trial that falls behind those before it.

    Args:
        config: configuration of the search.
        number: number of the trial.
    """

    def __init__(self, config: SearchConfig, number: int) -> None:
        self._study, self._number = open_study(config), number

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        known = scores_so_far(training.run.path, training.config.objective, _left_out(training.config))
        if falls_behind(self._study, self._number, known):
            training.event(f"pruned at {training.frames:,} frames: it falls behind the trials before it")
            training.finish()


def pruning(run: str) -> list[Hook]:
    """Returns the hooks of a run of a sweep, given by its folder, if it is a trial of a search."""
    sweeper: Any = to_plain(HydraConfig.get().sweeper)
    if not str(sweeper.pop("_target_", "")).endswith(".SearchSweeper"):
        return []
    return [Pruning(build(SearchConfig, sweeper, "hydra.sweeper"), int(Path(run).name.removeprefix("trial_")))]


def show(searched: Search) -> None:
    """Prints a table of the trials, the one with the best score last, and the paths of the files."""
    order = searched.ranked()
    rows = []
    for number in order:
        trial = searched.study.trials[number]
        state = {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())
        varied = with_three_digits({key: trial.params[key] for key in searched.space})
        rows.append({"trial": str(number), "score": score_of(trial), **varied, "state": state})
    print(f"\nsearch finished: {searched.folder}")
    show_scores(rows, searched.run(order[-1]), searched.config.direction)
    print(f"hyperparameters and scores of every trial: {searched.folder / FILE}")
    print("for more trials, repeat the command with a higher hydra.sweeper.n_trials")
