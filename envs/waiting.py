"""Operations that do not wait for a GPU, such as restarts of worlds without reading how many have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

FREE = {"cpu"}
"""Kinds of devices whose tensors can be read without waiting; tests that imitate a GPU empty this set."""


def looks_are_free(device: torch.device | None) -> bool:
    """Returns whether branching on data is free. On other devices, worlds compute everything under masks."""
    return device is None or device.type in FREE


def shuffled(count: int, device: torch.device) -> Tensor:
    """Returns the numbers from 0 to ``count - 1`` in random order, ``[count]``."""
    if looks_are_free(device):
        return torch.randperm(count, device=device)
    return torch.rand(count, device=device).argsort()  # which a CUDA graph can record


_made: dict[tuple[Any, ...], Tensor] = {}


def made_once(make: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Returns ``make(*arguments)``, a constant, which must not be written to; compiled code makes it anew.

    It is kept for ever, since recorded code may read it.
    """
    if torch.compiler.is_compiling():
        return make(*arguments)
    key = (make, *arguments)
    if key not in _made:
        _made[key] = make(*arguments)
    return _made[key]


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
        kinds.setdefault(value.dtype, []).append((value.view(-1, value.shape[-1]), new.view(-1, new.shape[-1])))
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
