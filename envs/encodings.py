"""The arrays that an observation space consists of, and how its values are written into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    import torch
    from torchrl.data import TensorSpec

Array = np.ndarray[Any, Any]
Row = int | tuple[int, ...]

_INFINITE = 1e30
"""Bounds beyond this are no bounds: environments write the largest float where they know none."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
        path: keys of Dict and indices of Tuple spaces that lead to it, empty for a space that is one array.
        shape, dtype: of its encoding.
        low, high: bounds of the encoding, ``shape``; infinite where there are none.
        encode: ``encode(array, row, value)`` writes a value of the space into ``array[row]``.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Array
    high: Array
    encode: Callable[[Array, Row, Any], None]

    @property
    def key(self) -> tuple[str, ...]:
        """The path as keys of a tensordict."""
        return tuple(str(part) for part in self.path)

    def take(self, observation: Any) -> Any:
        """This leaf's value in an observation of the whole space."""
        for part in self.path:
            observation = observation[part]
        return observation

    def spec(self, lead: tuple[int, ...], device: torch.device | None) -> TensorSpec:
        """The spec of a batch ``[*lead]``."""
        import torch
        from torchrl.data import Bounded, Unbounded

        low, high = (torch.from_numpy(end).to(device) for end in (self.low, self.high))
        own: dict[str, Any] = {"shape": (*lead, *self.shape), "dtype": low.dtype, "device": device}
        if not finite(self.low, self.high):
            return Unbounded(**own)
        return Bounded(low.expand(own["shape"]).clone(), high.expand(own["shape"]).clone(), **own)


def leaves_of(space: spaces.Space[Any], dtype: np.dtype[Any], path: tuple[Any, ...] = ()) -> list[Leaf]:
    """The leaves of a space, in its own order; see :class:`envs.spaces.Observations`.

    Raises:
        ValueError: a space, named in the message, that has no encoding.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [leaf for key, part in parts for leaf in leaves_of(part, dtype, (*path, key))]
    if isinstance(space, spaces.Box):
        return [_box(space, dtype, path)]
    if isinstance(space, spaces.Discrete):
        return [_vector(path, int(space.n), dtype, _one_hot(np.zeros((), int), np.asarray(space.start)))]
    if isinstance(space, spaces.MultiDiscrete):
        nvec = space.nvec.reshape(-1)
        offsets = np.cumsum(nvec) - nvec
        return [_vector(path, int(nvec.sum()), dtype, _one_hot(offsets, space.start.reshape(-1)))]
    if isinstance(space, spaces.MultiBinary):
        return [_vector(path, int(np.prod(space.shape)), dtype, _flat)]
    where = f" of observation entry {'.'.join(map(str, path))!r}" if path else ""
    allowed = "Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    raise ValueError(f"observation space {space}{where} is not supported, allowed: {allowed}")


def _box(space: spaces.Box, dtype: np.dtype[Any], path: tuple[Any, ...]) -> Leaf:
    image = space.dtype == np.uint8 and len(space.shape) >= 2
    own = np.dtype(np.uint8) if image else dtype
    with np.errstate(over="ignore"):
        low, high = (np.asarray(end).astype(own).reshape(space.shape or (1,)) for end in (space.low, space.high))
    return Leaf(path, low.shape, own, low, high, copy_value)


def _vector(path: tuple[Any, ...], size: int, dtype: np.dtype[Any], encode: Callable[[Array, Row, Any], None]) -> Leaf:
    return Leaf(path, (size,), dtype, np.zeros(size, dtype), np.ones(size, dtype), encode)


def copy_value(array: Array, row: Row, value: Any) -> None:
    """The encoding of what is an array already."""
    array[row] = value


def _flat(array: Array, row: Row, value: Any) -> None:
    array[row] = np.asarray(value).reshape(-1)


def _one_hot(offsets: Array, start: Array) -> Callable[[Array, Row, Any], None]:
    shift = offsets - start

    def encode(array: Array, row: Row, value: Any) -> None:
        target = array[row]
        target[:] = 0
        target[np.asarray(value).reshape(shift.shape) + shift] = 1

    return encode


def finite(low: Array, high: Array) -> bool:
    """All bounds are numbers to reckon with."""
    if low.dtype == np.uint8:
        return True
    return bool((np.abs(low) < _INFINITE).all() and (np.abs(high) < _INFINITE).all())
