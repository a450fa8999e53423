"""The lines that a run prints before its first frame, after its last, and in place of an error that ends it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception
from typing import Any

import torch

from rlstack.agents.optimizer import explained
from rlstack.config.errors import RunError
from rlstack.config.groups import folder_flags
from rlstack.config.overrides import override
from rlstack.config.schedules import in_words
from rlstack.envs.foundation.processes import EnvironmentFailed, EnvironmentRaised, WorkersFailed, place_of
from rlstack.files.safe_load import out_of_memory
from rlstack.runs.run_directory import OF_THE_DISK, RunDirectory
from rlstack.runs.worlds import choose_device, size_key

from .config import TrainConfig
from .workers import CollectorFailed


def describe(
    config: TrainConfig,
    run: RunDirectory,
    compiled: str | None = None,
    processes: int = 1,
    deterministic: str | None = None,
    batch: int | None = None,
) -> str:
    """Describes a run in a few lines: agent, world, length, machine and folder.

    Args:
        config: configuration of the run.
        run: directory of the run.
        compiled: description of the compiled parts.
        processes: number of processes that learn together and share worlds, batches and replay buffer.
        deterministic: whether a GPU computes the same bits every time, in words.
        batch: frames of a batch, if they are always equally many.
    """
    device = choose_device(config.device)
    threads = config.threads or torch.get_num_threads()
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{threads} of {os.cpu_count()} cores"
    unit = "env steps" if config.collector.count == "env_steps" else "frames (agent decisions)"
    unit = unit if config.data is None else "frames (transitions drawn)"
    length, more = f"{config.total_frames:,} {unit}", -config.total_frames % (batch or 1)
    if more:
        length += f", rounded up to {config.total_frames + more:,}: whole batches of {batch:,} (agent.steps_per_batch)"
    size = size_key(config.env)
    rows = {
        "agent": config.agent.get("name"),
        "env": str(config.env.get("name")) + ("" if size is None else f", {config.env[size]} worlds"),
        "data": config.data,
        "length": length,
        "device": f"{device} ({hardware})",
        "precision": explained(config.agent, device, config.resume is not None),
        "deterministic": deterministic,
        **_learning(config.agent),
        "seed": str(config.seed),
        "evaluation": f"every {config.evaluation_every:,}, {config.eval.episodes} episodes per level"
        + ("" if config.eval.every else ", in at most a fifth of the time"),
        "checkpoint": f"every {config.checkpoint.every:,}, keep {config.checkpoint.keep}"
        + ("" if config.checkpoint.replay else ", without replay"),
        "logging": ", ".join(config.logger.names()),
        "run": str(run.path),
    }
    if processes > 1:
        rows["processes"] = f"{processes}, which share worlds, batches and replay buffer"
    if compiled is not None:
        rows["compiled"] = compiled
    if config.collector.backend != "direct":
        rows["collector"] = f"{config.collector.backend}, {config.collector.workers} workers"
    if config.curriculum is not None:
        stages = config.curriculum.stages
        rows["curriculum"] = f"{len(stages)} stages: {', '.join(stage.name for stage in stages)}"
    return "\n".join(f"{name:>13}  {value}" for name, value in rows.items() if value is not None)


def _learning(agent: Mapping[str, Any]) -> dict[str, str]:
    """Describes the size of an agent's batches and its learning rates."""
    size = next((agent[name] for name in ("minibatch_size", "batch_size") if agent.get(name)), None)
    named = {f"lr_{name}": each.get("lr") for name, each in (agent.get("optimizers") or {}).items()}
    given = named or {name: value for name, value in agent.items() if name == "lr" or name.startswith("lr_")}
    rates = {name: in_words(value) for name, value in given.items()}
    shown = [rate if name == "lr" else f"{name.removeprefix('lr_')} {rate}" for name, rate in rates.items()]
    rows = {"batch size": None if size is None else f"{size:,}", "learning rate": ", ".join(shown)}
    return {name: value for name, value in rows.items() if value}


def resume_command(run: RunDirectory, processes: int = 1, change: str = "") -> str:
    """Returns the command line that continues a run.

    Args:
        processes: number of processes that learn together.
        change: an option to change.
    """
    start = "rlstack train" if processes == 1 else "torchrun ... -m rlstack.train"
    return " ".join(part for part in (start, _named("resume", run), change) if part)


def league_command() -> str | None:
    """Returns the command line of this process if it is ``rlstack league train``.

    The same command continues its run, which then joins the league; ``rlstack train resume=`` would not add it.
    """
    typed = sys.orig_argv
    start = next((place for place, word in enumerate(typed) if word in ("league", "rlstack.league")), None)
    return None if start is None else shlex.join(["rlstack", "league", *typed[start + 1 :]])


def _named(key: str, run: RunDirectory) -> str:
    """Returns ``key=<run>`` for a shell, quoted if need be."""
    text = override(key, run.path)
    if shlex.quote(text) == text or not set(text).isdisjoint('"$`\\!'):
        return shlex.quote(text)
    return f'"{text}"'


def where_things_are(run: RunDirectory, config: TrainConfig, frames: int, digest: str = "", processes: int = 1) -> str:
    """Lists the files of a run that has ended, commands to continue with, and the digest of its last state.

    Args:
        frames: frames that the run has done.
        digest: digest of its last state.
        processes: number of processes that have learned together.
    """
    total, until = config.total_frames, config.until
    how, label, change, league = "finished", "train longer:  ", "total_frames=<more>", None
    if config.imitation.only:
        change = "imitation.only=false"
    elif frames < total:
        stopped = until is not None and frames >= until
        how = f"stopped at until={until:,}" if stopped else f"stopped at {frames:,} of {total:,} frames"
        label, change = f"train to the end, {total:,} frames:\n  ", "until=null" if until is not None else ""
        league = league_command()
    offline = any(run.path.glob("wandb/offline-run-*"))
    parts = [
        ("config.yaml", "the resolved configuration"),
        ("environment.json", "versions, machine, commit, command"),
        ("data.json", "the recorded data that it learned from, with their SHA-256"),
        ("metrics.csv", "every logged number"),
        ("tensorboard", f"curves: tensorboard --logdir {run.path}"),
        *([("wandb", f"W&B, not yet uploaded: wandb sync {run.path}/wandb/offline-run-*")] if offline else []),
        ("evaluations", "evaluation results during training"),
        ("curriculum.png", "stages over the run"),
        ("checkpoints", "latest and best.pt"),
    ]
    lines = [f"run {how}: {run.path}"]
    lines += [f"  {name:<18}{what}" for name, what in parts if (run.path / name).exists()]
    lines.append(f"evaluate it:   rlstack evaluate {_named('checkpoint', run)}")
    lines.append(f"report on it:  rlstack report {shlex.quote(str(run.path))}{folder_flags(sys.argv[1:])}")
    again = f"{league} {change}".rstrip() if league else resume_command(run, processes, change)
    lines.append(f"{label}{again}")
    if digest:
        repeats = "" if config.collector.backend == "multiasync" else " (repeatable on this machine)"
        lines.append(f"last state:    sha256 {digest[:16]}{repeats}")
    return "\n".join(lines)


# -- errors that end a run -------------------------------------------------------------------------------------------


@contextmanager
def one_line_errors(run: Path, env: Mapping[str, Any] | None = None) -> Iterator[None]:
    """A context that ends the run with one line if memory or disk is full, or an environment cannot continue.

    Args:
        run: directory of the run.
        env: the ``env`` group, to name the environment.

    Raises:
        RunError: in place of the original error; it says how to continue.
    """
    try:
        with full_memory_errors(run), environment_errors(env):
            yield
    except CollectorFailed as error:
        raise RunError(f"collector: {error}{_how_to_go_on(run)}", error.traceback) from error
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        what = f"{error.filename or run} cannot be written ({error.strerror})"
        raise RunError(f"{what}; the run has ended{_how_to_go_on(run)}") from error


@contextmanager
def full_memory_errors(run: Path) -> Iterator[None]:
    """A context that ends the run in this directory with one line, a :class:`RunError`, if the memory is full."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        what = "the memory is full; fewer worlds, shorter rollouts or a smaller agent.buffer_size need less"
        raise RunError(f"{what}{_how_to_go_on(run)}") from error


@contextmanager
def environment_errors(env: Mapping[str, Any] | None) -> Iterator[None]:
    """A context that ends the run if an environment ends the program or cannot be used.

    Args:
        env: the ``env`` group, to name the environment.

    Raises:
        RunError: in place of the environment's own error, or of the program's end.
    """
    try:
        yield
    except EnvironmentRaised as error:
        raise RunError(f"env: {error}", "".join(format_exception(error.__cause__))) from error
    except (EnvironmentFailed, WorkersFailed) as error:
        raise RunError(f"env: {error}", getattr(error, "traceback", "")) from error
    except SystemExit as error:
        named = [env[key] for key in ("id", "name") if env and env.get(key)]
        called = f"sys.exit({'' if error.code is None else repr(error.code)}) in {place_of(error)}"
        failure = f"env: {named[0] if named else 'an environment'} called {called}"
        raise RunError(f"{failure}; an environment may end its episodes, but not the program") from error


def _how_to_go_on(run: Path) -> str:
    saved = any((run / "checkpoints").glob("*.pt"))
    again = league_command() or f"rlstack train {shlex.quote(override('resume', run))}"
    return f"; checkpoints so far are intact, continue with: {again}" if saved else ""
