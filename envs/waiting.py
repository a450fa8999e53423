"""Avoids waiting for a GPU: restarts worlds without reading how many have ended."""

from __future__ import annotations

from collections.abc import Iterable

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
