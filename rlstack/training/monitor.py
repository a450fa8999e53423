"""Counts frames and time of a run, and averages statistics of episodes and learning between two log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.data.flatten import STAYS
from rlstack.evaluation.statistics import wilson_interval

from .hooks import Hook

if TYPE_CHECKING:
    from .loop import Training

EPISODE = ("next", "episode")
_BY_THEMSELVES = ("success", "level")
"""Statistics that are logged with more than their mean, or under another name."""


class Monitor(Hook):
    """Accumulates episode statistics and the learner's metrics; :meth:`flush` returns their means and resets them."""

    name = "monitor"

    def __init__(self) -> None:
        # Values stay on their device: reading a number from a GPU waits for it.
        self._sums: dict[str, Tensor | float] = {}
        self._episodes: Tensor | int = 0
        self._learned: dict[str, Tensor | float] = {}

    def on_batch(self, training: Training, batch: TensorDictBase, metrics: Mapping[str, Any]) -> None:
        self.observe(batch, metrics)

    def on_log(self, training: Training) -> Mapping[str, Any]:
        return self.flush(training.ranks.everyone)

    def observe(self, batch: TensorDictBase, metrics: Mapping[str, Tensor | float]) -> None:
        """Adds a collector batch ``[W, T]`` and the metrics that ``learn`` returned."""
        self._learned.update(metrics)
        episode = batch.get(EPISODE, None)
        if episode is None:
            return
        done = batch.get(("next", "done"))[..., 0]
        self._episodes = self._episodes + done.sum()
        for name, value in episode.items():
            going_on = ~done.view(*done.shape, *[1] * (value.dim() - done.dim()))
            self._sums[name] = self._sums.get(name, 0.0) + value.double().masked_fill(going_on, 0).sum()

    def flush(self, everyone: Callable[[Any], list[Any]] = lambda state: [state]) -> dict[str, float]:
        """Returns :meth:`metrics` and resets the statistics.

        Args:
            everyone: gathers the states of all processes that learn together, given this one's.
        """
        states = everyone(self.state_dict())
        self._episodes = sum(state["episodes"] for state in states)
        for name in self._sums:
            self._sums[name] = sum(state["sums"][name] for state in states)
        for name in self._learned:
            self._learned[name] = sum(state["learned"][name] for state in states) / len(states)
        metrics = self.metrics()
        self._sums, self._episodes = {}, 0
        return metrics

    def metrics(self) -> dict[str, float]:
        """Returns ``train/<statistic>``, means of the episodes since the last flush, and the learner's metrics."""
        metrics, sums = _numbers(self._learned), _numbers(self._sums)
        count = int(self._episodes)
        if count:
            metrics["train/episodes"] = float(count)
            means = {name: total / count for name, total in sums.items() if name not in _BY_THEMSELVES}
            metrics |= {f"train/{name}": mean for name, mean in means.items()}
            if "success" in sums:
                successes = round(sums["success"])
                metrics["train/success"] = successes / count
                metrics["train/success_low"], metrics["train/success_high"] = wilson_interval(successes, count)
            if "level" in sums:
                metrics["curriculum/level"] = sums["level"] / count
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics accumulated so far."""
        return {"sums": _numbers(self._sums), "episodes": int(self._episodes), "learned": _numbers(self._learned)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._sums, self._episodes = dict(state["sums"]), state["episodes"]
        self._learned = dict(state["learned"])


def _numbers(values: dict[str, Tensor | float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def count_frames(batch: TensorDictBase, sequences: TensorDictBase, unit: str) -> int:
    """Returns the frames in a batch: decisions of active agents, or steps of worlds (see ``CollectorConfig.count``)."""
    if unit == "env_steps":
        return batch.numel()
    if sequences.get(STAYS, None) is None:  # no agent can leave: every entry counts
        return batch.numel()
    active = sequences.get("active")
    return int(torch.count_nonzero(active))


class Clock:
    """Wall-clock and CPU time of a run, which may have begun in an earlier process.

    Attributes:
        total: seconds of the whole run at the last reading: wall-clock time, and CPU time of all threads.
    """

    def __init__(self) -> None:
        self.total = {"time/seconds": 0.0, "time/cpu_seconds": 0.0}
        self.start(0)

    def start(self, frames: int) -> None:
        """Starts the clock of this process at ``frames`` frames."""
        self._before, self._frames = self.total, frames
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def rate(self, frames: int) -> float:
        """Returns frames per second of this process."""
        return (frames - self._frames) / max(time.monotonic() - self._wall, 1e-9)

    def read(self) -> dict[str, float]:
        """Updates and returns :attr:`total`."""
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        before = self._before
        self.total = {
            "time/seconds": before["time/seconds"] + max(wall, 1e-9),
            "time/cpu_seconds": before["time/cpu_seconds"] + cpu,
        }
        return self.total


def is_due(every: float, previous: int, now: int, last: int) -> bool:
    """Returns whether a multiple of ``every`` frames lies between two counts; True at the end of the run."""
    return now >= last or now // every > previous // every
