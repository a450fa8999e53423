"""The measured training, the clock, and repeated measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import Agent, build_agent
from rlstack.envs.foundation.work import step
from rlstack.envs.registry import world_hooks
from rlstack.runs.worlds import build_world
from rlstack.training.config import TrainConfig


class DeviceClock:
    """A clock in seconds that waits for the device first, since a GPU computes asynchronously.

    Args:
        kind: ``"wall"``, or ``"cpu"`` for the time of this process and its threads, which other programs do not affect.
        device: the device that computes.
    """

    def __init__(self, kind: Literal["wall", "cpu"] = "wall", device: torch.device | str = "cpu") -> None:
        self.kind, self._device = kind, torch.device(device)
        self._read = time.perf_counter if kind == "wall" else time.process_time

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._read()


@dataclass
class MeasuredTraining:
    """A training configuration and how to measure it, with schedules half-way through the run.

    Attributes:
        config: configuration of the training.
        raw: the configuration as plain values.
        device: device of the learner.
        clock: clock of the measurements.
        seconds: duration of a measurement; a point of a sweep takes a third.
    """

    config: TrainConfig
    raw: dict[str, Any]
    device: torch.device
    clock: DeviceClock
    seconds: float

    def world(self, num_worlds: int | None = None) -> EnvBase:
        """Builds the training's worlds, or another number of them."""
        more = {} if num_worlds is None else {"num_worlds": num_worlds}
        return build_world(self.config.env, self.device, self.config.seed, **more)

    def agent(self, env: EnvBase) -> Agent:
        """Builds the agent at the middle of the run: past its random actions, and learning."""
        agent = build_agent(self.config.agent, env, self.config.total_frames, self.device)
        agent.set_frames(self.halfway)
        return agent

    @property
    def halfway(self) -> int:
        """Returns the frames at the middle of the run, or where learning has begun if that is later."""
        late = max(int(self.config.agent.get(name) or 0) for name in ("learning_starts", "random_frames"))
        return max(self.config.total_frames // 2, late)

    @cached_property
    def size_option(self) -> str | None:
        """Returns the option with the number of worlds; None if there is only one world."""
        accepted = envs.options_of(self.config.env["name"])
        return next((name for name in ("num_worlds", "num_envs") if name in accepted), None)

    @cached_property
    def num_worlds(self) -> int:
        """Returns the number of worlds, counted if the option is null."""
        given = self.config.env.get(self.size_option) if self.size_option else 1
        if given is not None:
            return int(given)
        with closing(self.world()) as env:
            return env.batch_size.numel()

    @property
    def processes(self) -> int:
        """Returns the number of other processes that step the worlds; torch backends have none."""
        env = self.config.env
        return 0 if env.get("backend") == "torch" else int(env.get("workers") or 0)

    @property
    def sweeps(self) -> bool:
        """Returns whether another number of worlds can be built quickly."""
        return self.size_option is not None and not (self.config.env.get("compiled") or self.processes)

    @property
    def observing(self) -> tuple[str, ...]:
        """Returns the world's functions that make observations; none if compiled, as its parts cannot be timed."""
        return () if self.config.env.get("compiled") else world_hooks(self.config.env["name"]).observing


def repeat(function: Callable[[], Any], seconds: float, clock: Callable[[], float], warm_up: int = 1) -> list[float]:
    """Calls a function for ``seconds``, at least three times; returns the seconds of each call after the warm-up."""
    for _ in range(warm_up):
        function()
    durations: list[float] = []
    begin = now = clock()
    while len(durations) < 3 or now - begin < seconds:
        before = clock()
        function()
        now = clock()
        durations.append(now - before)
        step()
    return durations


def percentiles(durations: list[float]) -> dict[str, float]:
    """Returns ``mean_ms``, ``p95_ms`` and ``p99_ms`` of durations in seconds."""
    milliseconds = 1e3 * np.asarray(durations)
    p95, p99 = np.percentile(milliseconds, (95, 99))
    return {"mean_ms": float(milliseconds.mean()), "p95_ms": float(p95), "p99_ms": float(p99)}


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_threads(measured: MeasuredTraining, function: Callable[[], Any]) -> list[dict[str, Any]]:
    """Measures calls per second of a function with 1, 2, 4, ... torch threads, up to the number of cores.

    Returns an empty list on a GPU, on one core, and for CPU time, which threads do not shorten.
    """
    if measured.device.type != "cpu" or measured.clock.kind == "cpu" or cores() == 1:
        return []
    before, points = torch.get_num_threads(), []
    try:
        for count in sorted({cores(), *(2**power for power in range(cores().bit_length()))}):
            torch.set_num_threads(count)
            durations = repeat(function, measured.seconds / 3, measured.clock)
            points.append({"threads": count, "per_second": len(durations) / sum(durations)})
    finally:
        torch.set_num_threads(before)
    return points
