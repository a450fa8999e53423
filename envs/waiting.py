"""Avoids waiting for a GPU: restarts worlds without reading how many have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

FREE = {"cpu"}
"""Kinds of devices whose tensors can be read without waiting; tests that imitate a GPU empty this set."""


def looks_are_free(device: torch.device | None) -> bool:
    """Returns whether branching on data is free. On other devices, worlds compute everything under masks."""
    return device is None or device.type in FREE


class Turns:
    """Assigns prepared initial states to ended worlds in turn, without counting how many have ended.

    Args:
        size: number of initial states.
        device: device of the worlds.
    """

    EVERY = 64
    """Number of calls after which new initial states are due. If more worlds end before, some begin alike."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._size, self._calls = size, 0
        self._next = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def over(self) -> bool:
        """Returns whether new initial states are due, as they are at first."""
        return not self._size or self._calls >= self.EVERY

    def state_dict(self) -> dict[str, Any]:
        """Returns a dict of tensors and numbers."""
        return {"size": self._size, "calls": self._calls, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` on this object's device."""
        self._size, self._calls, self._next = state["size"], state["calls"], state["next"].to(self._next.device)

    def places(self, ended: Tensor) -> Tensor:
        """Returns indices ``[W]`` of initial states for ended worlds ``[W]`` bool; arbitrary ones for the others."""
        self._calls += 1
        rank = ended.cumsum(0)
        places = (self._next + rank - 1) % self._size
        self._next = (self._next + rank[-1]) % self._size
        return places


def put_where(
    ended: Tensor, values: Iterable[tuple[str, Tensor]], fresh: Iterable[tuple[str, Tensor]], places: Tensor
) -> None:
    """Overwrites ended worlds of a state ``[..., W]`` in place with the worlds at ``places`` of another state.

    Tensors of one type are chosen as one, since a GPU starts a kernel for every operation.
    """
    kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for (_, value), (_, new) in zip(values, fresh, strict=True):
        kinds.setdefault(value.dtype, []).append((value.view(-1, value.shape[-1]), new.view(-1, new.shape[-1])))
    for pairs in kinds.values():
        old, begun = [rows for rows, _ in pairs], torch.cat([rows for _, rows in pairs]).index_select(-1, places)
        left = torch.where(ended, begun, torch.cat(old))
        torch.split_with_sizes_copy(left, [len(rows) for rows in old], out=old)


def chosen(ended: Tensor, fresh: Tensor, places: Tensor, old: Tensor) -> Tensor:
    """Returns new tensors ``[W, ...]``: ``fresh`` at ``places`` for ended worlds, the old values for others."""
    return torch.where(ended.view(-1, *[1] * (old.dim() - 1)), fresh.index_select(0, places), old)
