"""Measures the speed of the worlds alone and of the policy alone, for more and fewer worlds."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from rlstack.agents import Interface
from rlstack.training.monitor import resident_bytes
from rlstack.training.preflight import free_bytes

from .measuring import MeasuredTraining, over_threads, percentiles, repeat

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
    if not measured.sweeps:
        one = measured.size_option is None
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
