"""The field as a signed distance function with its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..foundation.tensors import looks_are_free
from . import rules
from .vectors import constant, dot, to_local, to_world


class WheelGround(NamedTuple):
    """The surface that the wheels' rays meet."""

    distance: Tensor  # [4, ...] along the ray
    normal: Tensor  # [3, 4, ...] in the car's axes
    slope: Tensor  # [4, ...] the normal's z component in the world


_ROOT = math.sqrt(0.5)
_PLANES = (
    *((-1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, -1.0, 0.0)),  # post, crossbar and back of a goal
    *((0.0, 0.0, 1.0), (0.0, 0.0, -1.0)),  # floor, ceiling
    *((-1.0, 0.0, 0.0), (-_ROOT, -_ROOT, 0.0), (0.0, -1.0, 0.0)),  # side wall, corner, end wall
)
"""Normals of the planes in a quarter of the field, where x and y are positive."""
_OFFSETS = (
    *(rules.GOAL_HALF_WIDTH, rules.GOAL_HEIGHT, rules.GOAL_BACK),
    *(0.0, rules.HEIGHT, rules.HALF_WIDTH, _ROOT * rules.CORNER, rules.HALF_LENGTH),
)
_WHEELS = (*rules.WHEEL_X, *rules.WHEEL_Y, *[rules.WHEEL_Z] * 4)
_FAR = 1.0e6
_GOAL_REACH = 300.0  # uu from a goal within which its frame may be the nearest surface
_STEPS = 6  # of the search for a curved surface
_CLOSE = 0.01  # gap at which a ray ends


@dataclass(frozen=True)
class Field:
    """A field's shape.

    Attributes:
        closed: whether it has end walls with goals, and corners, or only two infinite side walls.
        low_ramp, high_ramp: radius of the quarter rounds where walls meet floor and ceiling, 0 for none.
    """

    closed: bool = True
    low_ramp: float = 0.0
    high_ramp: float = 0.0

    def inside(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the distance ``[...]`` of points ``[3, ...]`` to the surface, negative outside, and the normal.

        Near the edge between two walls it is the distance to the nearer one.
        """
        quarter = _quarter(point)
        gap, normal = self._nearest(_from_planes(quarter * point), _normals(point[0]))
        return gap, normal * quarter

    @staticmethod
    def _is_nowhere(mask: Tensor) -> bool:
        """Returns whether a case can be skipped; compiled code and a GPU compute every case."""
        return not torch.compiler.is_compiling() and looks_are_free(mask.device) and not bool(mask.any())

    def _nearest(self, gaps: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the distance ``[...]`` to the surface, and ``[m, ...]``: values of the planes in its normal's shares.

        Args:
            gaps: distances ``[8, ...]`` to the planes.
            parts: values ``[8, m, ...]`` of the planes.
        """
        like, end, walls = gaps[0], gaps[7], gaps[5:] if self.closed else gaps[5:6]
        parts = parts.expand(*parts.shape[:2], *like.shape)

        def part(first: int, index: Tensor) -> Tensor:
            return parts[first:].gather(0, index.expand(1, *parts.shape[1:]))[0]

        goals = self.closed and not self._is_nowhere((end < _GOAL_REACH) & (gaps[0] > -_GOAL_REACH))
        if goals:
            frame, at_frame = gaps[:2].min(0)
            # Objects far beyond the line are always in the goal.
            open_ = (frame > 0) | ((end <= -_GOAL_REACH) & (frame >= -_GOAL_REACH))
            ends = constant((False, False, True), like, dtype=torch.bool)
            walls = torch.where(open_ & ends, constant((_FAR,), like), walls)
        wall, at_wall = walls.min(0)
        flat, at_flat = gaps[3:5].min(0)
        both = torch.stack((flat, wall))
        gap, which = both.min(0)
        share = which == constant((0.0, 1.0), like)
        if self.low_ramp or self.high_ramp:  # quarter rounds between walls and floor or ceiling
            radius = constant((self.low_ramp, self.high_ramp), like, 0)[at_flat]
            beyond = (radius - both).clamp_min(0.0)
            out = torch.hypot(*beyond.unbind(0))
            rounded = beyond.amin(0) > 0
            gap = torch.where(rounded, radius - out, gap)
            share = torch.where(rounded, beyond / out.clamp_min(1.0e-6), share)
        mixed = share[0] * part(3, at_flat) + share[1] * part(5, at_wall)
        if not goals:
            return gap, mixed
        # A post or the crossbar is an edge: its distance is that of its nearest point.
        edge = torch.hypot(end, frame).clamp_min(1.0e-3)
        near = (torch.minimum(end, frame) > 0) & (edge < gap)
        gap = torch.where(near, edge, gap)
        mixed = torch.where(near, (frame * part(0, at_frame) + end * parts[7]) / edge, mixed)
        # From inside: the nearest of a post, the crossbar, the back and the floor.
        within, at_goal = gaps[:4].min(0)
        # Beyond the line a point belongs to the goal unless it is farther outside of the goal than of the field.
        inside = (end <= 0) & (open_ | (within > gap))
        return torch.where(inside, within, gap), torch.where(inside, part(0, at_goal), mixed)

    def trace(self, position: Tensor, rotation: Tensor, ball: Tensor) -> WheelGround:
        """Traces the wheels' rays to the field or the ball, which supports a car as if immovable.

        Args:
            position: positions of cars, ``[3, ...]``.
            rotation: ``[3, 3, ...]``.
            ball: position of the ball, ``[3, ...]``.
        """
        like = position[0]
        places = constant(_WHEELS, like).unflatten(0, (3, 4))
        start = position[:, None] + to_world(rotation[:, :, None], places)
        down = -rotation[2][:, None]
        quarter = _quarter(start)
        normals = _normals(start[0])
        gaps, falls = _from_planes(quarter * start), (normals * (quarter * down)).sum(1)
        distance = torch.zeros_like(start[0])
        for _ in range(_STEPS):
            gap, fall = self._nearest(torch.addcmul(gaps, falls, distance), falls[:, None])
            arrived = gap.abs() < _CLOSE
            if self._is_nowhere(~arrived):
                break
            # To the plane of the nearest surface; a curved surface takes several steps.
            closing = -fall[0]
            step = torch.where(closing > 0.05, gap / closing.clamp_min(0.05), gap.clamp_min(0.0) + 1.0)
            distance = torch.where(arrived, distance, (distance + step).clamp(-20.0, 200.0))
        gap, normal = self._nearest(torch.addcmul(gaps, falls, distance), normals)
        meets = (gap.abs() < 0.5) & (distance > 0)
        distance = torch.where(meets, distance, constant((_FAR,), like))
        # The ball, if it is nearer.
        away = start - ball[:, None]
        along = dot(away, down)
        root = along * along - dot(away, away) + rules.BALL_RADIUS**2
        met = -along - root.clamp_min(0.0).sqrt()
        nearer = (root > 0) & (met > 0) & (met < distance)
        normal = torch.where(nearer, torch.addcmul(away, down, met) / rules.BALL_RADIUS, normal * quarter)
        local = to_local(rotation[:, :, None], normal)
        return WheelGround(torch.where(nearer, met, distance), local, normal[2])


def _quarter(point: Tensor) -> Tensor:
    """Returns factors ``[3, ...]`` that mirror points ``[3, ...]`` into the quarter of the field of :data:`_PLANES`."""
    return torch.maximum(point.sign(), constant((-1.0, -1.0, 1.0), point[0]))


def _normals(like: Tensor) -> Tensor:
    """Returns the planes' normals, ``[8, 3, 1, ...]``."""
    return constant([value for normal in _PLANES for value in normal], like).unflatten(0, (-1, 3))


def _from_planes(point: Tensor) -> Tensor:
    """Returns the distances ``[8, ...]`` of points ``[3, ...]`` from the planes, in which their quarter lies."""
    return (_normals(point[0]) * point).sum(1) + constant(_OFFSETS, point[0])


def trace_floor(position: Tensor, rotation: Tensor) -> WheelGround:
    """Traces the wheels' rays to the floor alone; see :meth:`Field.trace`."""
    heights = rotation[:, 2]
    like = position[0]
    forward, right, up = heights.unbind(0)
    x, y = constant(rules.WHEEL_X, like), constant(rules.WHEEL_Y, like)
    start = position[2] + rules.WHEEL_Z * up + x * forward + y * right
    meets = (up > 1.0e-4) & (start >= 0)
    distance = torch.where(meets, start / up.clamp_min(1.0e-4), _FAR)
    return WheelGround(distance, heights[:, None], torch.ones_like(distance))
