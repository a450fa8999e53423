"""Runs a resolved configuration, from its checks to its last line; commands and sweeps call this module.

Importing it imports neither torch nor TorchRL, so a mistyped key is reported without seconds of waiting.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError, build, convert, to_plain
from rlstack.config.errors import nearest_path
from rlstack.config.groups import check_kinds, folder_flags
from rlstack.config.options import Whole
from rlstack.config.overrides import given_keys
from rlstack.envs.foundation.files import leftovers
from rlstack.runs.manifest import changed, sealed, unseal
from rlstack.runs.run_directory import RunDirectory, removed_if_empty, taken

from .config import TrainConfig, check_learns, offline_options, with_length
from .interrupt import Interrupted
from .notices import Notices, concealed

if TYPE_CHECKING:
    import torch

    from rlstack.evaluation.results import Evaluation
    from rlstack.runs.loading import LoadedRun

    from .hooks import Hook
    from .loop import Training

DEBUG_FRAMES = 1000
_DEBUG_WORLDS, _DEBUG_AGENTS = 8, 10  # greatest numbers of worlds, and roughly of agents in a world


def train(plain: dict[str, Any], hooks: Sequence[Hook] = ()) -> RunDirectory:
    """Trains with a resolved configuration; with ``resume``, with the stored one and the changes that it permits.

    Args:
        plain: the configuration, as plain values.
        hooks: hooks that take part in the run.

    Returns the run's directory, in each of several processes (see :mod:`rlstack.training.distributed`).

    Raises:
        ConfigError: the configuration has a mistake; nothing has been written.
        RunError: the run cannot continue; its files so far are intact.
    """
    with begun(plain, hooks) as training:
        training.execute()
    return place(training)


def place(training: Training) -> RunDirectory:
    """Returns the run's directory in each of several processes: that of the first."""
    return RunDirectory(training.ranks.everyone(str(training.run.path))[0])


@contextmanager
def begun(plain: dict[str, Any], hooks: Sequence[Hook] = ()) -> Iterator[Training]:
    """A context with the run of :func:`train`, checked, built and restored if it resumes, ready to be executed.

    At its end it prints the last evaluation and the names of the files.

    Raises:
        KeyboardInterrupt: Ctrl-C; it says what the run has left unless the loop has already said so.
    """
    plain = with_length(plain)
    config = build(TrainConfig, plain)
    if config.data is not None:
        plain = offline_options(plain)
        config = build(TrainConfig, plain)
    plain = {**plain, "notify": None}  # a secret, kept from files and loggers
    for command in (sys.argv, sys.orig_argv):  # which loggers record
        command[:] = concealed(command)
    if config.resume is None:
        check_learns(config)
    check_kinds("env", str(config.env.get("name")), config.env)
    config.logger.check_installed()
    if config.init is not None and not os.path.exists(config.init):
        raise ConfigError(f"init: {config.init} does not exist{nearest_path(config.init)}")

    path = None if config.resume is None else Path(config.resume)
    if config.resume is not None:
        last_frame = min(config.total_frames, config.until or config.total_frames)
        RunDirectory.open(config.resume).check_unfinished(config.total_frames, last_frame)
    try:
        # Imported only after these checks: torch and TorchRL take seconds.
        from rlstack.agents import check_agent
        from rlstack.runs.worlds import size_key

        from .acceleration import prepare_cublas
        from .distributed import aside, join, share_of
        from .environment import end_recorded, record_environment
        from .loop import Training
        from .recorded import OfflineData
        from .summary import describe, full_memory_errors, one_line_errors, where_things_are

        check_agent(config.agent, config.total_frames)
        prepare_cublas(config.deterministic)
        ranks = join()
        own = share_of(config, ranks)
        with aside(ranks) as folder, ExitStack() as stack:
            with full_memory_errors(Path(config.resume or config.run_dir or "runs")):
                theirs = any(not type(hook).__module__.startswith("rlstack.") for hook in hooks)
                directory, checks = _tried(own, folder, stack, theirs)
                path = directory.path
                notices = Notices(config.notify if folder is None else None, path.name)
                parts = [notices, *([] if config.data is None else [OfflineData(config)]), *hooks]
                training = stack.enter_context(closing(Training(own, directory, plain, ranks, parts)))
                if config.resume is None:
                    training.begin()
                else:
                    for name in changed(path):
                        print(f"{path / name} was changed or damaged after the run ended")
                    training.restore()
                    if training.frames:  # without a checkpoint it starts over
                        print(f"resuming at {training.frames:,} frames")
                training.prepare()
                agent = training.agent
                worlds = config.env.get(size_key(config.env)) or training.env.batch_size.numel()
                uneven = config.data is not None or (agent.interface.group and config.collector.count == "decisions")
                batch = None if uneven else worlds * config.collector.steps_per_batch
                compiled = training.acceleration.describe(agent)
                print(describe(config, directory, compiled, ranks.count, training.deterministic, batch))
                print(*checks, sep="\n", flush=True)
                unseal(path)
                with one_line_errors(path):
                    directory.write_config({**training.raw_config, "resume": None})
                    record_environment(path)
            with sealed(path), notices, end_recorded(path), one_line_errors(path, own.env):
                yield training
            if training.evaluation is not None:
                training.evaluation.print_table()
            print(where_things_are(directory, own, training.frames, training.digest, ranks.count))
    except Interrupted:
        raise
    except KeyboardInterrupt:
        if path is None or not (path / "config.yaml").is_file():
            raise KeyboardInterrupt("nothing was written") from None
        from .summary import league_command, resume_command

        run = RunDirectory(path)
        newest, again = run.checkpoints.latest(), league_command() or resume_command(run)
        state = "there is no checkpoint yet; begin again with"
        if newest is not None:
            state = f"the newest checkpoint is of {int(newest.stem[11:]):,} frames; continue with"
        raise KeyboardInterrupt(f"{state}: {again}") from None


def _tried(
    config: TrainConfig, aside: Path | None, stack: ExitStack, has_hooks: bool
) -> tuple[RunDirectory, list[str]]:
    """Tries everything on a few worlds of this rank; returns the run's folder, and a line for each check.

    Args:
        has_hooks: whether the run has hooks of the user's, which may log metrics of their own.

    Raises:
        ConfigError: something does not work; no files have been left.
    """
    import torch

    from rlstack.envs import world_hooks

    from .preflight import check_buildable, check_fits, check_objective, few_worlds, needs, self_check
    from .workers import check_collector

    with few_worlds(config) as env:
        for option, replaced in world_hooks(config.env["name"]).replaces.items():
            if config.env.get(option) is not None and (vain := sorted(given_keys("env").intersection(replaced))):
                raise ConfigError(f"env.{vain[0]}: has no effect, env.{option} replaces it; set env.{option}=null")
        if not has_hooks:
            check_objective(config, env)
        check_fits("the run", needs(config, env))
        agent = check_buildable(config, env)
        check_collector(config)
        keep = config.checkpoint.keep
        if aside is not None:
            directory = RunDirectory(aside, keep)
        elif config.resume is not None:
            directory = RunDirectory.open(config.resume, keep)
        else:
            directory = RunDirectory.create(config.run_dir, run_name(config.agent, config.env, config.seed), keep)
        if aside is None:
            stack.enter_context(taken(directory.path))
            for file in leftovers(directory.path):
                file.unlink(missing_ok=True)
        stack.enter_context(removed_if_empty(directory.path))
        # Debug mode: autograd names the operation behind the first NaN in a gradient.
        stack.enter_context(torch.autograd.set_detect_anomaly(bool(config.debug), check_nan=bool(config.debug)))
        return directory, self_check(config, directory, env, agent)


def run_name(agent: dict[str, Any], env: dict[str, Any], seed: int) -> str:
    """Returns ``<agent>_<env or its id>_seed<seed>`` in characters that suit a folder's name."""
    world = re.sub(r"[^\w.-]+", "-", str(env.get("id") or env.get("name")))
    return f"{agent.get('name')}_{world}_seed{seed}"


def debugged(plain: dict[str, Any]) -> dict[str, Any]:
    """Shortens a run with ``debug`` to few frames in a few small worlds, so that every part of it is exercised.

    ``debug=true`` means :data:`DEBUG_FRAMES` frames; a number is taken as it is. Rollouts are so short that at least
    four fit into these frames, however many agents act.

    Raises:
        ConfigError: ``debug`` has another value.
    """
    debug = convert(bool | Whole, plain.get("debug", False), "debug")
    if not debug:
        return plain
    frames = DEBUG_FRAMES if debug is True else debug
    some, steps = max(frames // 2, 1), max(frames // (4 * _DEBUG_WORLDS * _DEBUG_AGENTS), 1)
    given = {key: value for key, value in (plain.get("agent") or {}).items() if isinstance(value, int | float)}
    parts = max(int(given.get("accumulate", 1)), 1)  # parts of a batch
    most = {"learning_starts": frames // 10, "random_frames": frames // 10, "steps_per_batch": steps}
    most["batch_size"] = parts * max(32 // parts, 1)
    agent = {key: min(given[key], value) for key, value in most.items() if key in given}
    agent |= {"frames_per_update": max(frames // 50, 1)} if "frames_per_update" in given else {}
    env = {key: _DEBUG_WORLDS for key in ("num_worlds", "num_envs") if key in (plain.get("env") or {})}
    changes = {
        "total_frames": frames,
        "log_every": max(frames // 5, 1),
        "eval": {"every": some, "episodes": 2, "max_steps": 100},
        "checkpoint": {"every": some},
        "logger": {"wandb": "disabled", "mlflow": False, "trackio": False},
        "imitation": {"frames": frames, "epochs": 2},
        "agent": agent,
        "env": env,
    }
    if isinstance(long := plain["collector"]["steps_per_batch"], int | float):  # anything else is reported later
        changes["collector"] = {"steps_per_batch": min(long, steps)}
    return to_plain(OmegaConf.merge(plain, changes))


@dataclass(frozen=True)
class TrainedRun:
    """A finished run and its results; where a path is expected, it stands for its folder.

    Attributes:
        path: the folder.
        score: number by which sweeps compare runs: the last ``eval/success``, or ``eval/return`` in worlds without
            success, unless ``objective.*`` says otherwise; NaN if no evaluation has finished.
    """

    path: Path
    score: float

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def evaluation(self) -> Evaluation:
        """Returns the last evaluation with every episode; printed, it is the table at the end of the command."""
        from rlstack.evaluation.results import Evaluation

        newest = max(file for file in (self.path / "evaluations").glob("*.json") if file.stem.isdigit())
        return Evaluation.from_json(newest.read_text(encoding="utf-8"))

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Returns the rows of ``metrics.csv``: ``frames`` and the metrics logged at that frame."""
        from .loggers import METRICS_FILE, read_metrics

        return read_metrics(self.path / METRICS_FILE)

    def load(self, which: str = "latest", device: torch.device | str = "cpu") -> LoadedRun:
        """Loads the agent and its configuration, as :func:`rlstack.load` does; ``which`` is latest or best."""
        from rlstack.runs.loading import load

        return load(self.path, device, which)


@dataclass(frozen=True)
class TrainedRuns(TrainedRun):
    """Finished runs that differ in their seed; ``path`` is their common folder, ``score`` the mean of their scores.

    Attributes:
        runs: the runs, in the order of their seeds.
    """

    runs: list[TrainedRun]

    @property
    def evaluation(self) -> Evaluation:
        """Each run has its own."""
        raise self._several()

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Each run has its own."""
        raise self._several()

    def load(self, which: str = "latest", device: torch.device | str = "cpu") -> LoadedRun:
        """Each run has its own."""
        raise self._several()

    def _several(self) -> ConfigError:
        return ConfigError(f"{self.path} holds {len(self.runs)} runs, each with its own results: take one of .runs")

    def show(self) -> None:
        """Prints the score of each run, their mean with its interval, and the command that compares them."""
        from rlstack.evaluation.figures import print_rows
        from rlstack.evaluation.statistics import by_mean

        print_rows([{"run": run.path.name, "score": run.score} for run in self.runs], sys.stdout)
        if scores := [run.score for run in self.runs if not math.isnan(run.score)]:
            print_rows(list(by_mean({self.path.name: scores}).values()), sys.stdout)
        print(f"compare them: rlstack report {shlex.quote(str(self.path))}{folder_flags(sys.argv[1:])}")
