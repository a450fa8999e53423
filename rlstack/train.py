"""Trains an agent: ``python -m rlstack.train agent=acqn env=marinenav``."""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rlstack.command import hydra_command, open_group
from rlstack.config import ConfigError, build, convert, to_plain
from rlstack.config.agents import Whole, check_agent
from rlstack.config.errors import RunError, nearest_path
from rlstack.config.groups import check_kinds, is_own

if TYPE_CHECKING:
    from pathlib import Path

    from rlstack.data.ranks import Ranks
    from rlstack.runs.run_directory import RunDirectory
    from rlstack.training.config import TrainConfig
    from rlstack.training.loop import Training

DEBUG_FRAMES = 1000
_DEBUG_WORLDS, _DEBUG_AGENTS = 8, 10  # of each world about so many at most


def run(cfg: DictConfig) -> float:
    """One run, new or resumed, from configuration to report; returns its score, for sweeps."""
    plain = to_plain(cfg)
    plain = debugged(plain if plain["resume"] is not None else _completed(plain))
    plain |= _named(plain)
    plain = _resumed(plain) if plain["resume"] is not None else _placed(plain)
    directory = train(plain)
    if directory is None:
        return math.nan

    from rlstack.sweeps.results import note
    from rlstack.training.config import ObjectiveConfig
    from rlstack.training.objective import score

    result = score(directory.path, build(ObjectiveConfig, plain.get("objective", {}), "objective"))
    note(score=result, run=str(directory.path))
    return result


def _named(plain: dict[str, Any]) -> dict[str, str]:
    """The runs that this one goes on from, ``latest`` by its own name, which stays the same."""
    from rlstack.runs.latest import named

    given = {key: convert(str | None, plain[key], key) for key in ("resume", "init")}
    return {key: named(value, key) for key, value in given.items() if value is not None}


def _placed(plain: dict[str, Any]) -> dict[str, Any]:
    """In a sweep, the run's folder is in that of the sweep unless it was given."""
    from rlstack.sweeps.results import in_sweep, run_of_job

    named = isinstance(plain["agent"], dict) and isinstance(plain["env"], dict)  # if not, that is told later
    if plain["run_dir"] is not None or not named or not in_sweep():
        return plain
    return {**plain, "run_dir": run_of_job(run_name(plain["agent"], plain["env"], plain["seed"]))}


def _completed(plain: dict[str, Any]) -> dict[str, Any]:
    """With all options of a world without a yaml of ours, which its constructor alone knows."""
    env = plain.get("env")
    if not isinstance(env, dict) or not isinstance(env.get("name"), str) or not is_own(env["name"]):
        return plain
    from rlstack.training.config import TrainConfig, with_length

    build(TrainConfig, with_length(debugged(plain)))  # what is wrong elsewhere is told before the world is imported
    from rlstack.runs.worlds import with_defaults

    return {**plain, "env": with_defaults(plain["env"])}


def train(plain: dict[str, Any]) -> RunDirectory | None:
    """The run of a resolved configuration; with ``resume``, its stored one with what may change about it.

    Returns where it is; None in all but the first of several processes (see :mod:`rlstack.training.distributed`).

    Raises:
        ConfigError: a mistake in it, before anything is written.
        RunError: the run cannot go on; what it has written so far is whole.
    """
    from rlstack.training.config import TrainConfig, with_length
    from rlstack.training.notices import Notices, conceal

    plain = with_length(plain)
    config = build(TrainConfig, plain)
    plain = {**plain, "notify": None}  # a secret, which neither files nor loggers get
    conceal(sys.argv, sys.orig_argv)
    check_agent(config.agent, config.total_frames)
    check_kinds("env", str(config.env.get("name")), config.env)
    if config.init is not None and not os.path.exists(config.init):
        raise ConfigError(f"init: {config.init} does not exist{nearest_path(config.init)}")
    if config.resume is not None:
        from rlstack.runs.run_directory import RunDirectory

        last_frame = min(config.total_frames, config.until or config.total_frames)
        RunDirectory.open(config.resume).check_unfinished(config.total_frames, last_frame)

    # After the configuration is known to be sound: torch and TorchRL take seconds to import.
    from rlstack.runs.run_directory import taken
    from rlstack.training.acceleration import planned
    from rlstack.training.distributed import aside, join, of_rank
    from rlstack.training.failures import told_in_one_line
    from rlstack.training.memory import check_memory
    from rlstack.training.remote import check_collector
    from rlstack.training.self_check import check_buildable, check_gradients
    from rlstack.training.summary import describe, where_things_are

    ranks = join()
    config = of_rank(config, ranks)
    check_memory(config)
    agent = check_buildable(config)
    check_collector(config, ranks)
    compiled = planned(config, agent, shared=ranks is not None)
    with aside(ranks) as folder, ExitStack() as stack:
        directory = _directory(config, folder)
        if folder is None:
            stack.enter_context(taken(directory.path))
        check_gradients(bool(config.debug))
        print(describe(config, directory, compiled))
        training = _begun(config, directory, plain, ranks)
        webhook = config.notify if folder is None else None
        with Notices(webhook, directory.path.name) as notices, told_in_one_line(directory.path, config.env):
            training.tell = notices.tell
            evaluation = training.execute()
            notices.tell(f"ended at {training.frames:,} frames: {evaluation.in_words()}")
            if training.curriculum is not None:
                from rlstack.training.curriculum.picture import save_curriculum

                save_curriculum(directory.path, [stage.name for stage in training.curriculum.config.stages])
        evaluation.print_table()
        print(where_things_are(directory, config, training.digest))
        return directory if folder is None else None


def _directory(config: TrainConfig, aside: Path | None) -> RunDirectory:
    """Where the run goes: a folder to be thrown away, that of the run to resume, or a new one."""
    from rlstack.runs.run_directory import RunDirectory

    keep = config.checkpoint.keep
    if aside is not None:
        return RunDirectory(aside, keep)
    if config.resume is not None:
        return RunDirectory.open(config.resume, keep)
    return RunDirectory.create(config.run_dir, run_name(config.agent, config.env, config.seed), keep)


def _begun(config: TrainConfig, directory: RunDirectory, plain: dict[str, Any], ranks: Ranks | None) -> Training:
    """The run, checked, at its first frame or where it was left; of one that cannot be nothing stays behind."""
    from rlstack.training.environment import record_environment
    from rlstack.training.failures import told_in_one_line
    from rlstack.training.loop import Training
    from rlstack.training.self_check import self_check

    try:
        self_check(config, directory)
        training = Training(config, directory, plain, ranks)
        if config.resume is not None:
            training.restore()
            print(f"resuming at {training.frames:,} frames")
        else:
            training.begin()
        training.prepare()
        for line in training.curriculum.notes() if training.curriculum is not None else ():
            print(line)
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
    """With ``debug`` few frames in a few small worlds, every part of a run exercised.

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
        "logger": {"wandb": "disabled"},
        "imitation": {"frames": frames, "epochs": 2},
        "agent": agent,
        "env": env,
    }
    return to_plain(OmegaConf.merge(plain, changes))


def _resumed(plain: dict[str, Any]) -> dict[str, Any]:
    """The stored configuration of the run to resume, with what this command line may change about it."""
    from hydra.core.hydra_config import HydraConfig

    from rlstack.runs.run_directory import RunDirectory
    from rlstack.training.config import RESUMABLE

    stored = OmegaConf.create({**RunDirectory.open(plain["resume"]).read_config(), "notify": None})
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+~").partition("=")[0]
        value = OmegaConf.select(OmegaConf.create(plain), key)
        if key in RESUMABLE or key.partition(".")[0] in RESUMABLE:
            OmegaConf.update(stored, key, value)
        elif value != OmegaConf.select(stored, key):
            allowed = ", ".join(name for name in RESUMABLE if name != "resume")
            raise ConfigError(f"{key}: cannot change when resuming; allowed: {allowed}")
    return to_plain(stored)


main = hydra_command("train", open_group("agent"), makes_runs=True)(run)

if __name__ == "__main__":
    main()
