"""The lines that a run prints before its first frame and after its last."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

import torch

from rlstack.agents.precision import explained
from rlstack.config import to_plain
from rlstack.config.named_code import allowing, code_in
from rlstack.config.schedules import in_words
from rlstack.runs.run_directory import RunDirectory
from rlstack.runs.worlds import choose_device, size_key

from .config import TrainConfig


def describe(
    config: TrainConfig, run: RunDirectory, compiled: str | None = None, processes: int = 1, data: str | None = None
) -> str:
    """Describes a run in a few lines: agent, world, length, machine and folder.

    Args:
        config: configuration of the run.
        run: directory of the run.
        compiled: description of the compiled parts.
        processes: number of processes that learn together and share worlds, batches and replay buffer.
        data: description of the data of an offline run.
    """
    device = choose_device(config.device)
    threads = config.threads or torch.get_num_threads()
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{threads} of {os.cpu_count()} cores"
    unit = "env steps" if config.collector.count == "env_steps" else "frames (agent decisions)"
    unit = unit if data is None else "frames (transitions drawn)"
    size = size_key(config.env)
    rows = {
        "agent": config.agent.get("name"),
        "env": str(config.env.get("name")) + ("" if size is None else f", {config.env[size]} worlds"),
        "data": data,
        "length": f"{config.total_frames:,} {unit}",
        "device": f"{device} ({hardware})",
        "precision": explained(config.agent, device, config.resume is not None),
        **_learning(config.agent),
        "seed": str(config.seed),
        "evaluation": f"every {config.eval.every:,}, {config.eval.episodes} episodes per level",
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
    rates = {name: in_words(value) for name, value in agent.items() if name == "lr" or name.startswith("lr_")}
    shown = [rate if name == "lr" else f"{name.removeprefix('lr_')} {rate}" for name, rate in rates.items()]
    rows = {"batch size": None if size is None else f"{size:,}", "learning rate": ", ".join(shown)}
    return {name: value for name, value in rows.items() if value}


def where_things_are(run: RunDirectory, config: TrainConfig, digest: str = "") -> str:
    """Lists the files of a finished run, commands to go on with, and the digest of its last state."""
    go_on = "total_frames=<more>"
    if config.imitation.only:
        go_on = "imitation.only=false"
    elif config.until is not None and config.until < config.total_frames:
        go_on = "until=null"
    parts = [
        ("config.yaml", "the resolved configuration"),
        ("environment.json", "versions, machine, commit, command"),
        ("data.json", "the recorded data that it learned from, with their SHA-256"),
        ("metrics.csv", "every logged number"),
        ("tensorboard", f"curves: tensorboard --logdir {run.path}"),
        ("evaluations", "evaluation results during training"),
        ("curriculum.png", "stages over the run"),
        ("checkpoints", "latest and best.pt"),
    ]
    lines = [f"run finished: {run.path}"]
    lines += [f"  {name:<18}{what}" for name, what in parts if (run.path / name).exists()]
    named = code_in(to_plain(config))  # the commands must allow this code again
    allow = f" {shlex.quote(allowing(named))}" if named else ""
    lines.append(f"evaluate it:   rlstack evaluate checkpoint={run.path}{allow}")
    lines.append(f"report on it:  rlstack report {run.path}")
    lines.append(f"train longer:  rlstack train resume={run.path} {go_on}{allow}")
    if digest:
        repeats = "" if config.collector.backend == "multiasync" else " (a repeat on this machine ends with the same)"
        lines.append(f"last state:    sha256 {digest[:16]}{repeats}")
    return "\n".join(lines)
