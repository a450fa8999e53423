"""Looking up the ground, and whether anything stands between two points."""

from __future__ import annotations

import torch
from torch import Tensor

from .rules import SMOKE_RADIUS
from .tables import Tables

_WITHIN = 1.0e-3  # of a place at the edge, from it


def cell(x: Tensor, y: Tensor, base: Tensor, side: int) -> Tensor:
    """Index of a place in a layer of the bank, int32; places outside count as those at the edge.

    Args:
        base: first cell of the world's map, ``[W]``; all shapes broadcast.
        side: of a map.
    """
    edge = side - _WITHIN
    column, row = x.clamp(0.0, edge).floor(), y.clamp(0.0, edge).floor()
    return (torch.add(column, row, alpha=side) + base).int()


def look_up(layer: Tensor, index: Tensor, like: Tensor) -> Tensor:
    """The layer's values there, in the type of ``like``."""
    return layer.index_select(0, index.flatten()).view(index.shape).to(like.dtype)


def clear_between(one: Tensor, two: Tensor, base: Tensor, tables: Tables) -> Tensor:
    """Whether ground and foliage leave the line free, bool; the same from both ends.

    24 points are looked at, at most two voxels apart within 48 voxels; more in maps larger than usual.

    Args:
        one, two: ``[3, a, b, W]``, broadcast.
    """
    # About the middle, so that the ends can change places without a rounding that differs.
    middle, half = (one + two) / 2, (two - one) / 2
    x, y, z = (torch.addcmul(middle[k], tables.samples, half[k]) for k in range(3))
    return (look_up(tables.maps.sight, cell(x, y, base, tables.side), z) <= z).all(0)


def clear_of_smoke(one: Tensor, two: Tensor, clouds: Tensor) -> Tensor:
    """Whether no cloud touches the line, ``[a, b, W]`` bool.

    Args:
        one, two: ``[3, a, b, W]``, broadcast.
        clouds: ``[4, k, W]``.
    """
    way = (two - one)[:, :, :, None]
    reach = (way * way).sum(0).clamp_min(1.0e-6)
    to = clouds[:3, None, None] - one[:, :, :, None]
    share = ((to * way).sum(0) / reach).clamp(0.0, 1.0)
    apart = (to - share * way).square().sum(0)
    return ~((apart < SMOKE_RADIUS**2) & (clouds[3] > 0)).any(2)
