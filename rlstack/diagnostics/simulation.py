"""How fast the worlds step by themselves, how that grows with their number, and what threads do for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from rlstack.agents import Interface
from rlstack.training.hardware import available_bytes, resident_bytes

from .subject import Subject
from .threads import over_threads
from .timing import repeat

GROWTH = 4
_ACTIONS = 8
_STEPS = 4  # between two looks at the clock, for which a GPU must finish


class Stepper:
    """Steps an env with random actions, drawn beforehand where no mask says which are allowed.

    Args:
        env: any batched env.

    Attributes:
        steps: made so far.
    """

    def __init__(self, env: EnvBase) -> None:
        self._env, self._masked = env, Interface.of(env).masked
        self.root: TensorDictBase = env.reset()
        self.done: TensorDictBase = self.root
        spec = env.full_action_spec
        self._actions = [list(spec.rand().items(True, True)) for _ in range(_ACTIONS)]
        self.steps = 0

    def __call__(self) -> None:
        """A few steps."""
        for _ in range(_STEPS):
            if self._masked:
                self._env.rand_action(self.root)
            else:
                for key, action in self._actions[self.steps % _ACTIONS]:
                    self.root.set(key, action)
            self.steps += 1
            self.done, self.root = self._env.step_and_maybe_reset(self.root)

    def seconds_simulated(self) -> float | None:
        """Of a world's time, in a step; None where the worlds do not report it as ``("episode", "time")``."""
        episode = self.done.get(("next", "episode"), None)
        if episode is None or not {"time", "length"} <= set(episode.keys()):
            return None
        longest = episode["length"].flatten().argmax()
        length, seconds = (float(episode[name].flatten()[longest]) for name in ("length", "time"))
        return seconds / length if length else None


def measure_worlds(subject: Subject) -> dict[str, Any]:
    """Speeds of the configured worlds, a sweep over their number, and one over threads."""
    env = subject.world()
    try:
        stepper = Stepper(env)
        duration = _step_seconds(subject, stepper, subject.seconds)
        found = _speeds(subject, env, stepper, duration)
        found["threads"] = over_threads(subject, lambda seconds: 1 / _step_seconds(subject, stepper, seconds))
    finally:
        env.close(raise_if_closed=False)
    return {**found, **_sweep(subject, found)}


def _step_seconds(subject: Subject, stepper: Stepper, seconds: float) -> float:
    durations = repeat(stepper, seconds, subject.clock)
    return sum(durations) / len(durations) / _STEPS


def _speeds(subject: Subject, env: EnvBase, stepper: Stepper, duration: float) -> dict[str, Any]:
    """Rates per second of steps that take so long."""
    worlds, config = env.batch_size.numel(), subject.config.env
    group = Interface.of(env).group
    decisions = worlds if group is None else int(stepper.root.get((group, "active")).sum())
    repeats = int(config.get("action_repeat") or 1)
    found = {
        "num_worlds": worlds,
        "ms_per_step": 1e3 * duration,
        "steps_per_second": worlds / duration,
        "decisions_per_second": decisions / duration,
    }
    if (ticks := config.get("tick_skip")) is not None:
        found["ticks_per_second"] = worlds * ticks * repeats / duration
    if (simulated := stepper.seconds_simulated()) is not None:
        found["real_time_factor"] = worlds * simulated * repeats / duration
    return found


def _sweep(subject: Subject, found: dict[str, Any]) -> dict[str, Any]:
    """Steps per second for other numbers of worlds, until a step takes too long or memory runs short."""
    now = found["num_worlds"]
    points = [{name: found[name] for name in ("num_worlds", "ms_per_step", "steps_per_second")}]
    if not subject.sweeps:
        reason = "there is one world" if subject.size_option is None else "compiled worlds and workers start too slowly"
        return {"sweep": points, "sweep_ended": reason}
    for count in sizes_below(now):
        points.append(_point(subject, count))
    points.sort(key=lambda point: point["num_worlds"])
    ended, before = None, resident_bytes()
    for count in (now * GROWTH, now * GROWTH**2):
        took = points[-1]["ms_per_step"] / 1e3
        if GROWTH * _STEPS * took > 2 * subject.seconds:
            ended = f"a step of {count:,} worlds would take too long"
            break
        began = subject.clock()
        try:
            points.append(_point(subject, count))
        except torch.OutOfMemoryError:
            ended = f"{count:,} worlds do not fit on {subject.device}"
            break
        if subject.clock() - began > 4 * subject.seconds:
            ended = f"more than {count:,} worlds take too long to build"
            break
        if GROWTH * (resident_bytes() - before) > available_bytes() / 2:
            ended = f"more than {count:,} worlds would take too much memory"
            break
    return {"sweep": points, "sweep_ended": ended}


def _point(subject: Subject, count: int) -> dict[str, Any]:
    env = subject.world(count)
    try:
        duration = _step_seconds(subject, Stepper(env), subject.seconds / 3)
    finally:
        env.close(raise_if_closed=False)
    return {"num_worlds": count, "ms_per_step": 1e3 * duration, "steps_per_second": count / duration}


def sizes_below(now: int) -> Iterable[int]:
    """1, and two sizes between it and ``now``."""
    return sorted({1, now // GROWTH**2, now // GROWTH} - {0, now})
