"""Derived inputs for a policy network, in the axes of the car.

The environment's observation stays as published, so that any policy can play; a network may apply this module before
its encoder.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor, nn

from ..world import Mirror
from . import rules
from .actions import AXES, lookup_table
from .observation import size

_PLACE = 4096.0
_GOAL_Y, _GOAL_Z = rules.HALF_LENGTH / _PLACE, rules.GOAL_HEIGHT / 2 / _PLACE
_OTHER, _PAD = 13, 6
_NEAR, _SMALL = 0.12, 1e-6  # 500 uu, and a term that keeps lengths above zero
_SPEEDS, _SPINS = 1.5, 1.5


class DriverFeatures(nn.Module):
    """Maps an observation ``[..., F]`` of either kind to ``[..., size]``, all of order 1.

    The car itself: velocity and spin in its own axes, the heights its axes point to, its heading and place on the
    pitch, boost, on ground, flip left, demolished (18). Five places, nine numbers each (direction in the car's axes,
    how near, how near to touching, place in its axes, distance): the ball, where it can be met, where it will be in
    half a second if nothing is in its way, the rivals' goal and its own. The ball's velocity, its velocity relative
    to the car's, both in the car's axes, its spin, the direction from it to the rivals' goal in the car's axes, the
    cosine between this and the direction to the ball, the same for its own goal, the ball's place and velocity on the
    pitch. Every other car: existence, direction, nearness, relative velocity, boost, distance from the ball. Then the
    rest of the observation, with places of pads in the car's axes if they are listed by place.

    Args:
        kind: ``"rlbot180"`` or ``"compact"``.
        cars: number of cars of both teams.
    """

    plain: Tensor

    def __init__(self, kind: str, cars: int) -> None:
        super().__init__()
        self._published = kind == "rlbot180"
        mates = cars // 2 - 1
        first = 48 if self._published else 37
        rivals = first + _OTHER * (2 if self._published else mates)
        # Only those of the published vector's five places for others that a match of this size fills.
        self._others = [first + _OTHER * car for car in range(mates)] + [
            rivals + _OTHER * car for car in range(cars // 2)
        ]
        rest = 37 + _OTHER * (cars - 1)
        plain = [40, *range(41, 48), 173, *range(175, 180)] if self._published else [*range(rest, rest + 34)]
        self.register_buffer("plain", torch.tensor(plain), persistent=False)  # stays on the device
        self.size = 18 + 5 * 9 + 3 + 3 + 3 + 8 + 6 + 11 * len(self._others) + len(plain)
        self.size += 10 * 5 if self._published else 0

    def forward(self, observation: Tensor) -> Tensor:
        seen = observation.movedim(observation.dim() - 1, 0).contiguous()  # contiguous rows are faster
        place, velocity, turn, ball, ball_velocity = seen[:3], seen[3:6], seen[9:18], seen[22:25], seen[25:28]
        met = seen[37:40] if self._published else ball
        met = torch.where(seen[40] > 0, met, ball) if self._published else met
        soon = _drop(ball, ball_velocity)
        goals = [_fixed(ball, (0.0, side * _GOAL_Y, _GOAL_Z)) for side in (1, -1)]
        rows = [_SPEEDS * _local(turn, velocity), _SPINS * _local(turn, seen[6:9])]
        rows += [turn[2::3], turn[:2], place, seen[18:22]]
        to_ball = _local(turn, ball - place)
        for away in (to_ball, *(_local(turn, target - place) for target in (met, soon, *goals))):
            rows.append(_sighted(away))
        rows += [_SPEEDS * _local(turn, value) for value in (ball_velocity, seen[34:37])]
        rows.append(seen[28:31])
        aim = to_ball / _length(to_ball)
        for goal in goals:
            line = _local(turn, goal - ball)
            line = line / _length(line)
            rows += [line, (line * aim).sum(0, keepdim=True)]
        rows += [ball, ball_velocity]
        rows += [_other(turn, seen[first : first + _OTHER], ball) for first in self._others]
        rows.append(seen.index_select(0, self.plain))
        if self._published:
            rows.append(_pads(turn, place, seen[113:173]))
        return torch.cat(rows).movedim(0, -1)


def _local(turn: Tensor, vector: Tensor) -> Tensor:
    """Returns the components along forward, right and up."""
    x, y, z = vector.unbind(0)
    return turn[0::3] * x + turn[1::3] * y + turn[2::3] * z


def _length(vector: Tensor) -> Tensor:
    return (vector.square().sum(0, keepdim=True) + _SMALL).sqrt()


def _fixed(like: Tensor, place: tuple[float, float, float]) -> Tensor:
    return torch.stack([torch.full_like(like[0], value) for value in place])


def _drop(place: Tensor, velocity: Tensor) -> Tensor:
    """Returns the place half a second later, not below the floor."""
    seconds, speed = 0.5, 2300 / _PLACE
    x, y, z = (place + seconds * speed * velocity).unbind(0)
    moves = (velocity.square().sum(0) > 0).to(z.dtype)
    z = z - moves * 0.5 * rules.GRAVITY * seconds**2 / _PLACE
    return torch.stack((x, y, z.clamp_min(rules.BALL_REST / _PLACE)))


def _sighted(away: Tensor) -> Tensor:
    """Returns nine numbers of a place in the car's axes."""
    distance = _length(away)
    near = _NEAR / (_NEAR + distance)
    touching = torch.exp(-distance / 0.06)
    return torch.cat((away / distance, near, touching, away, distance))


def _other(turn: Tensor, seen: Tensor, ball: Tensor) -> Tensor:
    """Returns eleven numbers of another car, zeros if it is absent."""
    there = (seen[:12].abs().sum(0, keepdim=True) > 0).to(seen.dtype)
    away = _local(turn, seen[6:9])
    distance = _length(away)
    near, apart = _NEAR / (_NEAR + distance), _length(seen[:3] - ball)
    motion = _local(turn, seen[9:12])
    return there * torch.cat((there, away / distance, near, motion, seen[12:13], apart, _NEAR / (_NEAR + apart)))


def _pads(turn: Tensor, place: Tensor, seen: Tensor) -> Tensor:
    """Returns five numbers of each of the ten nearest pads."""
    pads = seen.unflatten(0, (10, _PAD))
    x, y = pads[:, 0] - place[0], pads[:, 1] - place[1]
    ahead, aside = turn[0] * x + turn[1] * y, turn[3] * x + turn[4] * y
    distance = pads[:, 5] + _SMALL**0.5
    return torch.stack((ahead / distance, aside / distance, pads[:, 3], pads[:, 4], distance), 1).flatten(0, 1)


# -- the mirror symmetry -------------------------------------------------------------------------------------------


_FIRST = (0, 3, 7, 8, 9, 13, 14, 15, 22, 25, 29, 30, 31, 34)
"""Indices of the first 37 numbers that change sign: x, and for spins and the car's right axis y and z."""
_TURNS = (AXES.index("steer"), AXES.index("yaw"), AXES.index("roll"))


def mirror(observation: str, actions: str, cars: int) -> Mirror:
    """Returns the mirror at the plane x = 0; the order of equally near pads may differ.

    Args:
        observation, actions: forms of observations and actions.
        cars: number of cars in a match.
    """
    return Mirror(partial(_seen, observation, cars), partial(_chosen, actions))


def _seen(kind: str, cars: int, observation: Tensor) -> Tensor:
    order, signs = _layout(kind, cars, observation.device)
    return observation.index_select(-1, order) * signs.to(observation.dtype)


@cache
def _layout(kind: str, cars: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the source index and sign of each number of a mirrored observation."""
    order, signs = list(range(size(kind, cars))), torch.ones(size(kind, cars))
    others, first = (5, 48) if kind == "rlbot180" else (cars - 1, 37)
    turned = [*_FIRST, *(first + 13 * other + x for other in range(others) for x in (0, 3, 6, 9))]
    if kind == "rlbot180":
        turned += [37, *range(113, 173, 6)]
    else:
        pads = len(order) - len(rules.PADS)
        order[pads:] = [pads + rules.PADS.index((-x, y)) for x, y in rules.PADS]
    signs[turned] = -1
    return torch.tensor(order, device=device), signs.to(device)


def _chosen(kind: str, action: Tensor) -> Tensor:
    if kind == "lookup90":
        return _table(action.device)[action]
    parts = list(action.unbind(-1))
    for axis in _TURNS:
        parts[axis] = 4 - parts[axis] if kind == "multi" else -parts[axis]
    return torch.stack(parts, -1)


@cache
def _table(device: torch.device) -> Tensor:
    """Returns the mirror image of each of the 90 combinations."""
    rows = list(lookup_table())
    images = [tuple(-value if axis in _TURNS else value for axis, value in enumerate(row)) for row in rows]
    return torch.tensor([rows.index(image) for image in images], device=device)
