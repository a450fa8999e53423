"""What the data of a run says about itself between two log lines."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.evaluation.statistics import wilson_interval

EPISODE = ("next", "episode")
_MEANS = ("return", "length", "time", "energy", "collision")


class Monitor:
    """Accumulates episode statistics and the learner's metrics; :meth:`flush` gives their means and starts anew."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._episodes = 0
        self._learned: dict[str, Tensor | float] = {}  # as they come: reading a number off a GPU waits for it

    def observe(self, batch: TensorDictBase, metrics: dict[str, Tensor | float]) -> None:
        """Takes in a collector batch ``[W, T]`` and what ``learn`` returned."""
        self._learned.update(metrics)
        episode = batch.get(EPISODE, None)
        if episode is None:
            return
        done = batch.get(("next", "done"))[..., 0]
        finished = episode[done]
        self._episodes += len(finished)
        for name, value in finished.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.double().sum())

    def flush(self) -> dict[str, float]:
        """Metrics ``train/...`` of the episodes finished since the last flush, and the latest learner metrics."""
        metrics = self._numbers()
        count = self._episodes
        if count:
            metrics["train/episodes"] = float(count)
            for name in _MEANS:
                if name in self._sums:
                    metrics[f"train/{name}"] = self._sums[name] / count
            if "success" in self._sums:
                successes = round(self._sums["success"])
                metrics["train/success"] = successes / count
                metrics["train/success_low"], metrics["train/success_high"] = wilson_interval(successes, count)
            if "level" in self._sums:
                metrics["curriculum/level"] = self._sums["level"] / count
        self._sums, self._episodes = {}, 0
        return metrics

    def _numbers(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._learned.items()}

    def state_dict(self) -> dict[str, Any]:
        """Accumulated so far."""
        return {"sums": dict(self._sums), "episodes": self._episodes, "learned": self._numbers()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._sums, self._episodes = dict(state["sums"]), state["episodes"]
        self._learned = dict(state["learned"])


def count_frames(batch: TensorDictBase, sequences: TensorDictBase, unit: str) -> int:
    """Frames in a batch: decisions of active agents, or steps of worlds (see ``CollectorConfig.count``)."""
    if unit == "env_steps":
        return batch.numel()
    active = sequences.get("active")
    return int(torch.count_nonzero(active))
