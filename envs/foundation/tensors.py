"""Operations on tensors that do not wait for a GPU, or cost little on a CPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import dispatch
from torch import Tensor

GROUP = "agents"
"""Group of the agents in worlds with several, ``[W, A, ...]``."""
MEMORY = "memory"
"""Recurrent state of a policy, at the root or in the group ``agents``; see :class:`rlstack.envs.world.World`."""
ACTION_MASK = "action_mask"
"""Allowed choices (bool), beside the observation."""
STATE = "state"
"""What only critics may see, in training, beside the observation: of a single agent, or of each agent in the group."""


FREE = {"cpu"}
"""Kinds of devices whose tensors can be read without waiting; tests that imitate a GPU empty this set."""


def looks_are_free(device: torch.device | None) -> bool:
    """Returns whether branching on data is free. On other devices, worlds compute everything under masks."""
    return device is None or device.type in FREE


def shuffled(count: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Returns the numbers from 0 to ``count - 1`` in random order, ``[count]``; by default of the global generator."""
    if looks_are_free(device):
        return torch.randperm(count, generator=generator, device=device)
    return torch.rand(count, generator=generator, device=device).argsort()  # which a CUDA graph can record


_made: dict[tuple[Any, ...], Tensor] = {}


def made_once(make: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Returns ``make(*arguments)``, a constant, which must not be written to; compiled code makes it anew.

    It is kept for ever, since recorded code may read it.
    """
    if torch.compiler.is_compiling():
        return make(*arguments)
    key = (make, *arguments)
    if key not in _made:
        made = _made[key] = make(*arguments)
        if made.is_cuda and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(made.device).synchronize()  # other streams may read it from now on
    return _made[key]


def constant(
    values: Sequence[float], like: Tensor, dims: int | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns numbers as ``[len(values), 1, ...]``, made once, in the type and on the device of ``like``.

    Args:
        dims: number of dimensions after the first; by default those of ``like``, so that the result is broadcastable
            against ``[len(values), *like.shape]``.
    """
    dims = like.dim() if dims is None else dims
    return made_once(_listed, tuple(values), dims, dtype or like.dtype, like.device)


def _listed(values: tuple[float, ...], dims: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device).view(-1, *[1] * dims)


def counting(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns ``[count]``: 0, 1, 2, ... It must not be written to, as it is part of a cached tensor."""
    if torch.compiler.is_compiling():
        return torch.arange(count, dtype=dtype, device=device)
    return made_once(_numbers, max(1024, 1 << (count - 1).bit_length()), dtype, device)[:count]


def _numbers(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=dtype, device=device)


def put_where(
    ended: Tensor, values: Iterable[tuple[str, Tensor]], fresh: Iterable[tuple[str, Tensor]], places: Tensor
) -> None:
    """Overwrites ended worlds of a state ``[..., W]`` in place with the worlds at ``places`` of another state.

    Tensors of one type are chosen as one, since a GPU starts a kernel for every operation.
    """
    kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for (_, value), (_, new) in zip(values, fresh, strict=True):
        kinds.setdefault(value.dtype, []).append((value.view(-1, value.shape[-1]), new.reshape(-1, new.shape[-1])))
    for pairs in kinds.values():
        old, begun = [rows for rows, _ in pairs], torch.cat([rows for _, rows in pairs]).index_select(-1, places)
        left = torch.where(ended, begun, torch.cat(old))
        torch.split_with_sizes_copy(left, [len(rows) for rows in old], out=old)


def chosen(ended: Tensor, fresh: Tensor, places: Tensor, old: Tensor) -> Tensor:
    """Returns new tensors ``[W, ...]``: ``fresh`` at ``places`` for ended worlds, the old values for others."""
    return torch.where(ended.view(-1, *[1] * (old.dim() - 1)), fresh.index_select(0, places), old)


def chosen_together(
    ended: Tensor, fresh: Mapping[str, Tensor], places: Tensor, old: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns :func:`chosen` of each of some tensors ``[W, ...]`` by name; those of one type are chosen as one."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, value in old.items():
        kinds.setdefault(value.dtype, []).append(name)
    new = {}
    for names in kinds.values():
        if len(names) == 1:
            new[names[0]] = chosen(ended, fresh[names[0]], places, old[names[0]])
            continue
        rows = [old[name].flatten(1) for name in names]
        left = chosen(ended, torch.cat([fresh[name].flatten(1) for name in names], 1), places, torch.cat(rows, 1))
        parts = [torch.empty_like(row) for row in rows]
        torch.split_with_sizes_copy(left, [row.shape[1] for row in rows], 1, out=parts)
        new |= {name: part.view_as(old[name]) for name, part in zip(names, parts)}
    return {name: new[name] for name in old}


# -- tensordicts without checks ----------------------------------------------------------------------------------------


def unchecked(
    entries: Mapping[str, Any], batch_size: torch.Size | tuple[int, ...], device: torch.device | None = None
) -> TensorDict:
    """Makes a tensordict of entries that are known to fit: tensors and tensordicts of this batch size and device.

    In a step of a world or an agent the checks cost more than the rest: six tensors take 27 us with them and 4 us
    without, with a tensordict among them and a device 166 us and 8 us (tensordict 0.14.3, one thread of a CPU).
    """
    return TensorDict._new_unsafe(entries, batch_size=torch.Size(batch_size), device=device)


def of_agents(shown: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> TensorDict:
    """Returns the root entries of worlds with agents.

    Args:
        shown: entries of the agents; ``active [W, A]`` is among them.
        statistics: those of the episodes, ``[W]`` by name.
    """
    active = shown["active"]
    worlds, device = active.shape[:1], active.device
    episode = unchecked({name: row[:, None] for name, row in statistics.items()}, worlds, device)
    return unchecked({GROUP: unchecked(shown, active.shape, device), "episode": episode}, worlds, device)


def with_ends(root: TensorDict, reward: Tensor, terminated: Tensor, truncated: Tensor, active: Tensor) -> TensorDict:
    """Adds rewards ``[W, A]`` and ends ``[W]`` of a step to :func:`of_agents`; inactive agents have ended."""
    terminated, truncated, gone = terminated[:, None], truncated[:, None], ~active[..., None]
    ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    for name, value in ends.items():
        root.set(name, value)
    agents = root.get(GROUP)
    agents.set("reward", reward[..., None])
    agents.set("terminated", terminated[:, None] | gone)
    agents.set("truncated", truncated[:, None] & ~gone)
    agents.set("done", ends["done"][:, None] | gone)
    return root


# -- memory ------------------------------------------------------------------------------------------------------------


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Makes glibc reuse freed memory instead of returning it to the system; returns whether that took effect.

    Every operation on a large batch allocates its result. By default a freed block of hundreds of kilobytes returns to
    the system at once, and the next block costs a page fault for each 4 kB, up to a third of a step's time. In return
    the process never shrinks. ``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_`` in the environment take
    precedence; other C libraries are left unchanged.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it, and only there are the constants valid
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # The largest allowed values: an int, and half an allocation arena.
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**25))


def by_name(source: str = "in_keys", batched: bool = False) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """Lets a module's ``forward(tensordict)`` take its entries by name or in order, too, as TorchRL's modules do.

    TorchRL's ``dispatch`` then calls it, and returns its outputs in the order of ``out_keys``. A call with a tensordict
    does not go through ``dispatch``, which takes 5 us of a policy's 40.

    Args:
        source: name of the attribute with the entries that can be given.
        batched: whether the leading dimensions that all entries share become batch dimensions of the tensordict.
    """

    def decorate(forward: Callable[[Any, Any], Any]) -> Any:
        named = dispatch(source=source, auto_batch_size=batched)(forward)

        def called(self: Any, tensordict: Any = None, *args: Any, **entries: Any) -> Any:
            if isinstance(tensordict, TensorDictBase):
                return forward(self, tensordict, *args, **entries)
            return named(self, *(() if tensordict is None else (tensordict,)), *args, **entries)

        called.__doc__ = forward.__doc__
        return called

    return decorate
