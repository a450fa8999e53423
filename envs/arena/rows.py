"""Finding rows in columns: which slot of each world is the first, the nearest, the one to look at.

Rows and flags are floating-point numbers until they index something: reductions that return indices, and booleans, are
ten times slower on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_STEEP = 1.0e20  # times the smallest difference of two squared distances: more than any number of rows

_FARTHEST = 1.0e18  # a squared distance beyond all others


class At(NamedTuple):
    """New values ``[..., n]`` for one place of each column, see :func:`spots`."""

    spots: Tensor
    values: Tensor


_counted: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def counting(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``[count]``: 0, 1, 2, ... Not to be written to: it is part of a tensor that is kept."""
    if torch.compiler.is_compiling():
        return torch.arange(count, dtype=dtype, device=device)
    known = _counted.get((dtype, device))
    if known is None or len(known) < count:
        known = _counted[dtype, device] = torch.arange(max(count, 1024), dtype=dtype, device=device)
    return known[:count]


def rows_of(values: Tensor) -> Tensor:
    """``[R, 1]``: 0 to R - 1 for ``[R, n]``."""
    return counting(values.shape[0], values.dtype, values.device)[:, None]


def first_row(flags: Tensor) -> Tensor:
    """The first row ``[n]`` of ``[R, n]`` with a flag of 1; R where there is none."""
    count = flags.shape[0]
    return torch.sub(rows_of(flags) + count, flags, alpha=count).amin(0).clamp_max(count)


def nearest(distance2: Tensor, values: Tensor) -> Tensor:
    """The values ``[C, n]`` of ``[C, R, n]`` in the row with the least squared distance ``[R, n]``."""
    if torch.compiler.is_compiling():
        return two_nearest(distance2, values)[0]
    return pick(values, spots(_nearest_row(distance2)))


def two_nearest(distance2: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The values ``[C, n]`` of ``[C, R, n]`` in the two rows with the least squared distances ``[R, n]``.

    The nearest comes first, of equally near ones the first row.
    """
    if torch.compiler.is_compiling():
        return _two_nearest_in_turn(distance2, values)
    first = _nearest_row(distance2)
    second = _nearest_row(distance2.scatter(0, first.long()[None], _FARTHEST))
    columns = counting(len(first), torch.int64, first.device)
    return pick(values, spots(first, columns)), pick(values, spots(second, columns))


def _nearest_row(distance2: Tensor) -> Tensor:
    return rows_of(distance2).add(distance2 - distance2.amin(0), alpha=_STEEP).amin(0)


def _two_nearest_in_turn(distance2: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Row after row, which compiled code does many worlds at a time; it cannot index so."""
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
    """Places ``[n]`` int64 in a flattened ``[R, width]``: row ``row [n]`` of columns ``[n]``; None: of all of them."""
    if columns is None:
        columns = counting(len(row), torch.int64, row.device)
    return torch.add(columns, row.long(), alpha=len(row) if width is None else width)


def pick(values: Tensor, where: Tensor) -> Tensor:
    """The values ``[..., n]`` at ``spots`` of ``[..., R, n]``."""
    return values.flatten(-2).index_select(-1, where)


def placed(values: Tensor, where: Tensor, new: Tensor) -> Tensor:
    """``[..., R, n]`` with new values ``[..., n]`` at ``spots``."""
    flat = values.flatten(-2)
    return flat.index_copy(-1, where, new).view(values.shape)
