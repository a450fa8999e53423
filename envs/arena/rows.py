"""Finds rows in columns: the first or nearest slot of each world.

Rows and flags are floating-point numbers until they serve as indices, since reductions that return indices, and
booleans, are ten times slower on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..waiting import counting as counting
from ..waiting import looks_are_free

_STEEP = 1.0e20  # multiplied with the smallest difference of two squared distances exceeds any number of rows

_FARTHEST = 1.0e18  # a squared distance beyond all others


class At(NamedTuple):
    """New values ``[..., n]`` for one place of each column; see :func:`spots`."""

    spots: Tensor
    values: Tensor


def rows_of(values: Tensor) -> Tensor:
    """Returns 0 to R - 1 as ``[R, 1]`` for ``[R, n]``."""
    return counting(values.shape[0], values.dtype, values.device)[:, None]


def first_row(flags: Tensor) -> Tensor:
    """Returns the first row ``[n]`` of ``[R, n]`` with a flag of 1; R if there is none."""
    count = flags.shape[0]
    return torch.sub(rows_of(flags) + count, flags, alpha=count).amin(0).clamp_max(count)


def flagged(flags: Tensor, rank: Tensor) -> Tensor:
    """Returns the row ``[Q, n]`` int64 of the flag of rank ``[Q, n]``, 0 for a column's first, in ``[R, n]`` bool.

    A rank without a flag gets any row.
    """
    return flags.sort(dim=0, descending=True, stable=True).indices.gather(0, rank.clamp(0, len(flags) - 1))


def nearest(distance2: Tensor, values: Tensor) -> Tensor:
    """Returns the values ``[C, n]`` of ``[C, R, n]`` in the row with the least squared distance ``[R, n]``."""
    if torch.compiler.is_compiling() or not looks_are_free(values.device):
        return two_nearest(distance2, values)[0]
    return pick(values, spots(_nearest_row(distance2)))


def two_nearest(distance2: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the values ``[C, n]`` of ``[C, R, n]`` in the two rows with the least squared distances ``[R, n]``.

    The nearest comes first; of equally near ones, the first row.
    """
    if torch.compiler.is_compiling():
        return _two_nearest_in_turn(distance2, values)
    if not looks_are_free(values.device):  # a GPU sorts in one operation
        order = distance2.sort(dim=0, stable=True).indices[:2]
        first, second = values.gather(1, order.expand(len(values), 2, -1)).unbind(1)
        return first, second
    first = _nearest_row(distance2)
    second = _nearest_row(distance2.scatter(0, first.long()[None], _FARTHEST))
    columns = counting(len(first), torch.int64, first.device)
    return pick(values, spots(first, columns)), pick(values, spots(second, columns))


def _nearest_row(distance2: Tensor) -> Tensor:
    return rows_of(distance2).add(distance2 - distance2.amin(0), alpha=_STEEP).amin(0)


def _two_nearest_in_turn(distance2: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Searches row by row, which compiled code vectorises over worlds; it cannot vectorise indexing."""
    near, far = distance2[0], torch.full_like(distance2[0], _FARTHEST)
    first = second = list(values[:, 0].unbind(0))
    for row in range(1, len(distance2)):
        here, value = distance2[row], values[:, row].unbind(0)
        nearer, near_enough = here < near, here < far
        second = [
            torch.where(nearer, one, torch.where(near_enough, new, two)) for one, two, new in zip(first, second, value)
        ]
        far = torch.where(nearer, near, torch.minimum(here, far))
        first, near = [torch.where(nearer, new, one) for one, new in zip(first, value)], torch.minimum(here, near)
    return torch.stack(first), torch.stack(second)


def spots(row: Tensor, columns: Tensor | None = None, width: int | None = None) -> Tensor:
    """Returns places ``[n]`` int64 in a flattened ``[R, width]``: ``row [n]`` of columns ``[n]`` (None: all)."""
    if columns is None:
        columns = counting(len(row), torch.int64, row.device)
    return torch.add(columns, row.long(), alpha=len(row) if width is None else width)


def pick(values: Tensor, where: Tensor) -> Tensor:
    """Returns the values ``[..., n]`` at ``spots`` of ``[..., R, n]``."""
    return values.flatten(-2).index_select(-1, where)


def placed(values: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """Returns ``[..., R, n]`` with new values ``[..., n]`` at ``spots``."""
    flat = values.flatten(-2)
    return flat.index_copy(-1, where, new).view(values.shape)
