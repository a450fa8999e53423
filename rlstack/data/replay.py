"""TorchRL's replay buffers (Lin 1992) on storages and a writer that cost little more than the copies they make.

TorchRL's buffers find rows by indexing a ``TensorDict``, which takes longer than copying them: 130 us of CPU time to
write 4 transitions and 90 to draw 64, while the copies take 9 and 13 (``python -m experiments.benchmarks.parts
replay``). The parts here copy tensor by tensor, in the public methods that TorchRL's buffers call, in about a third of
the time. Each part can be replaced by one of TorchRL's; with transforms or another storage, a :class:`Replay` runs
TorchRL's own code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import expand_right
from torch import Tensor
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, RoundRobinWriter, TensorDictReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, SamplerWithoutReplacement

from rlstack.config import ConfigError
from rlstack.envs.foundation.tensors import unchecked

from .samplers import SumTreeSampler, UniformSampler, make_sampler

Leaves = dict[str, Any]
"""Tensors by key, nested as in the tensordict they come from."""

_INVOLVED = ("prefetch", "pin_memory", "sample_unit", "collate_fn")
"""Options of TorchRL's buffers that need more than drawing and copying."""


class Rows(LazyTensorStorage):
    """The common part of :class:`TensorRows` and :class:`MemmapRows`: rows are read and written tensor by tensor.

    The tensors are those of TorchRL's storage, and so is its bookkeeping (length and last position).

    Attributes:
        sample_device: device of the rows that :meth:`rows` and :meth:`get` return for tensors of positions; rows go
            from the CPU to a GPU through pinned memory, without waiting for their arrival.
    """

    sample_device: torch.device
    _leaves: Leaves | None = None
    _filled: Tensor | None = None

    @property
    def filled(self) -> Tensor:
        """The length as a tensor (0-d, float64), which recorded code reads on a GPU."""
        if self._filled is None:
            self._filled = torch.full((), len(self), dtype=torch.float64, device=self.device)
        return self._filled

    @property
    def leaves(self) -> Leaves:
        """The whole tensors ``[max_size, ...]``, filled up to ``len``; an empty dict before the first write."""
        if self._leaves is None and self.initialized:
            held = TensorDict().load_state_dict(self.state_dict()["_storage"], strict=False)  # copies nothing
            self._inner, self._leaves = held.batch_size[1:], _nested(held)
        return self._leaves or {}

    def get(self, index: Any, keys: tuple[str, ...] | None = None) -> Any:
        """Returns rows of the storage.

        Args:
            index: int64 positions ``[N]`` in the filled part, on the storage's device, for copies on
                ``sample_device``; anything else is handled by TorchRL.
            keys: top-level entries to return; default: all.
        """
        if isinstance(index, Tensor) and index.dtype == torch.int64 and index.dim() == 1 and self.leaves:
            return self.rows(index, keys)
        rows = super().get(index)
        return rows if keys is None else rows.select(*keys)

    def rows(self, index: Tensor, keys: tuple[str, ...] | None = None, besides: Leaves | None = None) -> TensorDict:
        """Returns copies of the rows at positions ``index [N]``, with the further entries ``besides [N]``."""
        leaves = self.leaves if keys is None else {key: self.leaves[key] for key in keys}
        inner, besides = self._inner, besides or {}
        if inner:  # a row is a sequence
            besides = {key: expand_right(value, (*index.shape, *inner)) for key, value in besides.items()}
        if self.sample_device == self.device:
            copies = _mapped(leaves, lambda leaf: leaf.index_select(0, index))
        else:
            copies = _mapped(leaves, lambda leaf: self._row(leaf, index))
            besides = {key: value.to(self.sample_device) for key, value in besides.items()}
        # The public constructor validates every entry, which costs as much as gathering them.
        return unchecked(copies | besides, batch_size=(*index.shape, *inner), device=self.sample_device)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Writes rows ``[N]`` from any device.

        Raises:
            ConfigError: keys or shapes differ from those of earlier rows.
        """
        if isinstance(cursor, slice) and isinstance(data, TensorDictBase) and self.leaves:
            _write(self.leaves, data, cursor)
            data = unchecked({}, data.batch_size, self.device)  # nothing is left to be written, only to be booked
        super().set(cursor, data, set_cursor=set_cursor)
        if self._filled is not None:
            self._filled.fill_(len(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._leaves = None

    def loads(self, path: Any) -> None:
        super().loads(path)
        self._leaves = None

    def _row(self, leaf: Tensor, index: Tensor) -> Tensor:
        if self.device.type == "cpu" and self.sample_device.type == "cuda":
            # Torch keeps a pinned block from being reused until the copy out of it is done.
            shape = (index.shape[0], *leaf.shape[1:])
            pinned = torch.empty(shape, dtype=leaf.dtype, pin_memory=True)
            return torch.index_select(leaf, 0, index, out=pinned).to(self.sample_device, non_blocking=True)
        return leaf.index_select(0, index).to(self.sample_device)


class TensorRows(Rows):
    """TorchRL's ``LazyTensorStorage``: rows in memory.

    Args:
        max_size: number of rows kept.
        device: device of the storage.
        sample_device: device of samples; default: ``device``.
    """

    def __init__(
        self, max_size: int, *, device: torch.device | str = "cpu", sample_device: torch.device | str | None = None
    ) -> None:
        super().__init__(max_size, device=indexed(device))
        self.sample_device = self.device if sample_device is None else indexed(sample_device)


class MemmapRows(Rows, LazyMemmapStorage):
    """TorchRL's ``LazyMemmapStorage``: rows in files, which may be larger than memory.

    The files lose their names with the first write, once they are mapped into memory: the system frees their room with
    the storage, or when the program ends, even if it is killed.

    Args:
        max_size: number of rows kept.
        directory: folder of the files; None for the system's temporary directory.
        sample_device: device of samples; default: the CPU.
    """

    def __init__(
        self, max_size: int, *, directory: Path | str | None = None, sample_device: torch.device | str | None = None
    ) -> None:
        try:
            tempfile.TemporaryFile(dir=directory).close()
        except OSError as error:
            raise ConfigError(f"agent.replay.directory: {directory} cannot be written to ({error.strerror})") from None
        # TorchRL's own clean-up would replace the signal handlers of the process.
        LazyMemmapStorage.__init__(self, max_size, auto_cleanup=False)
        self.directory = directory or tempfile.gettempdir()
        self.sample_device = self.device if sample_device is None else indexed(sample_device)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Writes as :class:`Rows` does.

        Raises:
            ConfigError: the disk has no room for all rows; a write to a full disk would end the process.
        """
        if self.initialized:
            super().set(cursor, data, set_cursor=set_cursor)
            return
        if isinstance(data, TensorDictBase) and len(data):
            need, free = data[:1].bytes() * self.max_size, shutil.disk_usage(self.directory).free
            if need > free:
                where = f"{self.directory} has {free / 1e9:,.1f} GB left"
                raise ConfigError(f"agent.replay.directory: {self.max_size:,} rows take {need / 1e9:,.1f} GB, {where}")
        with tempfile.TemporaryDirectory(prefix="replay_", dir=self.directory) as self.scratch_dir:
            super().set(cursor, data, set_cursor=set_cursor)


class RangeWriter(RoundRobinWriter):
    """TorchRL's ``RoundRobinWriter``, which overwrites the oldest rows; it writes a batch to a range of positions.

    Of a batch larger than the storage, only the last rows are kept.
    """

    def extend(self, data: Any) -> Tensor:
        """Writes rows ``[N]`` and returns their positions, int64 ``[N]`` on the CPU."""
        capacity, written = self.storage.max_size, self.state_dict()
        start, count = int(written["_cursor"]), len(data)
        if count > capacity:
            data, count = data[-capacity:], capacity
        if count == 0:
            return torch.zeros(0, dtype=torch.int64)
        here = min(count, capacity - start)
        if here == count:
            self.storage.set(slice(start, start + count), data)
        else:
            self.storage.set(slice(start, capacity), data[:here])
            self.storage.set(slice(0, count - here), data[here:])
        self.load_state_dict({"_cursor": (start + count) % capacity, "_write_count": written["_write_count"] + count})
        index = torch.arange(start, start + count)
        return index if here == count else index % capacity

    @property
    def cursor(self) -> int:
        """The position that is written next."""
        return int(self.state_dict()["_cursor"])

    def register_storage(self, storage: Any) -> None:
        super().register_storage(storage)
        self.storage = storage


class Replay(TensorDictReplayBuffer):
    """A TorchRL replay buffer of flat tensordicts, with a state that fits into a checkpoint.

    Storage, sampler and writer may be any of TorchRL's; with :class:`Rows`, a :class:`RangeWriter` and no transforms,
    the buffer adds almost nothing to the cost of the copies. Samples have the entry ``index``, and with a
    :class:`SumTreeSampler` also ``priority_weight``, as TorchRL's do.

    Args:
        storage: :class:`TensorRows`, :class:`MemmapRows` or any of TorchRL's.
        batch_size: size of a sample.
        steps: the number of steps in an entry, if entries are sequences; ``len`` counts steps.
        options: see ``torchrl.data.TensorDictReplayBuffer``; the default writer is a :class:`RangeWriter`.
    """

    def __init__(self, *, storage: Any, batch_size: int | None = None, steps: int = 1, **options: Any) -> None:
        options.setdefault("writer", RangeWriter())
        sampler = options.get("sampler")
        if isinstance(sampler, SumTreeSampler) and sampler.tree.capacity != storage.max_size:
            fault = f"one for {sampler.tree.capacity:,} does not fit a storage of {storage.max_size:,}"
            raise ConfigError(f"sampler: a SumTreeSampler has the capacity of its storage, {fault}")
        super().__init__(storage=storage, batch_size=batch_size, **options)
        self.steps = steps
        self._plain = not len(self.transform) and not any(options.get(name) for name in _INVOLVED)

    def __len__(self) -> int:
        return len(self.storage) * self.steps

    @property
    def direct(self) -> bool:
        """Whether the parts need nothing else from TorchRL's buffer, so that they can be called directly."""
        return self._plain and isinstance(self.storage, Rows)

    def add(self, data: TensorDictBase) -> int:
        """Adds one entry, without a batch dimension, as :meth:`extend` does, and returns its position."""
        return int(self.extend(data.unsqueeze(0))[0])

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Sets the generator of random numbers, on the storage's device; None for its global one."""
        super().set_rng(generator)
        self.sampler.generator = generator

    def append_transform(self, transform: Any, *, invert: bool = False) -> Replay:
        self._plain = False
        super().append_transform(transform, invert=invert)
        return self

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Replay:
        self._plain = False
        super().insert_transform(index, transform, invert=invert)
        return self

    def extend(self, tensordicts: TensorDictBase, *, update_priority: bool | None = None) -> Tensor:
        """Adds entries ``[N]`` from any device and returns their positions ``[N]``.

        Entries with a ``priority_key`` get that priority, others the largest one so far.

        Raises:
            ConfigError: keys or shapes differ from those of earlier entries.
        """
        if not (self.direct and isinstance(self.writer, RangeWriter)):
            return super().extend(tensordicts[-self.storage.max_size :], update_priority=update_priority)
        sampler, start = self.sampler, self.writer.cursor
        index = self.writer.extend(tensordicts)
        if not isinstance(sampler, SumTreeSampler):
            sampler.extend(index)
            return index
        sampler.renew(start, len(index))
        if update_priority is not False and len(index):
            error = tensordicts.get(self.priority_key, None)
            if error is not None:
                sampler.update_priority(index, error[-len(index) :])
        return index

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draws a batch ``[batch_size]`` of copies with the global generator of the storage's device.

        Raises:
            ConfigError: the buffer is empty, or no batch size has been given.
        """
        if len(self.storage) == 0:
            raise ConfigError("an empty replay has nothing to sample: extend it first")
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ConfigError("give batch_size to Replay or to sample")
        by_position = type(self.sampler) in (RandomSampler, UniformSampler, SamplerWithoutReplacement)
        by_position |= isinstance(self.sampler, SumTreeSampler)  # others, such as TorchRL's of slices, may draw no [N]
        if return_info or not self.direct or not by_position:
            return super().sample(batch_size, return_info, include_info)
        index, info = self.sampler.sample(self.storage, size)
        return self.storage.rows(index, besides={"index": index, **info})

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of a sample's entries to their errors, which a loss wrote under ``priority_key``.

        Raises:
            ConfigError: the errors are missing.
        """
        if not isinstance(self.sampler, SumTreeSampler):
            super().update_tensordict_priority(data)
            return
        error = data.get(self.priority_key, None)
        if error is None:
            raise ConfigError(f"no priorities: the batch has no {self.priority_key!r}, call the loss on it first")
        self.update_priority(data.get("index"), error)

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the filled part of the storage, the write position, and the states of sampler and transforms.

        Its tensors are views: save or copy them before the next extend. With a storage of TorchRL's, the state is
        TorchRL's.
        """
        if not isinstance(self.storage, Rows):
            return super().state_dict()
        held = len(self.storage)
        state: dict[str, Any] = {
            "transitions": _mapped(self.storage.leaves, lambda leaf: leaf[:held]) if held else {},
            "cursor": self.writer.state_dict()["_cursor"],
            "capacity": self.storage.max_size,
            "sampler": dict(self.sampler.state_dict()),
        }
        transforms = dict(self.transform.state_dict())
        return state | ({"transforms": transforms} if transforms else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a buffer with the same capacity and, once it has held any, the same entries.

        Raises:
            ConfigError: the state does not fit.
        """
        if not isinstance(self.storage, Rows):
            super().load_state_dict(state_dict)
            return
        data = self._checked(state_dict)
        # Allocated tensors are reused, so that loading needs no memory for a second storage.
        self.empty()
        if data is not None:
            self.writer.extend(data)
        written = {"_cursor": state_dict["cursor"], "_write_count": len(self.storage)}
        self.writer.load_state_dict(written)
        self.sampler.load_state_dict(state_dict.get("sampler", state_dict))  # earlier versions mixed it with the rest
        if "transforms" in state_dict:
            self.transform.load_state_dict(state_dict["transforms"])

    def _checked(self, state: dict[str, Any]) -> TensorDict | None:
        """Returns the entries of a state after checking that it fits; None if it has none."""
        if missing := {"transitions", "cursor", "capacity"} - state.keys():
            raise ConfigError(f"not the state of a replay: {', '.join(sorted(missing))} missing")
        if isinstance(self.sampler, SumTreeSampler) and "tree" not in state.get("sampler", state):
            raise ConfigError("a prioritised replay cannot continue from a uniform replay's state")
        capacity, cursor, held = state["capacity"], state["cursor"], self.storage.leaves
        if capacity != self.storage.max_size:
            raise ConfigError(
                f"the state of a replay of capacity {capacity} does not fit one of {self.storage.max_size}"
            )
        data = TensorDict(state["transitions"]).auto_batch_size_(1) if state["transitions"] else None
        size = data.batch_size[0] if data is not None and data.batch_size else 0
        if not (cursor == size < capacity or 0 <= cursor < size == capacity):
            raise ConfigError(f"not the state of a replay: {size} of {capacity} transitions, next written at {cursor}")
        if data is not None and held and (differing := _layout(_nested(data)) ^ _layout(held)):
            names = sorted({name for name, _, _ in differing})
            raise ConfigError(f"the state's transitions are of another kind: {', '.join(names)} differ")
        return data


def make_replay(
    capacity: int,
    batch_size: int,
    device: torch.device | str = "cpu",
    storage_device: torch.device | str | None = None,
    *,
    storage: Literal["LazyTensorStorage", "LazyMemmapStorage"] = "LazyTensorStorage",
    directory: Path | str | None = None,
    sampler: str | Mapping[str, Any] = "uniform",
    alpha: float = 0.6,
    eps: float = 1e-6,
    steps: int = 1,
) -> Replay:
    """Makes a replay buffer from the options of a configuration.

    Args:
        capacity: number of transitions kept; the oldest are overwritten.
        batch_size: size of a sample, drawn with replacement.
        device: device of samples.
        storage_device: device of the storage and the random numbers; default: ``device``. Files are read by the CPU.
        storage: :class:`TensorRows` or :class:`MemmapRows`, by the name of its base class in TorchRL.
        directory: see :class:`MemmapRows`.
        sampler: see :func:`make_sampler`, as for ``alpha`` and ``eps``.
        steps: length of each entry, for sequences; capacity and batch size then count steps, and are rounded down.
    """
    capacity, batch_size = capacity // steps, batch_size // steps
    if capacity < 1 or batch_size < 1:
        raise ConfigError(f"a replay needs a positive capacity and batch size, got {capacity} and {batch_size}")
    rows: Rows
    if storage == "LazyMemmapStorage":
        if storage_device is not None and indexed(storage_device).type != "cpu":
            raise ConfigError(f"agent.replay_device: LazyMemmapStorage lies on disk, cpu or null, got {storage_device}")
        rows = MemmapRows(capacity, directory=directory, sample_device=device)
    else:
        rows = TensorRows(capacity, device=device if storage_device is None else storage_device, sample_device=device)
    draws = make_sampler(sampler, capacity=capacity, alpha=alpha, eps=eps, device=rows.device)
    return Replay(storage=rows, sampler=draws, batch_size=batch_size, steps=steps)


def _nested(data: TensorDictBase) -> Leaves:
    # Memory-mapped tensors have their own class, and every call on it goes through Python.
    return {
        key: _nested(value) if isinstance(value, TensorDictBase) else value.as_subclass(Tensor)
        for key, value in data.items()
    }


def _mapped(leaves: Leaves, function: Callable[[Tensor], Tensor]) -> Leaves:
    return {key: _mapped(leaf, function) if type(leaf) is dict else function(leaf) for key, leaf in leaves.items()}


def _layout(leaves: Leaves, prefix: str = "") -> set[tuple[str, torch.Size, torch.dtype]]:
    """Returns name, shape without the batch, and dtype of every tensor."""
    kinds = set()
    for key, leaf in leaves.items():
        if isinstance(leaf, dict):
            kinds |= _layout(leaf, f"{prefix}{key}/")
        else:
            kinds.add((prefix + key, leaf.shape[1:], leaf.dtype))
    return kinds


def _write(leaves: Leaves, data: TensorDictBase, where: slice) -> None:
    """Copies ``data [N]`` into a range of N positions."""
    if leaves.keys() != set(data.keys()):
        raise ConfigError(f"transitions of a replay keep their keys: {sorted(leaves)}, got {sorted(data.keys())}")
    for key, value in data.items():
        leaf = leaves[key]
        if type(leaf) is dict:
            _write(leaf, value, where)
            continue
        if value.shape[1:] != leaf.shape[1:]:  # copying would broadcast
            stored, given = [*leaf.shape[1:]], [*value.shape[1:]]
            raise ConfigError(f"transitions of a replay keep their shapes: {key} {stored}, got {given}")
        leaf[where] = value


# -- devices by name -----------------------------------------------------------------------------------------------


def usable_device(name: str, key: str, allowed: str) -> torch.device:
    """Returns a device by its name, with its index, as tensors report it.

    Args:
        name: name of the device in torch.
        key: option in which the name was given, for messages.
        allowed: allowed values of that option, for messages.

    Raises:
        ConfigError: not a device, or one that is not available.
    """
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ConfigError(f"{key}: {name!r} holds no data; allowed: {allowed}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}: {name!r} cannot be used ({reason}); allowed: {allowed}") from None
    return indexed(device)


def indexed(device: torch.device | str) -> torch.device:
    """Returns the device with its index, as tensors report it."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
