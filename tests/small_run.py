"""Runs small enough for a test: their overrides, configurations, trainings, processes and metrics."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np

from rlstack.config import build, to_plain
from rlstack.config.groups import compose_config
from rlstack.runs.run_directory import RunDirectory
from rlstack.training.config import TrainConfig
from rlstack.training.loop import Training
from tests.conftest import REPO

SMALL_RUN = [
    "env.num_worlds=8",
    "env.max_steps=30",
    "log_every=500",
    "eval.episodes=1",
    "eval.max_steps=5",
    "agent.batch_size=64",
    "agent.learning_starts=300",
    "agent.frames_per_update=100",
    "agent.candidates=2",
    "logger=csv",
    "threads=1",
    "device=cpu",
]


CARTPOLE_RUN = [
    *("agent=ppo", "env=cartpole", "env.num_worlds=4", "agent.hidden=[4]", "agent.steps_per_batch=8", "agent.epochs=1"),
    *("agent.minibatch_size=16", "total_frames=128", "log_every=64", "eval.every=64", "eval.episodes=2", "threads=1"),
    *("eval.max_steps=20", "checkpoint.every=64", "logger=csv", "device=cpu", "compile=false"),
]
"""Batches of 32 frames; a log line, an evaluation and a checkpoint after every second one."""


@cache
def _composed(command: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    return to_plain(compose_config(command, overrides))


def composed(*overrides: str, command: str = "train") -> dict[str, Any]:
    """Returns the configuration of a command with these overrides, which is composed once and copied."""
    return deepcopy(_composed(command, overrides))


def begun(folder: Path, plain: dict[str, Any], **options: Any) -> Training:
    """Returns the training of a new run, whose configuration is written."""
    run = RunDirectory.create(folder, "test", keep=99)
    run.write_config(plain)
    return Training(build(TrainConfig, plain), run, plain, **options)


def reopened(folder: Path, plain: dict[str, Any]) -> Training:
    """Returns the training of a run that is there, which its checkpoint can restore."""
    return Training(build(TrainConfig, plain), RunDirectory.open(folder, keep=99), plain)


def logged(folder: Path) -> list[dict[str, str]]:
    """Returns the rows of a run's metrics, without those that depend on the clock."""
    with open(folder / "metrics.csv", newline="") as file:
        return [
            {key: value for key, value in row.items() if not key.startswith(("time/", "system/"))}
            for row in csv.DictReader(file)
        ]


def python(*words: str, cwd: Path | None = None, timeout: float = 300, **variables: str) -> CompletedProcess[str]:
    """Runs Python in a process of its own, which finds the repository wherever it works."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), **variables}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


def still(observation: Any) -> Any:
    """A policy of another library."""
    return np.zeros(len(observation), dtype=np.int64)
