"""The run of a resolved configuration, from its checks to its last line: what commands and sweeps call.

Importing this module imports neither torch nor TorchRL, which takes seconds that a mistyped key need not cost.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError, build, convert, to_plain
from rlstack.config.agents import Whole, check_agent
from rlstack.config.errors import RunError, nearest_path
from rlstack.config.groups import check_kinds
from rlstack.runs.run_directory import RunDirectory, taken

from .config import TrainConfig, offline_options, with_length
from .notices import Notices, conceal

if TYPE_CHECKING:
    from pathlib import Path

    from .distributed import Ranks
    from .hooks import Hook
    from .loop import Training

DEBUG_FRAMES = 1000
_DEBUG_WORLDS, _DEBUG_AGENTS = 8, 10  # of each world about so many at most


def train(plain: dict[str, Any], hooks: Sequence[Hook] = ()) -> RunDirectory:
    """The run of a resolved configuration; with ``resume``, its stored one with what may change about it.

    Args:
        plain: the configuration, as plain values.
        hooks: what else takes part in the run.

    Returns where it is, in each of several processes (see :mod:`rlstack.training.distributed`).

    Raises:
        ConfigError: a mistake in it, before anything is written.
        RunError: the run cannot go on; what it has written so far is whole.
    """
    with begun(plain, hooks) as training:
        training.execute()
    return place(training)


def place(training: Training) -> RunDirectory:
    """Where the run is, in each of several processes: that of the first."""
    return RunDirectory(training.ranks.everyone(str(training.run.path))[0])


@contextmanager
def begun(plain: dict[str, Any], hooks: Sequence[Hook] = ()) -> Iterator[Training]:
    """The run of :func:`train`, checked, built, and at its first frame or where it was left, to be executed within.

    At the end it shows the last evaluation and says where everything is.
    """
    plain = with_length(plain)
    config = build(TrainConfig, plain)
    if config.data is not None:
        plain = offline_options(plain)
        config = build(TrainConfig, plain)
    plain = {**plain, "notify": None}  # a secret, which neither files nor loggers get
    conceal(sys.argv, sys.orig_argv)
    check_agent(config.agent, config.total_frames)
    check_kinds("env", str(config.env.get("name")), config.env)
    config.logger.check_installed()
    if config.init is not None and not os.path.exists(config.init):
        raise ConfigError(f"init: {config.init} does not exist{nearest_path(config.init)}")
    if config.resume is not None:
        last_frame = min(config.total_frames, config.until or config.total_frames)
        RunDirectory.open(config.resume).check_unfinished(config.total_frames, last_frame)

    # After the configuration is known to be sound: torch and TorchRL take seconds to import.
    from .acceleration import planned
    from .distributed import aside, join, share_of
    from .environment import end_recorded
    from .failures import told_in_one_line
    from .hooks import NoticesHook
    from .memory import check_memory
    from .offline import OfflineData, recorded_for
    from .remote import check_collector
    from .self_check import check_buildable, check_gradients
    from .summary import describe, where_things_are

    ranks = join()
    whole, config = config, share_of(config, ranks)
    check_memory(config)
    agent = check_buildable(config)
    check_collector(config)
    recorded = None if config.data is None else recorded_for(config, agent)
    compiled = planned(config, agent, shared=ranks.count > 1)
    with aside(ranks) as folder, ExitStack() as stack:
        directory = _directory(config, folder)
        if folder is None:
            stack.enter_context(taken(directory.path))
        stack.enter_context(check_gradients(bool(config.debug)))
        print(describe(whole, directory, compiled, ranks.count, recorded and str(recorded)))
        notices = Notices(config.notify if folder is None else None, directory.path.name)
        parts = [NoticesHook(notices), *([] if recorded is None else [OfflineData(recorded)]), *hooks]
        training = _built(config, directory, plain, ranks, parts)
        with notices, end_recorded(directory.path), told_in_one_line(directory.path, config.env):
            yield training
        if training.evaluation is not None:
            training.evaluation.print_table()
        print(where_things_are(directory, config, training.digest))


def _directory(config: TrainConfig, aside: Path | None) -> RunDirectory:
    """The folder of the run: one to be thrown away, that of the run to resume, or a new one."""
    keep = config.checkpoint.keep
    if aside is not None:
        return RunDirectory(aside, keep)
    if config.resume is not None:
        return RunDirectory.open(config.resume, keep)
    return RunDirectory.create(config.run_dir, run_name(config.agent, config.env, config.seed), keep)


def _built(
    config: TrainConfig, directory: RunDirectory, plain: dict[str, Any], ranks: Ranks, hooks: Sequence[Hook]
) -> Training:
    """The run, checked, at its first frame or where it was left; of one that cannot be nothing stays behind."""
    from .environment import record_environment
    from .failures import told_in_one_line
    from .loop import Training
    from .self_check import self_check

    try:
        self_check(config, directory)
        training = Training(config, directory, plain, ranks, hooks)
        if config.resume is not None:
            training.restore()
            if training.frames:  # without a checkpoint it begins anew
                print(f"resuming at {training.frames:,} frames")
        else:
            training.begin()
        training.prepare()
        with told_in_one_line(directory.path):
            directory.write_config({**training.raw_config, "resume": None})
            record_environment(directory.path)
    except (ConfigError, RunError, KeyboardInterrupt):
        directory.remove_if_empty()
        raise
    return training


def run_name(agent: dict[str, Any], env: dict[str, Any], seed: int) -> str:
    """``<agent>_<env or its id>_seed<seed>``, fit for a folder's name."""
    world = re.sub(r"[^\w.-]+", "-", str(env.get("id") or env.get("name")))
    return f"{agent.get('name')}_{world}_seed{seed}"


def debugged(plain: dict[str, Any]) -> dict[str, Any]:
    """Shortens a run with ``debug`` to few frames in a few small worlds, every part of it exercised.

    ``debug=true`` makes :data:`DEBUG_FRAMES`, a number makes so many. Rollouts are so short that at least four of them
    are in these, however many agents act.

    Raises:
        ConfigError: ``debug`` is neither.
    """
    debug = convert(bool | Whole, plain.get("debug", False), "debug")
    if not debug:
        return plain
    frames = DEBUG_FRAMES if debug is True else debug
    some, steps = max(frames // 2, 1), max(frames // (4 * _DEBUG_WORLDS * _DEBUG_AGENTS), 1)
    given = {key: value for key, value in (plain.get("agent") or {}).items() if isinstance(value, int | float)}
    parts = max(int(given.get("accumulate", 1)), 1)  # which a batch is split into
    most = {"learning_starts": frames // 10, "random_frames": frames // 10, "steps_per_batch": steps}
    most["batch_size"] = parts * max(32 // parts, 1)
    agent = {key: min(given[key], value) for key, value in most.items() if key in given}
    agent |= {"frames_per_update": max(frames // 50, 1)} if "frames_per_update" in given else {}
    env = {key: _DEBUG_WORLDS for key in ("num_worlds", "num_envs") if key in (plain.get("env") or {})}
    changes = {
        "total_frames": frames,
        "log_every": max(frames // 5, 1),
        "collector": {"steps_per_batch": min(plain["collector"]["steps_per_batch"], steps)},
        "eval": {"every": some, "episodes": 2, "max_steps": 100},
        "checkpoint": {"every": some},
        "logger": {"wandb": "disabled", "mlflow": False, "trackio": False},
        "imitation": {"frames": frames, "epochs": 2},
        "agent": agent,
        "env": env,
    }
    return to_plain(OmegaConf.merge(plain, changes))
