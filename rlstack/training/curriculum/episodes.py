"""The latest episodes of a run, as a curriculum judges them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .rules import OF_SUCCESSES

SUCCESS = "success"


class LatestEpisodes:
    """The last ``capacity`` finished episodes, of which the last ``window`` make the means.

    Args:
        statistics: names of the world's episode statistics to keep.
    """

    def __init__(self, statistics: Iterable[str], window: int, capacity: int) -> None:
        self._columns: dict[str, list[float]] = {name: [] for name in statistics}
        self._window, self._capacity = window, max(window, capacity)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def finished(self, batch: TensorDictBase) -> dict[str, Any]:
        """The episodes that end in a collector batch ``[W, T]``, by time, then by worlds: as :meth:`state_dict`."""
        ended = batch.get(("next", "done"))[..., 0].movedim(-1, 0)
        count = int(ended.sum())
        if not self._columns or not count:  # a world may tell nothing of its episodes
            return {"columns": {}, "count": count}
        entries = [batch.get(("next", "episode", name)) for name in self._columns]
        rows = torch.stack([_in_time(entry, ended).double() for entry in entries], -1)[ended]
        return {"columns": dict(zip(self._columns, rows.T.tolist(), strict=True)), "count": count}

    def take(self, found: dict[str, Any]) -> None:
        """Takes in what :meth:`finished` has found."""
        if found["columns"]:
            self.add(found["columns"])
        else:
            self._count = min(self._count + found["count"], self._capacity)

    def add(self, episodes: Mapping[str, Sequence[float]]) -> None:
        """Takes in episodes by statistic, oldest first."""
        for name, column in self._columns.items():
            column.extend(map(float, episodes[name]))
            del column[: -self._capacity]
            self._count = len(column)

    def mean(self, metric: str) -> float:
        """Over the window; not a number where no episode counts."""
        name, only_successes, _ = metric.partition(OF_SUCCESSES)
        values = self._columns[name][-self._window :]
        if only_successes:
            values = [value for value, won in zip(values, self._columns[SUCCESS][-self._window :]) if won > 0]
        return math.fsum(values) / len(values) if values else math.nan

    def clear(self) -> None:
        """Forgets all of them."""
        for column in self._columns.values():
            column.clear()
        self._count = 0

    def state_dict(self) -> dict[str, Any]:
        """The episodes by statistic, oldest first, and how many they are."""
        return {"columns": {name: list(column) for name, column in self._columns.items()}, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self._count = state["count"]
        self._columns = {name: list(state["columns"][name]) for name in self._columns}


def _in_time(entry: Tensor, like: Tensor) -> Tensor:
    """``[W, T, 1]`` as ``[T, W]``, as the end flags are."""
    return entry.movedim(like.dim() - 1, 0).reshape(like.shape)
