"""Forecasts of an untouched ball: four seconds in steps of 1/15 s, with simple bounces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .state import Ball, Cars
from .vectors import dot, length

STEPS = 60
STEP = 1 / 15
SHOT_STEPS = 30
"""Number of steps within which a predicted goal is a threat."""
LEAP_STEPS = 10
"""Number of steps that are computed at once."""

_WIDE, _LONG = rules.HALF_WIDTH - rules.BALL_RADIUS, rules.HALF_LENGTH - rules.BALL_RADIUS
_TOP = rules.HEIGHT - rules.BALL_RADIUS
_POST, _BAR = rules.GOAL_HALF_WIDTH - rules.BALL_RADIUS, rules.GOAL_HEIGHT - rules.BALL_RADIUS
_KEPT = (1 - rules.BALL_DRAG) ** STEP
_REACH_HEIGHT = 500.0  # higher balls are not met
_ARM = 150.0  # a car and the ball touch at about this distance


class Forecast(NamedTuple):
    """The flights of the balls."""

    path: Tensor  # [3, 60, W] after 1/15 s, 2/15 s, ...
    threat: Tensor  # [W] 1: blue is about to score, -1: orange is, 0: neither within two seconds


def forecast(ball: Ball, fly_on: Callable[[Tensor], Leap] | None = None) -> Forecast:
    """Computes the flights without spin, ramps and corners.

    Args:
        fly_on: :func:`leap`, eager (None) or compiled.
    """
    moves = (dot(ball.velocity, ball.velocity) > 0).to(ball.velocity.dtype)
    flight = torch.cat((ball.position, ball.velocity, (rules.GRAVITY * STEP * moves)[None]))
    threat = torch.zeros_like(moves)
    paths = []
    for step in range(0, STEPS, LEAP_STEPS):
        path, flight, scored = (fly_on or leap)(flight)
        if step < SHOT_STEPS:
            threat = torch.where(threat == 0, scored, threat)
        paths.append(path)
    return Forecast(torch.cat(paths, 1), threat)


class Leap(NamedTuple):
    """Some steps of flights."""

    path: Tensor  # [3, 10, W]
    flight: Tensor  # [7, W] at the end
    scored: Tensor  # [W] sign of y where a ball has crossed a goal line, otherwise 0


def leap(flight: Tensor) -> Leap:
    """Computes ten steps of flights ``[7, W]``: place, velocity, and what gravity takes off the latter in a step."""
    x, y, z, vx, vy, vz, fall = flight.unbind(0)
    scored = torch.zeros_like(z)
    points = []
    for _ in range(LEAP_STEPS):
        vx, vy, vz = vx * _KEPT, vy * _KEPT, vz * _KEPT - fall
        x, y, z = x + vx * STEP, y + vy * STEP, z + (vz + 0.5 * fall) * STEP
        x, vx = _reflected(x, vx, _WIDE)
        free = (x.abs() < _POST) & (z < _BAR)
        bounced, back = _reflected(y, vy, _LONG)
        y, vy = torch.where(free, y.clamp(-rules.GOAL_BACK, rules.GOAL_BACK), bounced), torch.where(free, vy, back)
        up = 0.5 * (rules.BALL_REST + _TOP)
        shifted, vz = _reflected(z - up, vz, 0.5 * (_TOP - rules.BALL_REST))
        z = shifted + up
        scored = torch.where((scored == 0) & (y.abs() > rules.GOAL_LINE), torch.sign(y), scored)
        points.append(torch.stack((x, y, z)))
    return Leap(torch.stack(points, 1), torch.stack((x, y, z, vx, vy, vz, fall)), scored)


def _reflected(place: Tensor, speed: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Reflects a flight between walls at ``-most`` and ``most``, off which the ball bounces with less speed."""
    beyond = place.abs() - most
    hits = (beyond > 0) & (place * speed > 0)
    back = torch.sign(place) * (most - rules.BALL_RESTITUTION * beyond)
    return torch.where(hits, back, place), torch.where(hits, -rules.BALL_RESTITUTION * speed, speed)


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
    found = first < 100.0
    row = (first / STEP).round().long().clamp(1, STEPS) - 1
    where = path[:, :, None].expand(3, *apart.shape).gather(1, row.expand(3, 1, *row.shape))[:, 0]
    return where * found, torch.where(found, first, 0.0)
