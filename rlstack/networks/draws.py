"""Random numbers for rows that several processes share out.

Whoever learns alone draws numbers for all rows (worlds that act, entries of a batch) at once. Processes that have a
part of the rows each draw for all of them, too, from generators in the same state, and keep their own: together they
act and learn with the numbers of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_part: tuple[int, int, int] | None = None
"""First own row, own rows, all rows."""


@contextmanager
def part_of_rows(first: int, count: int, total: int) -> Iterator[None]:
    """In it, tensors of ``count`` rows (or a multiple) are the rows from ``first`` on of ``total``."""
    global _part
    before, _part = _part, (first, count, total)
    try:
        yield
    finally:
        _part = before


def whole(shape: Sequence[int]) -> Sequence[int]:
    """The shape that own rows of this one are a part of."""
    if _part is None or not shape or not _part[1] or shape[0] % _part[1]:
        return shape
    _, count, total = _part
    return torch.Size((shape[0] // count * total, *shape[1:]))


def own(tensor: Tensor) -> Tensor:
    """The own rows of a tensor of :func:`whole` shape."""
    if _part is None or not tensor.dim() or len(tensor) % _part[2]:
        return tensor
    first, count, total = _part
    each = len(tensor) // total
    return tensor[first * each : (first + count) * each]


def drawn(draw: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """``draw(like)``, a draw of its own for each row: from the row's values, or of their shape alone."""
    if _part is None or like.shape == (shape := whole(like.shape)):
        return draw(like)
    everyone = like.new_ones(shape)
    own(everyone).copy_(like)
    return own(draw(everyone))


def exponential(like: Tensor) -> Tensor:
    """Exponentially distributed numbers of this shape, for :func:`drawn`."""
    return torch.empty_like(like).exponential_()
