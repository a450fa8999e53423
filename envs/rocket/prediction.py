"""Forecasts of an untouched ball: four seconds in steps of 1/15 s, with simple bounces."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .state import Ball, Cars
from .vectors import constant, dot, length

STEPS = 60
STEP = 1 / 15
SHOT_STEPS = 30
"""Number of steps within which a predicted goal is a threat."""
LEAP_STEPS = 10
"""Number of steps that are computed at once."""

_WIDE, _LONG = rules.HALF_WIDTH - rules.BALL_RADIUS, rules.HALF_LENGTH - rules.BALL_RADIUS
_TOP = rules.HEIGHT - rules.BALL_RADIUS
_POST, _BAR = rules.GOAL_HALF_WIDTH - rules.BALL_RADIUS, rules.GOAL_HEIGHT - rules.BALL_RADIUS
_MIDDLE = 0.5 * (rules.BALL_REST + _TOP)
_KEPT = (1 - rules.BALL_DRAG) ** STEP
_BACK = 1 + rules.BALL_RESTITUTION
_MOVE = (*(1.0, STEP * _KEPT, -0.5 * STEP), *(0.0, _KEPT, -1.0), *(0.0, 0.0, 1.0))
"""A step of place, speed, and what gravity takes off the speed, as a matrix."""
_MOST = (*(_WIDE, _TOP - _MIDDLE), *(0.0, 0.0), *(torch.inf, torch.inf))
_GONE = tuple(STEP * _KEPT**step for step in range(1, STEPS + 1))
"""Seconds at the first speed that a step's way corresponds to."""
_BOUNCES = 2  # of the fastest ball off end walls within four seconds
_REACH_HEIGHT = 500.0  # higher balls are not met
_ARM = 150.0  # a car and the ball touch at about this distance


class Forecast(NamedTuple):
    """The flights of the balls."""

    path: Tensor  # [3, 60, W] after 1/15 s, 2/15 s, ...
    threat: Tensor  # [W] 1: blue is about to score, -1: orange is, 0: neither within two seconds


class Leap(NamedTuple):
    """Some steps of flights across the field and upwards."""

    path: Tensor  # [2, 10, W] from the middle
    unbounced: Tensor  # [10, W] heights before a bounce in the same step
    flight: Tensor  # [3, 2, W] at the end


class FlightKernels(NamedTuple):
    """The functions of a forecast, eager or compiled."""

    leap: Callable[[Tensor], Leap]
    lengthwise: Callable[[Tensor, Tensor, Tensor], Tensor]


def forecast(ball: Ball, kernels: FlightKernels | None = None) -> Forecast:
    """Computes the flights without spin, ramps and corners.

    Args:
        kernels: :func:`leap` and :func:`lengthwise`, eager (None) or compiled.
    """
    leaps, lengths = kernels or (leap, lengthwise)
    place, speed = ball.position, ball.velocity
    fall = constant((0.0, rules.GRAVITY * STEP), place[0]) * (dot(speed, speed) > 0)
    flight = torch.stack((place[::2] - constant((0.0, _MIDDLE), place[0]), speed[::2], fall))
    parts = []
    for _ in range(0, STEPS, LEAP_STEPS):
        parts.append(leaps(flight))
        flight = parts[-1].flight
    x, z = torch.cat([part.path for part in parts], 1).unbind(0)
    free = (x.abs() < _POST) & (torch.cat([part.unbounced for part in parts]) < _BAR - _MIDDLE)
    y = lengths(place[1], speed[1], free)
    shots = y[:SHOT_STEPS]
    beyond = (shots - shots.clamp(-rules.GOAL_LINE, rules.GOAL_LINE)).sign()
    order = constant([0.5**step for step in range(SHOT_STEPS)], place[0])  # the line crossed first counts
    return Forecast(torch.stack((x, y, z + _MIDDLE)), (beyond * order).sum(0).sign())


def leap(flight: Tensor) -> Leap:
    """Computes ten steps of flights ``[3, 2, W]``: place, speed, and what gravity takes off the latter in a step."""
    like = flight[0, 0]
    move = constant(_MOVE, flight[0]).unflatten(0, (3, 3))
    most, none = constant(_MOST, like).unflatten(0, (3, 2)), constant((0.0,), like)
    least = constant([-value for value in _MOST], like).unflatten(0, (3, 2))
    unbounced, path = [], []
    for _ in range(LEAP_STEPS):
        moved = (move * flight).sum(1)
        over = moved - moved.clamp(least, most)
        hits = torch.heaviside(over[0] * over[1], none)
        flight = torch.addcmul(moved, over, hits, value=-_BACK)
        unbounced.append(moved[0, 1])
        path.append(flight[0])
    return Leap(torch.stack(path, 1), torch.stack(unbounced), flight)


def lengthwise(place: Tensor, speed: Tensor, free: Tensor) -> Tensor:
    """Returns y ``[60, W]`` of balls that bounce off the end walls unless they are ``free``, in a goal's mouth."""
    ways = constant(_GONE, place)
    path = torch.addcmul(place, speed, constant(tuple(accumulate(_GONE)), place))
    for _ in range(_BOUNCES):
        sign = speed.sign()
        ahead = path * sign
        hits = (ahead > _LONG) & ~free
        count = hits.cumsum(0)
        after = count > 0
        # A ball that has lain at the back of a goal bounces with less.
        lost = (ahead - speed.abs() * ways - rules.GOAL_BACK).clamp_min(0.0) * (hits & (count == 1))
        bounced = sign * (_BACK * _LONG - rules.BALL_RESTITUTION * (ahead - lost.sum(0)))
        path = torch.where(after, bounced, path)
        speed = torch.where(after, -rules.BALL_RESTITUTION * speed, speed)
    return path.clamp(-rules.GOAL_BACK, rules.GOAL_BACK)


def intercept(cars: Cars, path: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where each car can first meet the ball, ``[3, C, W]``, and after how many seconds; zeros for nowhere.

    A car is assumed to gain 1000 uu/s each second, up to its top speed, in any direction.
    """
    apart = length(path[:, :, None] - cars.position[:, None])  # [60, C, W]
    seconds = STEP * torch.arange(1, STEPS + 1, dtype=apart.dtype, device=apart.device)[:, None, None]
    speed = length(cars.velocity)
    reach = _ARM + seconds * (speed + 500.0 * seconds).clamp_max(rules.CAR_TOP_SPEED)
    meets = (apart <= reach) & (path[2, :, None] < _REACH_HEIGHT)
    first = torch.where(meets, seconds, 100.0).amin(0)
    meets_it = first < 100.0
    row = (first / STEP).round().long().clamp(1, STEPS) - 1
    where = path[:, :, None].expand(3, *apart.shape).gather(1, row.expand(3, 1, *row.shape))[:, 0]
    return where * meets_it, torch.where(meets_it, first, 0.0)
