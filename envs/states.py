"""The state of a batch of worlds, tensors by name whose last dimension is the world, and a pool of initial states.

Initial states are made in advance, many at once, so that resetting a few worlds costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

Fields = TypeVar("Fields", bound="Record")


@dataclass
class Record:
    """Tensors by name, and nested records with the types ``records``."""

    records: ClassVar[dict[str, type[Record]]] = {}

    def map(self: Fields, function: Callable[[Tensor], Tensor]) -> Fields:
        """Returns a new record with ``function`` applied to every tensor."""
        return type(self)(
            **{name: value.map(function) if isinstance(value, Record) else function(value) for name, value in self.own}
        )

    def replace(self: Fields, **changes: Any) -> Fields:
        """Returns a new record that shares all except the given entries."""
        return replace(self, **changes)

    @property
    def own(self) -> list[tuple[str, Any]]:
        """Returns names and values."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def items(self, prefix: str = "") -> list[tuple[str, Tensor]]:
        """Returns names such as ``cars.boost`` and tensors."""
        entries: list[tuple[str, Tensor]] = []
        for name, value in self.own:
            entries += value.items(f"{prefix}{name}.") if isinstance(value, Record) else [(prefix + name, value)]
        return entries

    @classmethod
    def from_items(cls: type[Fields], items: Mapping[str, Tensor]) -> Fields:
        """Inverts :meth:`items`."""
        groups: dict[str, dict[str, Tensor]] = {name: {} for name in cls.records}
        for name, value in items.items():
            group, _, key = name.partition(".")
            if key:
                groups[group][key] = value
        inner = {name: kind.from_items(groups[name]) for name, kind in cls.records.items()}
        return cls(**inner, **{name: value for name, value in items.items() if "." not in name})

    def copy_worlds(self, target: Tensor, other: Record, source: Tensor | slice) -> None:
        """Overwrites the worlds ``target`` (indices) in place with the worlds ``source`` of another record."""
        for (_, value), (_, new) in zip(self.items(), other.items()):
            value[..., target] = new[..., source]


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Returns nested dicts, lists, plain tuples and records with ``function`` applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Record):
        return value.map(function)
    if isinstance(value, dict):
        return {key: mapped(function, entry) for key, entry in value.items()}
    return type(value)(mapped(function, entry) for entry in value) if isinstance(value, list | tuple) else value


# -- initial states ------------------------------------------------------------------------------------------------


class EpisodeStart(Protocol):
    """Worlds at the beginning of episodes, with their observations."""

    def __len__(self) -> int:
        """The number of worlds."""

    def saved(self) -> dict[str, Any]:
        """Returns a nested dict of tensors and numbers."""


@dataclass(frozen=True)
class Opening(Generic[Fields]):
    """Worlds at the beginning of episodes.

    Attributes:
        state: their state, whose last dimension is the world.
        shown: what they show: a tensor, or a list or dict of tensors.
    """

    state: Fields
    shown: Any

    def __len__(self) -> int:
        return self.state.items()[0][1].shape[-1]

    def saved(self) -> dict[str, Any]:
        """Returns a nested dict of tensors."""
        return {"state": dict(self.state.items()), "shown": self.shown}

    @classmethod
    def restored(cls, kind: type[Fields], saved: dict[str, Any], device: torch.device | None) -> Opening[Fields]:
        """Inverts :meth:`saved`; ``kind`` is the class of the state."""
        items = saved["state"] if "state" in saved else saved["match"]  # as version 0.1.0 wrote some
        here = partial(mapped, lambda value: value.to(device))
        return cls(kind.from_items(here(items)), here(saved["shown"]))


class Fetched:
    """A whole number (0-d) on its way from a device, which reading it waits for."""

    def __init__(self, value: Tensor) -> None:
        self._there: torch.cuda.Event | None = None
        host = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda).copy_(value, non_blocking=True)
        if value.is_cuda:
            self._there = torch.cuda.Event()
            self._there.record()
        self._host = host.numpy()  # not as a tensor, which would belong to what recorded steps change

    @property
    def number(self) -> int:
        if self._there is not None:
            self._there.synchronize()
        return int(self._host)


Made = TypeVar("Made", bound=EpisodeStart)


class StartPool(Generic[Made]):
    """A pool of unused initial states.

    Where counting the worlds that end is free, :meth:`take` hands out as many as are asked for. Elsewhere
    :meth:`take_where` assigns them in turn, and begins at the first one again if there are not enough. Every
    :attr:`EVERY` calls the pool looks how many had been used the last time it looked, for which a GPU need not be
    waited for, and makes new ones if it was more than half.

    Args:
        make: function that makes ``n`` of them.
        restored: inverse of :meth:`EpisodeStart.saved`, on a device.
        size: number made at once, or more if a call needs more.

    Attributes:
        opening: the current initial states; None before the first call.
    """

    EVERY = 64

    def __init__(
        self, make: Callable[[int], Made], restored: Callable[[dict[str, Any], Any], Made], size: int = 128
    ) -> None:
        self._make, self._restored, self._size = make, restored, size
        self.clear()

    def clear(self) -> None:
        """Empties the pool, after a change of rules or seed."""
        self.opening: Made | None = None
        self._used: int | Tensor = 0
        self._seen: Fetched | None = None  # how many had been used when the pool looked last
        self._calls = 0  # of take_where until the pool looks again

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
        used = int(self._used)
        if self.opening is None or used + count > len(self.opening):
            self.opening, used = self._make(max(count, self._size)), 0
        self._used = used + count
        return self.opening, slice(used, self._used)

    @property
    def is_due(self) -> bool:
        """Whether the next call of :meth:`take_where` may make new ones."""
        return self.opening is None or not self._calls

    def make_ready(self, worlds: int, calls: int, device: torch.device | None) -> None:
        """Makes sure that none are made during the next calls of :meth:`take_where`.

        Args:
            worlds: number of worlds.
            calls: number of these calls.
        """
        if self.opening is None:
            self._used = torch.zeros((), dtype=torch.int64, device=device)
            self.opening = self._make(max(worlds, self._size))
        elif self._calls >= calls:
            return
        elif self._seen is not None and 2 * self._seen.number > len(self.opening):
            self.opening, self._seen = self._make(len(self.opening)), None
            self._used = torch.zeros((), dtype=torch.int64, device=device)
        else:
            self._seen = Fetched(torch.as_tensor(self._used))
        self._calls = max(self.EVERY, calls)

    def take_where(self, ended: Tensor) -> tuple[Made, Tensor]:
        """Returns initial states, and indices ``[W]`` of one for each ended world (``[W]`` bool)."""
        self.make_ready(len(ended), 1, ended.device)
        assert self.opening is not None
        self._calls -= 1
        rank = ended.cumsum(0)
        places = (self._used + rank - 1) % len(self.opening)
        self._used = self._used + rank[-1]
        return self.opening, places

    def state_dict(self) -> dict[str, Any]:
        """Returns a nested dict of tensors and numbers."""
        counted = isinstance(self._used, Tensor) or self._used > 0
        kept = self.opening.saved() if self.opening is not None and counted else {}
        seen = None if self._seen is None else self._seen.number
        return {"used": self._used, "calls": self._calls, "seen": seen, **kept}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | None) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        used = state["used"]
        if isinstance(used, Tensor) or used:
            self.opening = self._restored(state, device)
            self._used, self._calls = used.to(device) if isinstance(used, Tensor) else used, state.get("calls", 0)
            if (seen := state.get("seen")) is not None:
                self._seen = Fetched(torch.tensor(seen))
