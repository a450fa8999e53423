"""Devices on which reading a number of a tensor makes the program wait, and restarts of worlds without reading."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

FREE = {"cpu"}
"""Kinds of devices whose tensors can be looked at without waiting; tests that stand in for a GPU empty it."""


def looks_are_free(device: torch.device | None) -> bool:
    """True where branching on data costs nothing. Elsewhere everything is computed for all, under masks."""
    return device is None or device.type in FREE


class Turns:
    """Prepared beginnings for worlds that end, in turns, without asking how many end.

    Args:
        size: how many there are.
        device: of the worlds.
    """

    EVERY = 64
    """Calls after which new beginnings should be made. If more worlds have ended by then, some begin alike."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._calls = size, 0
        self._next = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def over(self) -> bool:
        """There should be new ones; there are none at first."""
        return not self._size or self._calls >= self.EVERY

    def places(self, ended: Tensor) -> Tensor:
        """The index ``[W]`` of the next beginning for worlds ``[W]`` bool that end; for the others any."""
        self._calls += 1
        rank = ended.cumsum(0)
        places = (self._next + rank - 1) % self._size
        self._next = (self._next + rank[-1]) % self._size
        return places


def put_where(
    ended: Tensor, values: Iterable[tuple[str, Tensor]], fresh: Iterable[tuple[str, Tensor]], places: Tensor
) -> None:
    """Overwrites worlds of a state, in place, with others at some places; tensors ``[..., W]`` in the same order."""
    for (_, value), (_, new) in zip(values, fresh, strict=True):
        value.copy_(torch.where(ended, new.index_select(-1, places), value))


def chosen(ended: Tensor, fresh: Tensor, places: Tensor, old: Tensor) -> Tensor:
    """New tensors ``[W, ...]``: ``fresh`` at some places where worlds have ended, else the old ones."""
    return torch.where(ended.view(-1, *[1] * (old.dim() - 1)), fresh.index_select(0, places), old)
