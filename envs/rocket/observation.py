"""Observations of cars: vectors with published layouts, in which every team attacks +y.

Orange observes the world turned by pi about the vertical. Positions are in units of 4096 uu, speeds of 2300 uu/s, spins
of 5.5 rad/s, boost of 100.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
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
    if kind == "rlbot180":
        return 180
    if kind == "compact":
        return 22 + 9 + 6 + _OTHER * (cars - 1) + len(rules.PADS)
    raise ValueError(f"observation: {kind!r} is unknown, allowed: {', '.join(KINDS)}")


def observe(kind: str, state: RocketState, ahead: Forecast) -> Tensor:
    """Returns observations ``[W, C, size]``, zeros for absent cars.

    Args:
        ahead: forecasts of the balls.
    """
    rows = _published(state, ahead) if kind == "rlbot180" else _compact(state)
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


def _compact(state: RocketState) -> list[Tensor]:
    cars = state.cars.boost.shape[0]
    view = look(state.cars, state.ball)
    return [*_first_rows(state, view), _others(view, cars, cars // 2 - 1, cars // 2), _pads_there(state)]


def _others(view: RocketView, cars: int, mates: int, rivals: int) -> Tensor:
    """Returns the 13 numbers of mates, then rivals; zeros for absent ones."""
    half = cars // 2
    empty = torch.zeros_like(view.others[:, 0, :1])
    seers = []
    for seer in range(cars):
        team = range(half) if seer < half else range(half, cars)
        ours = [car for car in team if car != seer][:mates]
        theirs = [car for car in range(cars) if car not in team][:rivals]
        seen = [view.others[:, car, seer : seer + 1] for car in ours] + [empty] * (mates - len(ours))
        seen += [view.others[:, car, seer : seer + 1] for car in theirs] + [empty] * (rivals - len(theirs))
        seers.append(torch.cat(seen) if seen else empty[:0])
    return torch.cat(seers, 1)


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
    return [
        *_first_rows(state, view),
        meeting,
        bands,
        torch.stack((aerial, facing)),
        _others(view, count, _MATES, _RIVALS),
        _nearest_pads(state, view),
        _match(state, view),
    ]


def _nearest_pads(state: RocketState, view: RocketView) -> Tensor:
    """Returns ``[60, C, W]``: place, availability, size and distance of the ten nearest pads."""
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
    return torch.stack((x, y, torch.full_like(x, z), there, big[:, 0, 0][index], least), 1).flatten(0, 1)


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
