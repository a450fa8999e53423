"""The measured training, repeated measurements, and those of the worlds alone and of the policy alone."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import Agent, Interface, build_agent
from rlstack.envs.foundation.work import step
from rlstack.runs.worlds import build_world
from rlstack.training.config import TrainConfig
from rlstack.training.monitor import resident_bytes
from rlstack.training.preflight import free_bytes


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


_GROWTH = 4
_ACTIONS = 8
_STEPS = 4  # steps between two readings of the clock, which wait for a GPU
_BATCHES = (1, 16, 64, 256, 1024, 4096)
_MOST_BYTES = 2**26  # limit of the observations; networks need several times as much


class Stepper:
    """Steps an env with random actions, drawn in advance unless a mask restricts them.

    Attributes:
        steps: number of steps so far.
    """

    def __init__(self, env: EnvBase) -> None:
        self._env, self._masked = env, Interface.of(env).masked
        self.root: TensorDictBase = env.reset()
        self.done: TensorDictBase = self.root
        spec = env.full_action_spec
        self._actions = [list(spec.rand().items(True, True)) for _ in range(_ACTIONS)]
        self.steps = 0

    def __call__(self) -> None:
        """Makes a few steps."""
        for _ in range(_STEPS):
            if self._masked:
                self._env.rand_action(self.root)
            else:
                for key, action in self._actions[self.steps % _ACTIONS]:
                    self.root.set(key, action)
            self.steps += 1
            self.done, self.root = self._env.step_and_maybe_reset(self.root)

    def seconds_simulated(self) -> float | None:
        """Returns the simulated time of a step; None if the worlds do not report ``("episode", "time")``."""
        episode = self.done.get(("next", "episode"), None)
        if episode is None or not {"time", "length"} <= set(episode.keys()):
            return None
        longest = episode["length"].flatten().argmax()
        length, seconds = (float(episode[name].flatten()[longest]) for name in ("length", "time"))
        return seconds / length if length else None


def measure_worlds(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures the configured worlds, a sweep over their number, and one over threads."""
    config = measured.config.env
    with closing(measured.world()) as env:
        stepper = Stepper(env)
        measurements: dict[str, Any] = _point(measured, env, stepper, measured.seconds)
        per_second = measurements["steps_per_second"]
        group = Interface.of(env).group
        deciding = 1.0 if group is None else int(stepper.root.get((group, "active")).sum()) / measurements["num_worlds"]
        repeats = int(config.get("action_repeat") or 1)
        measurements["decisions_per_second"] = deciding * per_second
        if (ticks := config.get("tick_skip")) is not None:
            measurements["ticks_per_second"] = ticks * repeats * per_second
        if (simulated := stepper.seconds_simulated()) is not None:
            measurements["real_time_factor"] = simulated * repeats * per_second
        measurements["threads"] = over_threads(measured, stepper)
    return {**measurements, **_sweep(measured, {name: measurements[name] for name in _POINT})}


_POINT = ("num_worlds", "ms_per_step", "steps_per_second")


def _point(measured: MeasuredTraining, env: EnvBase, stepper: Stepper, seconds: float) -> dict[str, float]:
    durations = repeat(stepper, seconds, measured.clock)
    took, worlds = sum(durations) / len(durations) / _STEPS, env.batch_size.numel()
    return dict(zip(_POINT, (worlds, 1e3 * took, worlds / took)))


def _sweep(measured: MeasuredTraining, present: dict[str, Any]) -> dict[str, Any]:
    """Measures steps per second for other numbers of worlds, until a step takes too long or memory runs short."""
    one = measured.size_option is None
    if one or measured.config.env.get("compiled") or measured.processes:
        reason = "there is one world" if one else "compiled worlds and workers start too slowly"
        return {"sweep": [present], "sweep_ended": reason}

    def point(count: int) -> dict[str, Any]:
        with closing(measured.world(count)) as env:
            return _point(measured, env, Stepper(env), measured.seconds / 3)

    now, ended = present["num_worlds"], None
    points = [point(count) for count in sorted({1, now // _GROWTH**2, now // _GROWTH} - {0, now})] + [present]
    before = resident_bytes()
    for count in (now * _GROWTH, now * _GROWTH**2):
        if _GROWTH * _STEPS * points[-1]["ms_per_step"] / 1e3 > 2 * measured.seconds:
            ended = f"a step of {count:,} worlds would take too long"
            break
        began = measured.clock()
        try:
            points.append(point(count))
        except torch.OutOfMemoryError:
            ended = f"{count:,} worlds do not fit on {measured.device}"
            break
        if measured.clock() - began > 4 * measured.seconds:
            ended = f"more than {count:,} worlds take too long to build"
            break
        if _GROWTH * (resident_bytes() - before) > (free_bytes(torch.device("cpu")) or math.inf) / 2:
            ended = f"more than {count:,} worlds would take too much memory"
            break
    return {"sweep": points, "sweep_ended": ended}


def measure_inference(measured: MeasuredTraining) -> dict[str, Any]:
    """Measures calls of the exploring and the greedy policy in milliseconds, and sweeps the former over batch sizes.

    A batch has one entry per world; every agent in it makes a decision.
    """
    with closing(measured.world()) as env:
        root = env.reset()
    root = root if root.ndim else root.unsqueeze(0)
    agent, seconds, worlds = measured.agent(env), measured.seconds, len(root)
    group = agent.interface.group
    deciding = 1 if group is None else root.get(group).shape[1]

    def point(explore: bool, rows: TensorDictBase, seconds: float) -> dict[str, Any]:
        policy, decisions = agent.policy(explore), len(rows) * deciding
        measurements = percentiles(repeat(lambda: policy(rows), seconds, measured.clock, warm_up=3))
        rate = 1e3 * decisions / measurements["mean_ms"]
        return {"batch": len(rows), "decisions": decisions, **measurements, "decisions_per_second": rate}

    measurements = {**point(True, root, seconds / 2), "greedy": point(False, root.clone(False), seconds / 2)}
    sweep: list[dict[str, Any]] = []
    for size in sorted({*_BATCHES, worlds}):
        rows = root[torch.arange(size, device=root.device) % worlds]
        if size > worlds and rows.bytes() > _MOST_BYTES:
            break
        sweep.append(point(True, rows, seconds / len(_BATCHES)))
        if 4 * sweep[-1]["mean_ms"] > 1e3 * seconds:
            break
    return {**measurements, "sweep": sweep}
