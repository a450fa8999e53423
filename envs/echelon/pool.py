"""Beginnings of episodes made in advance, many at once, so that a reset of a few worlds costs little."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..waiting import Turns
from .match import Match, Shown
from .state import State

_SIZE = 128


class StartPool:
    """Unused beginnings.

    Args:
        make: makes so many.
    """

    def __init__(self, make: Callable[[int], tuple[Match, Shown]]) -> None:
        self._make = make
        self.clear()

    def clear(self) -> None:
        """Forgets all: the next ones are made anew."""
        self._start: tuple[Match, Shown] | None = None
        self._turns = Turns(0, torch.device("cpu"))
        self._used = 0

    def take(self, count: int) -> tuple[Match, Shown, slice]:
        """``count`` unused ones: some beginnings, what they show, and where among them they are."""
        if self._start is None or self._used + count > len(self._start[1].observation):
            self._start, self._used = self._make(max(count, _SIZE)), 0
        self._used += count
        return *self._start, slice(self._used - count, self._used)

    def take_where(self, ended: Tensor) -> tuple[Match, Shown, Tensor]:
        """Beginnings, what they show, and which of them each of the worlds ``[W]`` bool gets that have ended."""
        if self._start is None or self._turns.over:
            self._start = self._make(max(len(ended), _SIZE))
            self._turns = Turns(len(self._start[1].observation), ended.device)
        return *self._start, self._turns.places(ended)

    def states(self) -> list[State]:
        """The states of the beginnings at hand."""
        return [] if self._start is None else [self._start[0].state]

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers."""
        if self._start is None:
            return {"used": 0}
        match, shown = self._start
        kept = {name: value for name, value in shown._asdict().items() if value is not None}
        return {"used": self._used, "match": dict(match.items()), "shown": kept}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None) -> None:
        """Restores :meth:`state_dict`."""
        self._start, self._used = None, state["used"]
        if "match" in state:
            match = Match.from_items({name: value.to(device) for name, value in state["match"].items()})
            shown = {name: value.to(device) for name, value in state["shown"].items()}
            self._start = match, Shown(**{"mask": None} | shown)
