"""Uniform replay of flat transitions on TorchRL's lazy tensor storage."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage

from rlstack.collection.devices import indexed
from rlstack.config import ConfigError

Leaves = dict[str, Any]
"""Tensors under their keys, nested as in the tensordict they come from."""


class Replay:
    """Uniform replay of flat transitions (Lin 1992), with a state that fits into a checkpoint.

    The storage's tensors are written and read directly: for small networks the calls around them would cost more than
    the copies.

    Attributes:
        cursor: storage position that is written next.

    Args:
        capacity: transitions kept, the oldest are overwritten.
        batch_size: of a sample, drawn with replacement.
        device: of samples.
        storage_device: of the storage and the random numbers, ``device`` by default. From CPU memory to a GPU samples
            travel through pinned memory, without waiting for their arrival.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        device: torch.device | str,
        storage_device: torch.device | str | None = None,
    ) -> None:
        if capacity < 1 or batch_size < 1:
            raise ConfigError(f"a replay needs a positive capacity and batch size, got {capacity} and {batch_size}")
        self.capacity, self.batch_size = capacity, batch_size
        self.device = indexed(device)
        self.storage_device = self.device if storage_device is None else indexed(storage_device)
        self._pinned = self.storage_device.type == "cpu" and self.device.type == "cuda"
        self._storage = LazyTensorStorage(capacity, device=self.storage_device)
        self._leaves: Leaves = {}
        self._size = 0
        self.cursor = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, transitions: TensorDictBase) -> None:
        """Adds a flat batch ``[N]`` from any device; of more than ``capacity`` only the last count.

        Raises:
            ConfigError: keys differ from those of earlier transitions.
        """
        count = transitions.batch_size[0]
        if count == 0:
            return
        if count > self.capacity:
            transitions, count = transitions[-self.capacity :], self.capacity
        if not self._leaves:
            self._allocate(transitions)
        here = min(count, self.capacity - self.cursor)
        if here == count:
            _write(self._leaves, transitions, self.cursor)
        else:
            _write(self._leaves, transitions[:here], self.cursor)
            _write(self._leaves, transitions[here:], 0)
        self.cursor = (self.cursor + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def sample(self) -> TensorDict:
        """A batch ``[batch_size]`` on ``device``, drawn with the global generator of ``storage_device``.

        Raises:
            ConfigError: the replay is empty.
        """
        self._check_filled()
        return self.take(torch.randint(self._size, (self.batch_size,), device=self.storage_device))

    def take(self, index: Tensor, keys: tuple[str, ...] | None = None) -> TensorDict:
        """The transitions at storage positions ``index [N]`` (on ``storage_device``), as copies on ``device``.

        Args:
            index: int64 positions of the filled part.
            keys: top-level entries wanted, all by default.
        """
        leaves = self._leaves if keys is None else {key: self._leaves[key] for key in keys}
        # The public constructor validates every entry, which costs as much as gathering them.
        return TensorDict._new_unsafe(self._gather(leaves, index), batch_size=index.shape, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The filled part of the storage and the write position; views: save or copy before the next extend."""
        return {"transitions": _filled(self._leaves, self._size), "cursor": self.cursor, "capacity": self.capacity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a replay of the same capacity and, once it has held some, transitions.

        Raises:
            ConfigError: the state does not fit.
        """
        data = self._checked(state)
        # Allocated tensors stay, so that a load needs no second storage's memory.
        self._size = self.cursor = 0
        if data is not None:
            self.extend(data)
        self.cursor = state["cursor"]

    def _allocate(self, transitions: TensorDictBase) -> None:
        first = transitions[:1].to(self.storage_device)
        self._storage.set(range(1), first)
        self._leaves = _nested(self._storage._storage)

    def _check_filled(self) -> None:
        if self._size == 0:
            raise ConfigError("an empty replay has nothing to sample: extend it first")

    def _gather(self, leaves: Leaves, index: Tensor) -> Leaves:
        return {
            key: self._gather(leaf, index) if isinstance(leaf, dict) else self._rows(leaf, index)
            for key, leaf in leaves.items()
        }

    def _rows(self, leaf: Tensor, index: Tensor) -> Tensor:
        if self._pinned:
            # Torch keeps a pinned block from being reused until the copy out of it is done.
            shape = (index.shape[0], *leaf.shape[1:])
            pinned = torch.empty(shape, dtype=leaf.dtype, pin_memory=True)
            return torch.index_select(leaf, 0, index, out=pinned).to(self.device, non_blocking=True)
        rows = leaf.index_select(0, index)
        return rows if self.device == self.storage_device else rows.to(self.device)

    def _checked(self, state: dict[str, Any]) -> TensorDict | None:
        """The transitions of a state that fits, None if it has none."""
        if missing := {"transitions", "cursor", "capacity"} - state.keys():
            raise ConfigError(f"not the state of a replay: {', '.join(sorted(missing))} missing")
        capacity, cursor = state["capacity"], state["cursor"]
        if capacity != self.capacity:
            raise ConfigError(f"the state of a replay of capacity {capacity} does not fit one of {self.capacity}")
        data = TensorDict(state["transitions"]).auto_batch_size_(1) if state["transitions"] else None
        size = data.batch_size[0] if data is not None and data.batch_size else 0
        if not (cursor == size < capacity or 0 <= cursor < size == capacity):
            raise ConfigError(f"not the state of a replay: {size} of {capacity} transitions, next written at {cursor}")
        if data is not None and self._leaves and (differing := _layout(_nested(data)) ^ _layout(self._leaves)):
            names = sorted({name for name, _, _ in differing})
            raise ConfigError(f"the state's transitions are of another kind: {', '.join(names)} differ")
        return data


def _nested(data: TensorDictBase) -> Leaves:
    return {key: _nested(value) if isinstance(value, TensorDictBase) else value for key, value in data.items()}


def _filled(leaves: Leaves, size: int) -> Leaves:
    if size == 0:
        return {}
    return {key: _filled(leaf, size) if isinstance(leaf, dict) else leaf[:size] for key, leaf in leaves.items()}


def _layout(leaves: Leaves, prefix: str = "") -> set[tuple[str, torch.Size, torch.dtype]]:
    """Name, shape without the batch, and dtype of every tensor."""
    found = set()
    for key, leaf in leaves.items():
        if isinstance(leaf, dict):
            found |= _layout(leaf, f"{prefix}{key}/")
        else:
            found.add((prefix + key, leaf.shape[1:], leaf.dtype))
    return found


def _write(leaves: Leaves, data: TensorDictBase, start: int) -> None:
    """Copies ``data [N]`` into positions from ``start`` on."""
    if leaves.keys() != set(data.keys()):
        raise ConfigError(f"transitions of a replay keep their keys: {sorted(leaves)}, got {sorted(data.keys())}")
    for key, value in data.items():
        leaf = leaves[key]
        if isinstance(leaf, dict):
            _write(leaf, value, start)
            continue
        shape, stored = value.shape, leaf.shape
        if shape[1:] != stored[1:]:  # copying would broadcast
            raise ConfigError(f"transitions of a replay keep their shapes: {key} {[*stored[1:]]}, got {[*shape[1:]]}")
        leaf[start : start + shape[0]].copy_(value)
