"""The field as a signed distance function with its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..waiting import looks_are_free
from . import rules
from .vectors import constant


class WheelGround(NamedTuple):
    """The surface that the wheels' rays meet."""

    distance: Tensor  # [4, ...] along the ray
    normal: Tensor  # [3, 4, ...] in the car's axes
    slope: Tensor  # [4, ...] the normal's z component in the world


Axes = tuple[Tensor, Tensor, Tensor]
"""The components x, y and z of vectors."""
_ROOT = math.sqrt(0.5)
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
        x, y, z = point.unbind(0)
        gap, normal = self._inside(x, y, z)
        return gap, torch.stack(normal)

    def _inside(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Axes]:
        """Computes :meth:`inside` with separate components, which need no copies."""
        wide, long = x.abs(), y.abs()
        to_right, to_front = -torch.sign(x), -torch.sign(y)
        wall = rules.HALF_WIDTH - wide
        if not self.closed:
            return self._rounded(z, wall, to_right, torch.zeros_like(x))
        corner = (rules.CORNER - wide - long) * _ROOT
        slanted = corner < wall
        wall = torch.minimum(wall, corner)
        wall_x, wall_y = torch.where(slanted, _ROOT * to_right, to_right), slanted * (_ROOT * to_front)
        end = rules.HALF_LENGTH - long
        if self._is_nowhere((end < _GOAL_REACH) & (wide < rules.GOAL_HALF_WIDTH + _GOAL_REACH)):
            behind = end < wall
            wall_x, wall_y = torch.where(behind, 0.0, wall_x), torch.where(behind, to_front, wall_y)
            return self._rounded(z, torch.minimum(wall, end), wall_x, wall_y)
        beside, below = rules.GOAL_HALF_WIDTH - wide, rules.GOAL_HEIGHT - z
        mouth = (beside > 0) & (below > 0)
        # Objects far beyond the line are always in the goal.
        behind = (end < wall) & ~mouth & ((end > -_GOAL_REACH) | (beside < -_GOAL_REACH) | (below < -_GOAL_REACH))
        wall = torch.where(behind, end, wall)
        wall_x, wall_y = torch.where(behind, 0.0, wall_x), torch.where(behind, to_front, wall_y)
        gap, normal = self._rounded(z, wall, wall_x, wall_y)
        return self._with_goal(gap, normal, (end, beside, below, z), mouth, (to_right, to_front))

    @staticmethod
    def _is_nowhere(mask: Tensor) -> bool:
        """Returns whether a case can be skipped; compiled code and a GPU compute every case."""
        return not torch.compiler.is_compiling() and looks_are_free(mask.device) and not bool(mask.any())

    def _with_goal(
        self,
        gap: Tensor,
        normal: Axes,
        depth: tuple[Tensor, Tensor, Tensor, Tensor],
        mouth: Tensor,
        inward: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Axes]:
        """Returns distances to the goal's frame from outside, and to its walls from inside.

        Args:
            depth: distances to the planes of the end wall, a post and the crossbar, and to the floor.
            mouth: whether the point is between the posts and below the crossbar.
            inward: signs of x and y that point to the middle.
        """
        end, beside, below, z = depth
        to_right, to_front = inward
        lower = below < beside
        frame = torch.minimum(beside, below)
        # A post or the crossbar is an edge: its distance is that of its nearest point.
        edge = torch.hypot(end, frame).clamp_min(1.0e-3)
        scale = 1 / edge
        near = mouth & (end > 0) & (edge < gap)
        gap = torch.where(near, edge, gap)
        edge_normal = (
            torch.where(lower, 0.0, to_right * frame * scale),
            to_front * end * scale,
            torch.where(lower, -frame * scale, 0.0),
        )
        back = rules.GOAL_BACK - rules.HALF_LENGTH + end
        # From inside: the nearest of a post, the crossbar, the back and the floor.
        within, none = beside, torch.zeros_like(z)
        across: Axes = (to_right, none, none)
        for distance, axis, sign in ((below, 2, -1.0), (back, 1, to_front), (z, 2, 1.0)):
            nearest = distance < within
            within = torch.where(nearest, distance, within)
            x, y, up = (torch.where(nearest, sign if row == axis else 0.0, value) for row, value in enumerate(across))
            across = (x, y, up)
        # Beyond the line a point belongs to the goal unless it is farther outside of the goal than of the field.
        goal = (end <= 0) & (mouth | (within > gap))
        x, y, up = (
            torch.where(goal, inside, torch.where(near, edged, value))
            for inside, edged, value in zip(across, edge_normal, normal)
        )
        return torch.where(goal, within, gap), (x, y, up)

    def _rounded(self, z: Tensor, wall: Tensor, wall_x: Tensor, wall_y: Tensor) -> tuple[Tensor, Axes]:
        """Returns distances to floor and ceiling, and to the quarter rounds that lead to them."""
        top = rules.HEIGHT - z
        upper = top < z
        flat = torch.minimum(z, top)
        upward = torch.where(upper, -1.0, 1.0)
        walled = wall < flat
        gap = torch.where(walled, wall, flat)
        share_wall = walled.to(z.dtype)
        share_flat = 1 - share_wall
        if self.low_ramp or self.high_ramp:
            radius = torch.where(upper, self.high_ramp, self.low_ramp)
            a, b = (radius - wall).clamp_min(0.0), (radius - flat).clamp_min(0.0)
            out = torch.hypot(a, b)
            round_ = (a > 0) & (b > 0)
            gap = torch.where(round_, radius - out, gap)
            scale = 1 / out.clamp_min(1.0e-6)
            share_wall = torch.where(round_, a * scale, share_wall)
            share_flat = torch.where(round_, b * scale, share_flat)
        return gap, (share_wall * wall_x, share_wall * wall_y, share_flat * upward)

    def trace(self, position: Tensor, rotation: Tensor, ball: Tensor) -> WheelGround:
        """Traces the wheels' rays to the field or the ball, which supports a car as if immovable.

        Args:
            position: positions of cars, ``[3, ...]``.
            rotation: ``[3, 3, ...]``.
            ball: position of the ball, ``[3, ...]``.
        """
        like = position[0]
        ahead, aside = constant(rules.WHEEL_X, like), constant(rules.WHEEL_Y, like)
        axes = list(zip(*(axis.unbind(0) for axis in rotation.unbind(0))))  # forward, right and up of each component
        starts = [
            place + ahead * forward + aside * right + rules.WHEEL_Z * up
            for place, (forward, right, up) in zip(position.unbind(0), axes)
        ]
        downs = [-up for _, _, up in axes]
        distance = torch.zeros_like(starts[0])
        for _ in range(_STEPS):
            gap, normal = self._inside(*(start + down * distance for start, down in zip(starts, downs)))
            arrived = gap.abs() < _CLOSE
            if self._is_nowhere(~arrived):
                break
            # To the plane of the nearest surface; a curved surface takes several steps.
            closing = -_inner(normal, downs)
            step = torch.where(closing > 0.05, gap / closing.clamp_min(0.05), gap.clamp_min(0.0) + 1.0)
            distance = torch.where(arrived, distance, (distance + step).clamp(-20.0, 200.0))
        gap, normal = self._inside(*(start + down * distance for start, down in zip(starts, downs)))
        distance = torch.where((gap.abs() < 0.5) & (distance > 0), distance, _FAR)
        # The ball, if it is nearer.
        away = [start - place for start, place in zip(starts, ball.unbind(0))]
        along = _inner(away, downs)
        root = along * along - _inner(away, away) + rules.BALL_RADIUS**2
        met = -along - root.clamp_min(0.0).sqrt()
        nearer = (root > 0) & (met > 0) & (met < distance)
        distance = torch.where(nearer, met, distance)
        normals = [
            torch.where(nearer, (offset + down * met) / rules.BALL_RADIUS, value)
            for offset, down, value in zip(away, downs, normal)
        ]
        local = [_inner(axis.unbind(0), normals) for axis in rotation.unbind(0)]
        return WheelGround(distance, torch.stack(local), normals[2])


def _inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Returns the scalar product of vectors with separate components."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


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
