"""Observations of cars: vectors with published layouts, in which every team attacks +y.

Orange observes the world turned by pi about the vertical. Positions are in units of 4096 uu, speeds of 2300 uu/s, spins
of 5.5 rad/s, boost of 100.
"""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..world import Mirror, check_known
from . import rules
from .actions import AXES, lookup_table
from .prediction import Forecast, intercept
from .state import Ball, Cars, RocketState, team_signs, team_turns
from .vectors import constant, dot, length, unit

KINDS = ("rlbot180", "compact")
_PLACE, _SPEED, _SPIN = 1 / 4096, 1 / 2300, 1 / 5.5
_MATES, _RIVALS, _PADS = 2, 3, 10
_OTHER = 13
_HEIGHTS = (200.0, 500.0, 1000.0, 1500.0)
_HALF = 1000.0  # distance from the middle line beyond which a team attacks or defends
_MATCH = 300.0  # s


class RocketView(NamedTuple):
    """The scaled world of every car, ``[3, C, W]`` each; ``others [13, C, C, W]`` are the observed cars."""

    position: Tensor
    velocity: Tensor
    spin: Tensor
    rotation: Tensor  # [9, C, W]
    ball: Tensor
    ball_velocity: Tensor
    ball_spin: Tensor
    others: Tensor


def size(kind: str, cars: int) -> int:
    """Returns the size of an observation.

    Raises:
        ValueError: the kind is unknown.
    """
    check_known("observation", [kind], KINDS)
    return 180 if kind == "rlbot180" else 22 + 9 + 6 + _OTHER * (cars - 1) + len(rules.PADS)


def observe(kind: str, state: RocketState, ahead: Forecast) -> Tensor:
    """Returns observations ``[W, C, size]``, zeros for absent cars.

    Args:
        ahead: forecasts of the balls.
    """
    if kind == "rlbot180":
        rows = _published(state, ahead)
    else:
        cars, view = len(state.cars.boost), look(state.cars, state.ball)
        rows = [*_first_rows(state, view), _others(view, cars, cars // 2 - 1, cars // 2), _pads_there(state)]
    seen = torch.where(state.cars.gone.isinf(), 0.0, torch.cat(rows))
    return seen.permute(2, 1, 0).contiguous()


def look(cars: Cars, ball: Ball) -> RocketView:
    """Turns and scales the world for every car."""
    turn = team_turns(cars.boost.shape[0], cars.boost)
    position, velocity = cars.position * turn * _PLACE, cars.velocity * turn * _SPEED
    ball_position, ball_velocity = ball.position[:, None] * turn * _PLACE, ball.velocity[:, None] * turn * _SPEED
    rotation = (cars.rotation * turn).flatten(0, 1)
    # [3, seen, seer, W]
    places, speeds = (value[:, :, None] * turn[:, None] for value in (cars.position * _PLACE, cars.velocity * _SPEED))
    apart, faster = places - position[:, None], speeds - velocity[:, None]
    boost = (cars.boost / rules.BOOST_MOST)[:, None].expand_as(apart[0])[None]
    others = torch.cat((places, speeds, apart, faster, boost))
    others = torch.where(cars.gone.isinf()[:, None], 0.0, others)
    spin, ball_spin = cars.spin * turn * _SPIN, ball.spin[:, None] * turn * _SPIN
    return RocketView(position, velocity, spin, rotation, ball_position, ball_velocity, ball_spin, others)


def _first_rows(state: RocketState, view: RocketView) -> list[Tensor]:
    """Returns the numbers 0 to 36: the car, the ball, and their relative position."""
    cars, kind = state.cars, state.cars.boost.dtype
    grounded = (cars.wheels.sum(0) >= 3).to(kind)
    flip = (1 - cars.flipped) * (1 - cars.double_jumped) * (cars.air_ticks < rules.SECOND_JUMP_LATEST)
    gone = (cars.gone > 0).to(kind)
    flags = torch.stack((cars.boost / rules.BOOST_MOST, grounded, flip, gone))
    own = [view.position, view.velocity, view.spin, view.rotation, flags]
    ball = [view.ball, view.ball_velocity, view.ball_spin]
    return [*own, *ball, view.ball - view.position, view.ball_velocity - view.velocity]


def _others(view: RocketView, cars: int, mates: int, rivals: int) -> Tensor:
    """Returns the 13 numbers of mates, then rivals; zeros for absent ones."""
    half, slots = cars // 2, []
    for seer in range(cars):
        team = range(half) if seer < half else range(half, cars)
        ours = [car for car in team if car != seer][:mates]
        theirs = [car for car in range(cars) if car not in team][:rivals]
        seen = [*ours, *[cars] * (mates - len(ours)), *theirs, *[cars] * (rivals - len(theirs))]
        slots.append([car * cars + seer if car < cars else cars * cars for car in seen])
    order = constant([place for row in zip(*slots) for place in row], view.position, 0, torch.int64)
    rows = pad(view.others.flatten(1, 2), (0, 0, 0, 1)).index_select(1, order)  # the last place is of an absent one
    return rows.unflatten(1, (-1, cars)).transpose(0, 1).flatten(0, 1)


def _pads_there(state: RocketState) -> Tensor:
    """Returns ``[34, C, W]``: 1 for an available pad, south to north from the car's view."""
    there = (state.pads <= 0).to(state.pads.dtype)
    half = state.cars.boost.shape[0] // 2
    return torch.stack([*[there] * half, *[there.flip(0)] * half], 1)


def _published(state: RocketState, ahead: Forecast) -> list[Tensor]:
    cars = state.cars
    count = cars.boost.shape[0]
    view = look(cars, state.ball)
    place, seconds = intercept(cars, ahead.path)
    meeting = torch.cat((place * team_turns(count, cars.boost) * _PLACE, (seconds / 4)[None]))
    height = state.ball.position[2].expand_as(cars.boost)
    lowest, highest = (constant([*limits], height) for limits in ((-torch.inf, *_HEIGHTS), (*_HEIGHTS, torch.inf)))
    bands = ((height >= lowest) & (height < highest)).to(height.dtype)
    away = view.ball - view.position
    distance = length(away) / _PLACE
    aerial = ((height > 200.0) & (distance < 2000.0)).to(height.dtype)
    facing = (view.rotation[:3] * unit(away)).sum(0)

    # Place, availability, size and distance of the ten nearest pads.
    like = view.position[0]
    places = constant([place[axis] * _PLACE for axis in (0, 1) for place in rules.PADS], like).unflatten(0, (2, -1))
    z = rules.PAD_Z * _PLACE
    big = constant([float(place in rules.BIG_PADS) for place in rules.PADS], like)
    offset = places - view.position[:2, None]
    distance2 = dot(offset, offset) + (z - view.position[2]) ** 2  # [34, C, W]
    # Of pads that are equally near but for rounding, such as those to the left and right at a kick-off, the first.
    order = constant([2.0e-7 * pad for pad in range(len(rules.PADS))], like)
    index = (distance2 + order).topk(_PADS, dim=0, largest=False).indices
    x, y = places[:, :, 0, 0][:, index].unbind(0)
    there, least = _pads_there(state).gather(0, index), distance2.gather(0, index).sqrt()
    pads = torch.stack((x, y, torch.full_like(x, z), there, big[:, 0, 0][index], least), 1)
    return [
        *_first_rows(state, view),
        meeting,
        bands,
        torch.stack((aerial, facing)),
        _others(view, count, _MATES, _RIVALS),
        pads.flatten(0, 1),
        _match(state, view),
    ]


def _match(state: RocketState, view: RocketView) -> Tensor:
    """Returns ``[7, C, W]``: kick-off, time, score, phase of play."""
    like = view.position[0]
    kick_off = (state.ball.velocity == 0).all(0) & (state.ball.position[:2] == 0).all(0)
    opening = kick_off.to(like.dtype).expand_as(like)
    seconds = (state.clock / rules.TICKS_PER_SECOND).expand_as(like)
    score = state.goal * team_signs(like.shape[0], like)
    north = view.ball[1] / _PLACE
    attacks, defends = ((side * north > _HALF).to(like.dtype) * (1 - opening) for side in (1, -1))
    rest = 1 - opening - attacks - defends
    return torch.stack((opening, seconds / _MATCH, (score / 5).tanh(), opening, attacks, defends, rest))


# -- derived inputs for a policy network, in the axes of the car -------------------------------------------------------


_FIELD = 4096.0
_GOAL_Y, _GOAL_Z = rules.HALF_LENGTH / _FIELD, rules.GOAL_HEIGHT / 2 / _FIELD
_PAD = 6
_NEAR, _SMALL = 0.12, 1e-6  # 500 uu, and a term that keeps lengths above zero
_SPEEDS, _SPINS = 1.5, 1.5


class DriverFeatures(nn.Module):
    """Maps an observation ``[..., F]`` of either kind to ``[..., size]``, all of order 1.

    The environment's observation stays as published, so that any policy can play; a network may apply this module
    before its encoder.

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
        seconds = 0.5
        x, y, z = (ball + seconds * (2300 / _FIELD) * ball_velocity).unbind(0)
        moves = (ball_velocity.square().sum(0) > 0).to(z.dtype)
        z = z - moves * 0.5 * rules.GRAVITY * seconds**2 / _FIELD
        soon = torch.stack((x, y, z.clamp_min(rules.BALL_REST / _FIELD)))  # not below the floor
        none = torch.zeros_like(x)
        goals = [torch.stack((none, none + side * _GOAL_Y, none + _GOAL_Z)) for side in (1, -1)]
        rows = [_SPEEDS * _local(turn, velocity), _SPINS * _local(turn, seen[6:9])]
        rows += [turn[2::3], turn[:2], place, seen[18:22]]
        to_ball = _local(turn, ball - place)
        for away in (to_ball, *(_local(turn, target - place) for target in (met, soon, *goals))):
            distance = _length(away)
            near, touching = _NEAR / (_NEAR + distance), torch.exp(-distance / 0.06)
            rows += [away / distance, near, touching, away, distance]
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
