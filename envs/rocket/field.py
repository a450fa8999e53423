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
_GRAZING = 1.0e-4  # a ray does not meet planes that come nearer by less per unit of length


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
        gaps = _from_planes(quarter * point)
        normals = _normals(point[0]).expand(-1, -1, *gaps.shape[1:])

        def chosen(first: int, index: Tensor) -> Tensor:
            return normals[first:].gather(0, index.expand(1, *point.shape))[0]

        like, end, walls = gaps[0], gaps[7], gaps[5:] if self.closed else gaps[5:6]
        goals = self.closed
        if goals and not torch.compiler.is_compiling() and looks_are_free(like.device):  # elsewhere always
            goals = bool(((end < _GOAL_REACH) & (like > -_GOAL_REACH)).any())
        if goals:
            frame, at_frame = gaps[:2].min(0)
            # Objects far beyond the line are always in the goal.
            open_ = frame > (end <= -_GOAL_REACH) * -_GOAL_REACH
            ends = constant((False, False, True), like, dtype=torch.bool)
            walls = torch.where(open_ & ends, constant((_FAR,), like), walls)
        wall, at_wall = walls.min(0)
        flat, at_flat = gaps[3:5].min(0)
        both = torch.stack((flat, wall))
        gap, which = both.min(0)
        share = which == constant((0.0, 1.0), like)
        if self.low_ramp or self.high_ramp:  # quarter rounds between walls and floor or ceiling
            radius = constant((self.low_ramp, self.high_ramp), like, 0)[at_flat]
            beyond = radius - both
            out = torch.hypot(*beyond.unbind(0))
            rounded = beyond.amin(0) > 0
            gap = torch.where(rounded, radius - out, gap)
            share = torch.where(rounded, beyond / out, share)
        normal = torch.addcmul(share[0] * chosen(3, at_flat), share[1].to(like.dtype), chosen(5, at_wall))
        if goals:
            # A post or the crossbar is an edge: its distance is that of its nearest point.
            edge = torch.hypot(end, frame)
            near = (torch.minimum(end, frame) > 0) & (edge < gap)
            gap = torch.where(near, edge, gap)
            normal = torch.where(near, torch.addcmul(frame * chosen(0, at_frame), end, normals[7]) / edge, normal)
            # From inside: the nearest of a post, the crossbar, the back and the floor.
            within, at_goal = gaps[:4].min(0)
            # Beyond the line a point belongs to the goal unless it is farther outside of the goal than of the field.
            inside = (end <= 0) & (open_ | (within > gap))
            gap, normal = torch.where(inside, within, gap), torch.where(inside, chosen(0, at_goal), normal)
        return gap, normal * quarter

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
        up = rotation[2][:, None]
        quarter = _quarter(start)
        distance, normal = self._met(_from_planes(quarter * start), (_normals(start[0]) * (quarter * up)).sum(1))
        distance = torch.where(distance > 0, distance, constant((_FAR,), like))  # none for rays that begin outside
        # The ball, if it is nearer.
        away = start - ball[:, None]
        along = dot(away, up)
        root = torch.addcmul(rules.BALL_RADIUS**2 - dot(away, away), along, along)
        met = along - root.sqrt()  # NaN without a meeting
        nearer = (met > 0) & (met < distance)
        on_ball = torch.addcmul(away, up, met, value=-1) / rules.BALL_RADIUS
        normal = torch.where(nearer, on_ball, normal * quarter)
        local = to_local(rotation[:, :, None], normal)
        return WheelGround(torch.where(nearer, met, distance), local, normal[2])

    def _met(self, gaps: Tensor, closing: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the length ``[...]`` at which rays that begin within the field leave it, and the normal ``[3, ...]``.

        The field is convex but for its goals: a ray leaves it at the first plane that it reaches or, where two of them
        meet in a quarter round, at the round. A ray that reaches the end wall within a goal's mouth goes on to the
        goal's own planes.

        Args:
            gaps: distances ``[8, ...]`` of the rays' beginnings from the planes.
            closing: by how much the planes come nearer per unit of length, ``[8, ...]``.
        """
        like, far = gaps[0], constant((_FAR,), gaps[0])
        normals = _normals(like).expand(-1, -1, *like.shape)
        lengths = torch.where(closing > _GRAZING, gaps / closing, far)
        rounds = None
        if self.low_ramp or self.high_ramp:
            # Every quarter round alone: two for each wall, at the floor and at the ceiling.
            walls, radii = slice(5, 8 if self.closed else 6), constant((self.low_ramp, self.high_ramp), like)
            # A ray's distances from the planes through the axis of a round: flat + flat_rate * length; and wall.
            flat, wall = radii - gaps[3:5], radii - gaps[walls, None]
            flat_rate, wall_rate = closing[3:5], closing[walls, None]
            squares = closing[3 : walls.stop].square()
            rate2 = squares[:2] + squares[2:, None]
            half = torch.addcmul(flat * flat_rate, wall, wall_rate)
            rest = torch.addcmul(torch.addcmul(-radii.square(), flat, flat), wall, wall)
            length = (torch.addcmul(half.square(), rate2, rest, value=-1).sqrt() - half) / rate2  # NaN: it never does
            flat, wall = torch.addcmul(flat, flat_rate, length), torch.addcmul(wall, wall_rate, length)
            length = torch.where(torch.minimum(flat, wall) >= 0, length, far)
            normal = torch.addcmul(flat[:, :, None] * normals[3:5], wall[:, :, None], normals[walls, None])
            rounds = length.flatten(0, 1), (normal / radii[:, None]).flatten(0, 1)
        if not self.closed:
            table, faces = lengths[3:6], normals[3:6]
            if rounds is not None:
                table, faces = torch.cat((table, rounds[0])), torch.cat((faces, rounds[1]))
            length, row = table.min(0)
            return length, faces.gather(0, row.expand(1, *normals.shape[1:]))[0]
        # Rows: the goal's planes, of which the floor is the field's, too; the rest without the end wall; the end wall.
        ends, table, faces = 7, lengths, normals
        if rounds is not None:
            parts = zip((lengths, normals), rounds)
            table, faces = (torch.cat((flat[:7], curved[:4], flat[7:], curved[4:])) for flat, curved in parts)
            ends = 11
        (length, row), (at_end, end_row), (in_goal, goal_row) = (
            rows.min(0) for rows in (table[3:ends], table[ends:], table[:4])
        )
        earlier = at_end < length
        mouth = torch.addcmul(gaps[:2], closing[:2], at_end, value=-1).amin(0) > 0
        stays = torch.addcmul(gaps[7], closing[7], in_goal, value=-1) < 0
        goal = torch.where(gaps[7] < 0, stays, earlier & mouth)
        end = earlier > mouth
        length = torch.where(goal, in_goal, torch.where(end, at_end, length))
        row = torch.where(goal, goal_row, torch.where(end, end_row + ends, row + 3))
        return length, faces.gather(0, row.expand(1, *normals.shape[1:]))[0]


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
