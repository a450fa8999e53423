"""Trains an agent: ``rlstack train agent=acqn env=marinenav``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rlstack.command import HydraCommand, as_module
from rlstack.config import ConfigError, Interval, build, convert, to_plain
from rlstack.config.groups import is_own
from rlstack.config.overrides import given_overrides, in_sweep
from rlstack.runs.run_directory import RunDirectory, named
from rlstack.training import run as runs
from rlstack.training import seeds
from rlstack.training.config import RESUMABLE, ObjectiveConfig, TrainConfig, is_resumable, with_length
from rlstack.training.hooks import Hook
from rlstack.training.run import TrainedRun, TrainedRuns, debugged, run_name

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    from rlstack.agents import Agent
    from rlstack.evaluation.results import Evaluation
    from rlstack.training.loop import Training

Callback = Callable[[int, dict[str, float], "Agent"], Any]
"""Receives the frames so far, metrics by name, and the agent; returns False to end the run."""


@as_module
def train(
    *words: str,
    on_batch: Callback | None = None,
    on_evaluation: Callback | None = None,
    hooks: Sequence[Hook] = (),
    quiet: bool = False,
    **keys: Any,
) -> TrainedRun:
    """Trains an agent as the command ``rlstack train`` does, and returns the run.

    Keys are those of ``conf/train.yaml`` and its groups, with Python values. Pass a dotted key as a word, or as
    ``**{"agent.lr": 1e-3}``; pass a world, an agent or a loss of your own as the class itself.

    Args:
        words: arguments as on the command line, such as ``"agent.lr=1e-3"``.
        on_batch: called after each batch that the agent has learned from, with the agent's metrics (``loss/...``)
            and those of the episodes since the last log line (``train/...``). This waits for a GPU.
        on_evaluation: called after each evaluation, with its summary (``eval/...``).
        hooks: further parts of the run, see :class:`rlstack.training.hooks.Hook`.
        quiet: prints nothing but warnings.
        keys: options by name.

    If a callback returns False, the run ends after this batch, with an evaluation and a checkpoint as usual. An
    exception in a callback ends the run and is raised here.

    Raises:
        ConfigError: the options are wrong; raised before anything is written, with a message of one line.
        RunError: the run cannot continue; the files that it has written so far are intact.
        KeyboardInterrupt: Ctrl-C, or the notebook's stop; after a checkpoint from which ``resume=`` continues.

    Example:
        >>> run = rlstack.train("agent.lr=1e-3", agent="ppo", env="cartpole", total_frames=50_000)
        >>> print(run.evaluation)
        >>> policy = run.load("best").agent.policy(explore=False)
    """
    if on_batch is not None or on_evaluation is not None:
        hooks = [*hooks, _Callbacks(on_batch, on_evaluation)]

    def task(cfg: DictConfig) -> TrainedRun:
        if plains := _of_seeds(cfg):
            return _trained_together(plains, hooks)
        plain = prepared(cfg)
        return _trained(runs.train(plain, hooks), plain)

    return command.call(task, words, keys, quiet)


class _Callbacks(Hook):
    """Calls the user's functions."""

    def __init__(self, on_batch: Callback | None, on_evaluation: Callback | None) -> None:
        self._on_batch, self._on_evaluation = on_batch, on_evaluation

    def on_batch(self, training: Training, batch: Any, metrics: Mapping[str, Any]) -> None:
        given = {**training.metrics(), **metrics} if self._on_batch is not None else {}
        if self._on_batch is not None and training.ranks.any(_ends(self._on_batch, training, given)):
            training.finish()

    def on_evaluation(self, training: Training, evaluation: Evaluation, is_best: bool) -> None:
        if self._on_evaluation is not None and _ends(self._on_evaluation, training, evaluation.summary()):
            training.finish()


def _ends(callback: Callback, training: Training, metrics: Mapping[str, Any]) -> bool:
    numbers = {name: float(value) for name, value in metrics.items()}
    answer = callback(training.frames, numbers, training.agent)
    is_truth = "bool" in str(getattr(answer, "dtype", ""))  # of NumPy or torch
    return answer is False or (is_truth and not answer)


def run(cfg: DictConfig) -> float:
    """Trains a new or resumed run and reports on it; returns its score, for sweeps."""
    if plains := _of_seeds(cfg):
        return _trained_together(plains).score
    plain, hooks = prepared(cfg), []
    if in_sweep():
        from rlstack.sweeps.folder import SweepPlace
        from rlstack.sweeps.search import pruning

        hooks = [*pruning(str(plain["resume"] or plain["run_dir"])), SweepPlace()]
    with runs.begun(plain, hooks) as training:
        training.execute()
    return _trained(runs.place(training), plain).score


def prepared(cfg: DictConfig) -> dict[str, Any]:
    """Returns the resolved configuration: shortened by ``debug``, placed in its sweep, or that of the resumed run."""
    plain = to_plain(cfg)
    plain = debugged(plain if plain["resume"] is not None else _completed(plain))
    for key in ("resume", "init", "data"):  # latest stands for the name of a run
        if (given := convert(str | None, plain.get(key), key)) is not None:
            plain[key] = named(given, key)
    if plain["resume"] is not None:
        return _resumed(plain)
    groups = isinstance(plain["agent"], dict) and isinstance(plain["env"], dict)  # otherwise reported later
    if plain["run_dir"] is None and groups and in_sweep():
        job, name = HydraConfig.get(), run_name(plain["agent"], plain["env"], plain["seed"])
        plain["run_dir"] = str(Path(job.sweep.dir) / f"{job.job.num}_{name}")
    return plain


def _of_seeds(cfg: DictConfig) -> list[dict[str, Any]]:
    """Returns the configurations of runs that train together: new ones with ``seeds``, or those in a folder to resume.

    Empty for a single run.

    Raises:
        ConfigError: they cannot train together.
    """
    plain = to_plain(cfg)
    count = convert(Annotated[int, Interval(low=1, high=1000)] | None, plain.get("seeds"), "seeds")
    folders = seeds.found_in(convert(str | None, plain.get("resume"), "resume"))
    if count is None and not folders:
        return []
    if in_sweep():
        raise ConfigError("seeds: the runs of -m are trained one after the other, set seed=0,1,...")
    if folders:
        return [prepared(OmegaConf.create({**plain, "seeds": None, "resume": path})) for path in folders]
    if plain.get("resume") is not None:
        raise ConfigError("seeds: a run to resume is one run; resume the folder with all seeds, or set seeds=null")
    return seeds.seeded(with_length(prepared(cfg)))


def _trained_together(plains: list[dict[str, Any]], hooks: Sequence[Hook] = ()) -> TrainedRuns:
    """Trains several runs, prints their scores, and returns them."""
    from rlstack.training.loggers import score

    objective = build(ObjectiveConfig, plains[0].get("objective", {}), "objective")
    trained = [TrainedRun(path, score(path, objective)) for path in seeds.train(plains, hooks)]
    result = TrainedRuns(trained[0].path.parent, fmean(run.score for run in trained), trained)
    result.show()
    return result


def _trained(run: RunDirectory, plain: dict[str, Any]) -> TrainedRun:
    """Returns the finished run, after recording its score in its sweep."""
    from rlstack.training.loggers import score

    result = score(run.path, build(ObjectiveConfig, plain.get("objective", {}), "objective"))
    if in_sweep():
        from rlstack.sweeps.folder import note_result

        env = plain["env"]
        note_result(score=result, run=str(run.path), world=str(env.get("id") or env["name"]))
    return TrainedRun(run.path, result)


def _completed(plain: dict[str, Any]) -> dict[str, Any]:
    """Adds all options of a world or an algorithm without a shipped yaml, whose class alone knows them."""
    groups = [plain[group] if isinstance(plain.get(group), dict) else {} for group in ("env", "agent")]
    world, algorithm = (str(group.get(key) or "") for group, key in zip(groups, ("name", "algorithm")))
    own_world, own_algorithm = is_own(world), ":" in algorithm
    if not own_world and not own_algorithm:
        return plain
    build(TrainConfig, with_length(debugged(plain)))  # reports other mistakes before torch is imported
    from rlstack.agents import completed
    from rlstack.runs.worlds import with_defaults

    plain = {**plain, "env": with_defaults(plain["env"])} if own_world else plain
    return {**plain, "agent": completed(plain["agent"])} if own_algorithm else plain


def _resumed(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns the stored configuration of the run to resume, with the changes that this command line may make."""
    stored = OmegaConf.create({**RunDirectory.open(plain["resume"]).read_config(), "notify": None})
    for override in given_overrides():
        key = override.lstrip("+~").partition("=")[0]
        value = OmegaConf.select(OmegaConf.create(plain), key)
        if is_resumable(key):
            OmegaConf.update(stored, key, value)
            continue
        whole = key in _GROUPS_OF_ALL  # sets keys anywhere
        pair = (plain, stored) if whole else (value, OmegaConf.select(stored, key))
        if (changed := _changed("" if whole else key, *map(to_plain, pair))) is not None:
            allowed = ", ".join(name for name in RESUMABLE if name != "resume")
            raise ConfigError(f"{changed}: cannot change when resuming; allowed: {allowed}")
    return to_plain(stored)


_GROUPS_OF_ALL = ("experiment", "recipe", "length")
"""Groups whose files set keys anywhere in the configuration."""


def _changed(key: str, given: Any, stored: Any) -> str | None:
    """Returns the first key below ``key`` with another value; ``auto`` is stored as what it stood for."""
    if isinstance(given, dict) and isinstance(stored, dict):
        for name in sorted(given, key=lambda name: name != "name"):  # a name tells more than what follows from it
            below = f"{key}.{name}".lstrip(".")
            kept = below == "run_dir" or is_resumable(below)
            if not kept and (found := _changed(below, given[name], stored.get(name))) is not None:
                return found
        return None
    return None if given in ("auto", stored) else key


command = HydraCommand("train", makes_runs=True)
main = command.line(run)

if __name__ == "__main__":
    main()
