"""Beginnings of episodes made in advance, many at once, so that a reset of a few worlds costs little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from .waiting import Turns


class EpisodeStart(Protocol):
    """Worlds at their beginning, and what they show."""

    def __len__(self) -> int:
        """The number of worlds."""

    def saved(self) -> dict[str, Any]:
        """A nested dict of tensors and numbers."""


Made = TypeVar("Made", bound=EpisodeStart)


class StartPool(Generic[Made]):
    """Unused beginnings.

    Args:
        make: makes so many.
        restored: the inverse of :meth:`EpisodeStart.saved`, on a device.
        size: how many are made at once, or more if more are wanted.

    Attributes:
        opening: the beginnings at hand, None before any were wanted.
    """

    def __init__(
        self, make: Callable[[int], Made], restored: Callable[[dict[str, Any], Any], Made], size: int = 128
    ) -> None:
        self._make, self._restored, self._size = make, restored, size
        self.clear()

    def clear(self) -> None:
        """Forgets all: the next ones are made anew, by other rules or from another seed."""
        self.opening: Made | None = None
        self._turns = Turns(0, torch.device("cpu"))
        self._used = 0

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        """While entered, no more are made than are wanted: what is made follows from the seed alone."""
        size, self._size = self._size, 1
        try:
            yield
        finally:
            self._size = size
            self.clear()

    def take(self, count: int) -> tuple[Made, slice]:
        """``count`` unused ones: some beginnings and where among them they are."""
        if self.opening is None or self._used + count > len(self.opening):
            self.opening, self._used = self._make(max(count, self._size)), 0
        self._used += count
        return self.opening, slice(self._used - count, self._used)

    def take_where(self, ended: Tensor) -> tuple[Made, Tensor]:
        """Some beginnings, and which of them each of the worlds ``[W]`` bool gets that have ended."""
        if self.opening is None or self._turns.over:
            self.opening = self._make(max(len(ended), self._size))
            self._turns = Turns(len(self.opening), ended.device)
        return self.opening, self._turns.places(ended)

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers; those that :meth:`take_where` gives are made anew after a load."""
        return {"used": self._used, **(self.opening.saved() if self.opening is not None and self._used else {})}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        if state["used"]:
            self.opening, self._used = self._restored(state, device), state["used"]
