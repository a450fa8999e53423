"""A pool of initial states made in advance, many at once, so that resetting a few worlds costs little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from .waiting import Turns


class EpisodeStart(Protocol):
    """Worlds at the beginning of episodes, with their observations."""

    def __len__(self) -> int:
        """The number of worlds."""

    def saved(self) -> dict[str, Any]:
        """Returns a nested dict of tensors and numbers."""


Made = TypeVar("Made", bound=EpisodeStart)


class StartPool(Generic[Made]):
    """A pool of unused initial states.

    Args:
        make: function that makes ``n`` of them.
        restored: inverse of :meth:`EpisodeStart.saved`, on a device.
        size: number made at once, or more if a call needs more.

    Attributes:
        opening: the current initial states; None before the first call.
    """

    def __init__(
        self, make: Callable[[int], Made], restored: Callable[[dict[str, Any], Any], Made], size: int = 128
    ) -> None:
        self._make, self._restored, self._size = make, restored, size
        self.clear()

    def clear(self) -> None:
        """Empties the pool, after a change of rules or seed."""
        self.opening: Made | None = None
        self._turns = Turns(0, torch.device("cpu"))
        self._used = 0

    @contextmanager
    def one_by_one(self) -> Iterator[None]:
        """A context in which no more are made than needed, so that they depend on the seed alone."""
        size, self._size = self._size, 1
        try:
            yield
        finally:
            self._size = size
            self.clear()

    def take(self, count: int) -> tuple[Made, slice]:
        """Returns initial states, and the slice of ``count`` unused ones among them."""
        if self.opening is None or self._used + count > len(self.opening):
            self.opening, self._used = self._make(max(count, self._size)), 0
        self._used += count
        return self.opening, slice(self._used - count, self._used)

    def take_where(self, ended: Tensor) -> tuple[Made, Tensor]:
        """Returns initial states, and the index of one for each ended world (``[W]`` bool)."""
        if self.opening is None or self._turns.over:
            self.opening = self._make(max(len(ended), self._size))
            self._turns = Turns(len(self.opening), ended.device)
        return self.opening, self._turns.places(ended)

    def state_dict(self) -> dict[str, Any]:
        """Returns a nested dict of tensors and numbers."""
        turns = {} if self._turns.over else {"turns": self._turns.state_dict()}
        kept = {} if self.opening is None or not (self._used or turns) else self.opening.saved()
        return {"used": self._used, **turns, **kept}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        if "turns" in state:
            self._turns = Turns(0, device or torch.device("cpu"))
            self._turns.load_state_dict(state["turns"])
        if state["used"] or "turns" in state:
            self.opening, self._used = self._restored(state, device), state["used"]
