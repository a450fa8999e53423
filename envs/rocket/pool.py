"""Beginnings of episodes made in advance, many at once, so that a reset of a few worlds costs little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..waiting import Turns
from .match import Match

_SIZE = 128


class Start(NamedTuple):
    """Matches at their beginning, and what they show."""

    match: Match
    observation: Tensor  # [n, C, size]


class StartPool:
    """Unused beginnings.

    Args:
        make: makes so many.
    """

    def __init__(self, make: Callable[[int], Start]) -> None:
        self._make = make
        self.clear()

    def clear(self) -> None:
        """Forgets all: the next ones are made from another seed."""
        self._start: Start | None = None
        self._turns = Turns(0, torch.device("cpu"))
        self._used = 0

    def take(self, count: int) -> tuple[Start, slice]:
        """``count`` unused ones: some beginnings and where among them they are."""
        if self._start is None or self._used + count > len(self._start.observation):
            self._start, self._used = self._make(max(count, _SIZE)), 0
        self._used += count
        return self._start, slice(self._used - count, self._used)

    def take_where(self, ended: Tensor) -> tuple[Start, Tensor]:
        """Some beginnings, and which of them each of the worlds ``[W]`` bool gets that have ended."""
        if self._start is None or self._turns.over:
            self._start = self._make(max(len(ended), _SIZE))
            self._turns = Turns(len(self._start.observation), ended.device)
        return self._start, self._turns.places(ended)

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers."""
        if self._start is None:
            return {"used": 0}
        return {"used": self._used, "match": dict(self._start.match.items()), "shown": self._start.observation}

    def load_state_dict(self, saved: dict[str, Any], device: torch.device) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        if "match" in saved:
            match = Match.from_items({name: value.to(device) for name, value in saved["match"].items()})
            self._start, self._used = Start(match, saved["shown"].to(device)), saved["used"]
