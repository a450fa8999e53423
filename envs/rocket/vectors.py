"""Vectors ``[3, ...]`` and rotations ``[3, 3, ...]`` whose rows are the forward, right and up axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..foundation.tensors import constant as constant
from ..foundation.tensors import looks_are_free
from .rules import Curve

_WIDE = 1000  # columns from which a CPU computes vector products faster by components


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Returns the scalar product ``[...]``."""
    return (a * b).sum(0)


def in_parts(vector: Tensor) -> bool:
    """Returns whether vectors are best computed one by one and by components: many on a CPU, and in compiled code.

    There a stack is written to memory and read again; elsewhere each operation has its price.
    """
    return torch.compiler.is_compiling() or (vector.shape[-1] > _WIDE and looks_are_free(vector.device))


def each_with(function: Callable[[Tensor, Tensor], Tensor], vectors: Sequence[Tensor], other: Tensor) -> list[Tensor]:
    """Returns ``function(vector, other) [...]`` of several vectors, all at once unless :func:`in_parts`."""
    if in_parts(vectors[0]):
        return [function(vector, other) for vector in vectors]
    return list(function(torch.stack(list(vectors), 1), other[:, None]).unbind(0))


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Returns the vector product."""
    if not in_parts(a):
        return torch.linalg.cross(a, b, dim=0)
    ax, ay, az = a.unbind(0)
    bx, by, bz = b.unbind(0)
    parts = (ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)
    return torch.stack(parts)


def without(one: Tensor, other: Tensor) -> Tensor:
    """Returns ``one & ~other`` of flags (bool), as one operation; ``one >= other`` is ``one | ~other``."""
    return one > other


def length(vector: Tensor) -> Tensor:
    """Returns the Euclidean length ``[...]``."""
    if torch.compiler.is_compiling() or looks_are_free(vector.device):  # faster there than the norm of torch
        return dot(vector, vector).sqrt()
    return torch.linalg.vector_norm(vector, dim=0)


def unit(vector: Tensor) -> Tensor:
    """Normalises vectors; zeros stay zeros."""
    return vector / length(vector).clamp_min(1.0e-9)


def to_local(rotation: Tensor, vector: Tensor) -> Tensor:
    """Converts from world to car axes."""
    return (rotation * vector).sum(1)


def to_world(rotation: Tensor, vector: Tensor) -> Tensor:
    """Converts from car to world axes."""
    return (rotation * vector[:, None]).sum(0)


def taken(value: Tensor, index: Tensor) -> Tensor:
    """Returns ``[..., n]`` of ``[..., C, W]`` at flat indices of the last two dimensions."""
    return value.flatten(-2).index_select(-1, index)


def put(value: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """Returns ``[..., C, W]`` with ``new [..., n]`` at the places of :func:`taken`."""
    return value.flatten(-2).index_copy(-1, index, new).view(value.shape)


class Pieces(NamedTuple):
    """Piecewise linear functions as sums over pieces: ends and slopes of each, and values at the first points."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    slope: tuple[float, ...]
    first: tuple[float, ...]


def pieces(*curves: Curve) -> Pieces:
    """Returns the pieces of functions of the same argument, equally many of each."""
    rows = [[(x0, x1, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(curve) if y0 != y1] for curve in curves]
    most = max(map(len, rows))
    whole = [piece for row in rows for piece in (row + [(0.0, 0.0, 0.0)] * most)[:most]]
    low, high, slope = zip(*whole)
    return Pieces(low, high, slope, tuple(curve[0][1] for curve in curves))


def along(known: Pieces, x: Tensor) -> tuple[Tensor, ...]:
    """Evaluates piecewise linear functions."""
    low, high, slope = (constant(row, x).unflatten(0, (len(known.first), -1)) for row in known[:3])
    return (((x.clamp(low, high) - low) * slope).sum(1) + constant(known.first, x)).unbind(0)


def clipped(vectors: Tensor, most: Sequence[float]) -> Tensor:
    """Limits vectors ``[3, n, ...]`` to ``n`` lengths."""
    size = length(vectors).clamp_min(1.0e-9)
    return vectors * (constant(most, size[0]) / size).clamp_max(1.0)


def turned(rotation: Tensor, turn: Tensor) -> Tensor:
    """Returns the rotation after a turn ``[3, ...]``, axis times angle in world axes (formula of Rodrigues)."""
    angle = length(turn).clamp_min(1.0e-8)
    axis = (turn / angle)[:, None]
    axes = rotation[:2].transpose(0, 1)  # component, axis
    along = axis * dot(axis, axes)
    axes = torch.addcmul(torch.addcmul(axes, cross(axis, axes), angle.sin()), along - axes, 1 - angle.cos())
    forward = unit(axes[:, 0])
    right = axes[:, 1]
    right = unit(torch.addcmul(right, forward, dot(right, forward), value=-1))
    return torch.stack((forward, right, cross(forward, right)))


def from_angles(yaw: Tensor, pitch: Tensor, roll: Tensor) -> Tensor:
    """Returns the rotation of a car: nose up by ``pitch``, then banked to the right by ``roll``; yaw 0 faces +x."""
    cy, sy, cp, sp, cr, sr = yaw.cos(), yaw.sin(), pitch.cos(), pitch.sin(), roll.cos(), roll.sin()
    forward = torch.stack((cp * cy, cp * sy, sp))
    right = torch.stack((cy * sp * sr - cr * sy, sy * sp * sr + cr * cy, -cp * sr))
    return torch.stack((forward, right, cross(forward, right)))
