"""Rocket's two teams, and its rule-based player.

The rule-based player kicks off, shoots at the rivals' goal, covers its own, fetches boost, flips and flies a little. It
computes all cars of all worlds at once with masks, in the view of their own team, which attacks +y.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..world import Sides
from . import rules
from .actions import chosen_for
from .match import COUNTED, TEAMS
from .prediction import FlightKernels, Forecast, forecast, intercept
from .state import RocketState, team_signs, team_turns
from .vectors import constant, dot, length, to_local, unit

_LOW_TANK, _EMPTY_TANK = 30.0, 12.0
_FAR_BALL = 1500.0
_HIGH_BALL = 300.0
_LEAD = 7  # row of the forecast half a second ahead


class _Sight(NamedTuple):
    """Quantities in a driver's own view, ``[3, C, W]`` and ``[C, W]``."""

    position: Tensor
    velocity: Tensor
    rotation: Tensor
    spin: Tensor  # in the car's axes
    ball: Tensor
    soon: Tensor  # the ball half a second ahead
    meeting: Tensor  # place where the car can meet it
    apart: Tensor  # distance to the ball
    speed: Tensor
    grounded: Tensor  # bool


def rule_controls(state: RocketState, flights: FlightKernels | None = None) -> Tensor:
    """Returns ``[8, C, W]`` of :class:`~rlstack.envs.rocket.driving.Control` for every car.

    Args:
        flights: see :func:`~rlstack.envs.rocket.prediction.forecast`.
    """
    sight = _look(state, forecast(state.ball, flights))
    chases = _is_nearest(state, sight)
    flies = _wants_to_fly(state, sight, chases)
    target = _target(state, sight, chases)
    ground = _drive(state, sight, target, chases)
    air = _steer_in_air(state, sight, flies)
    dodge = _dodges(sight, chases)
    takes_off = sight.grounded & (flies | dodge)
    controls = torch.where(sight.grounded, ground, air)
    throttle, steer, pitch, yaw, roll, jump, boost, handbrake = controls.unbind(0)
    jump = torch.where(takes_off, 1.0, jump)
    boost = torch.where(sight.grounded & flies, 1.0, boost)
    return torch.stack((throttle, steer, pitch, yaw, roll, jump, boost, handbrake))


def _look(state: RocketState, ahead: Forecast) -> _Sight:
    cars = state.cars
    turn = team_turns(cars.boost.shape[0], cars.boost)
    position, ball = cars.position * turn, state.ball.position[:, None] * turn
    place, seconds = intercept(cars, ahead.path)
    soon = ahead.path[:, _LEAD, None] * turn
    meeting = torch.where(seconds > 0, place * turn, soon)
    return _Sight(
        position,
        cars.velocity * turn,
        cars.rotation * turn,
        to_local(cars.rotation, cars.spin),
        ball,
        soon,
        meeting,
        length(ball - position),
        dot(cars.velocity, cars.rotation[0]),
        cars.wheels.sum(0) >= 3,
    )


def _is_nearest(state: RocketState, sight: _Sight) -> Tensor:
    """Returns each team's car that goes for the ball, preferably one behind it, ``[C, W]`` bool."""
    wrong_side = (sight.position[1] - sight.meeting[1]).clamp_min(0.0)
    effort = length(sight.meeting - sight.position) + wrong_side + 1.0e6 * (state.cars.gone > 0)
    half = len(effort) // 2
    teams = [team == team.amin(0) for team in (effort[:half], effort[half:])]
    return torch.cat(teams)


def _wants_to_fly(state: RocketState, sight: _Sight, chases: Tensor) -> Tensor:
    cars = state.cars
    near = length(sight.meeting - sight.position)
    high = (sight.ball[2] > _HIGH_BALL) & (sight.meeting[2] > _HIGH_BALL - 50.0)
    ahead = dot(unit(sight.meeting - sight.position), sight.rotation[0]) > 0.6
    begins = sight.grounded & (cars.boost >= 40.0) & (near < 1200.0) & ahead & (sight.speed > 0)
    goes_on = ~sight.grounded & (cars.boost > 0) & (cars.flipped == 0) & (near < 1600.0)
    return chases & high & (begins | goes_on)


def _target(state: RocketState, sight: _Sight, chases: Tensor) -> Tensor:
    """Returns the places to drive to, ``[3, C, W]``."""
    like = sight.apart
    zero = torch.zeros_like(like)
    goal = torch.stack((zero, zero + rules.HALF_LENGTH, zero))
    own = torch.stack((zero, zero - rules.HALF_LENGTH, zero))
    # Through the ball to the goal: from a point behind it, farther back for a greater distance.
    x, y, z = (sight.meeting - goal).unbind(0)
    behind = unit(torch.stack((x, y, torch.zeros_like(z))))
    near = length(sight.meeting - sight.position)
    wrong = (sight.position[1] > sight.meeting[1] - 50.0).to(like.dtype)
    back = torch.where(wrong > 0, 500.0, (0.4 * (near - 250.0)).clamp(0.0, 800.0))
    around = torch.where(sight.position[0] > sight.meeting[0], 250.0, -250.0) * wrong
    shot = sight.meeting + behind * back
    shot = torch.stack((shot[0] + around, shot[1], shot[2]))

    cover = 0.5 * (own + sight.soon)
    pad, there = _nearest_big_pad(state, sight)
    fetches = there & (state.cars.boost < _LOW_TANK) & (sight.apart > _FAR_BALL)
    rest = torch.where(fetches, pad, cover)
    idle = (state.cars.boost < _EMPTY_TANK) & fetches & (sight.ball[1] > 1000.0) & (sight.apart > 2500.0)
    target = torch.where(chases & ~idle, shot, rest)
    return torch.stack((target[0].clamp(-4000, 4000), target[1].clamp(-5050, 5050), target[2]))


def _nearest_big_pad(state: RocketState, sight: _Sight) -> tuple[Tensor, Tensor]:
    """Returns the nearest available pad, ``[3, C, W]``, and whether there is one."""
    cars = state.cars
    signs = team_signs(cars.boost.shape[0], cars.boost)
    rows = [row for row, place in enumerate(rules.PADS) if place in rules.BIG_PADS]
    x, y = (constant([rules.PADS[row][axis] for row in rows], cars.boost) for axis in (0, 1))
    away = torch.hypot(x - cars.position[0], y - cars.position[1])  # [6, C, W]
    waiting = state.pads.index_select(0, constant(rows, cars.boost, 0, torch.int64))
    away = torch.where(waiting[:, None] <= 0, away, 1.0e5)
    least, row = away.min(0)
    east, north = (column.reshape(-1)[row] * signs for column in (x, y))
    return torch.stack((east, north, torch.zeros_like(east))), (least < 2500.0) & (sight.grounded)


def _drive(state: RocketState, sight: _Sight, target: Tensor, chases: Tensor) -> Tensor:
    """Returns controls on the ground, ``[8, C, W]``."""
    x, y, _ = to_local(sight.rotation, target - sight.position).unbind(0)
    angle, apart = torch.atan2(y, x), torch.hypot(x, y)
    zero = torch.zeros_like(angle)
    backs = (angle.abs() > 2.4) & (apart < 600.0) & (sight.speed < 400.0)
    angle = torch.where(backs, torch.atan2(-y, -x), angle)
    turns = angle.abs() > 1.3
    # A place beside a fast car cannot be reached by turning harder.
    too_fast = ~backs & (angle.abs() > 0.8) & (sight.speed > 900.0) & (apart < 900.0)
    throttle = torch.where(backs, -1.0, torch.where(too_fast, -0.5, 1.0))
    arrives = ~chases & (apart < 400.0)
    throttle = torch.where(arrives, ((apart - 100.0) / 300.0).clamp(0.0, 1.0), throttle)
    steer = (3.0 * angle).clamp(-1.0, 1.0) * torch.where(backs, -1.0, 1.0)
    kick_off = (state.ball.velocity == 0).all(0)
    keen = (state.cars.boost > 20.0) | kick_off | (chases & (sight.apart < 1500.0))
    fast = (angle.abs() < 0.25) & (apart > 500.0) & (sight.speed < 2250.0) & keen & ~backs
    handbrake = turns & (sight.speed > 700.0) & ~backs
    flags = [flag.to(angle.dtype) for flag in (fast, handbrake)]
    return torch.stack((throttle, steer, zero, steer, zero, zero, *flags))


def _dodges(sight: _Sight, chases: Tensor) -> Tensor:
    """Returns the cars that jump to flip into the ball, ``[C, W]`` bool."""
    away = sight.soon - sight.position
    aligned = dot(unit(away), sight.rotation[0]) > 0.92
    # Into the ball, not away from the rivals' goal.
    forward = sight.rotation[0][1] > -0.2
    reach = (200.0 + 0.25 * sight.speed).clamp(250.0, 650.0)
    return chases & aligned & forward & (sight.apart < reach) & (sight.ball[2] < 220.0) & (sight.speed > 300.0)


def _steer_in_air(state: RocketState, sight: _Sight, flies: Tensor) -> Tensor:
    """Returns controls off the ground: nose to the ball if flying at it, otherwise level; a flip if it is near."""
    cars = state.cars
    aim = unit(to_local(sight.rotation, sight.meeting - sight.position))
    up = sight.rotation[:, 2]
    spin_roll, spin_pitch, spin_yaw = sight.spin.unbind(0)
    pitch = torch.where(flies, 2.0 * torch.atan2(aim[2], aim[0]), -2.0 * up[0]) + 0.5 * spin_pitch
    yaw = torch.where(flies, 2.0 * torch.atan2(aim[1], aim[0]), 0.0) - 0.5 * spin_yaw
    roll = 2.0 * up[1] + 0.3 * spin_roll
    aligned = aim[0] > 0.8
    boost = flies & aligned
    free = (cars.held == 0) & (cars.flipped == 0) & (cars.double_jumped == 0) & (cars.jumped > 0)
    flat = torch.hypot(aim[0], aim[1]).clamp_min(1.0e-6)
    near = sight.apart < 220.0 + 0.15 * length(cars.velocity)
    flips = free & near & (aim[2].abs() < 0.7) & ~(flies & (sight.apart > 300.0))
    pitch, yaw = torch.where(flips, -aim[0] / flat, pitch), torch.where(flips, aim[1] / flat, yaw)
    roll = torch.where(flips, 0.0, roll)
    # A tap makes a small jump; a held button reaches a high ball.
    holds = flies & (cars.jumping > 0) & (cars.jump_ticks < rules.JUMP_LONGEST - 8)
    sticks = [stick.clamp(-1.0, 1.0) for stick in (pitch, yaw, roll)]
    flags = [flag.to(pitch.dtype) for flag in (flips | holds, boost)]
    zero = torch.zeros_like(pitch)
    return torch.stack((torch.ones_like(pitch), zero, *sticks, flags[0], flags[1], zero))


# -- the two sides -------------------------------------------------------------------------------------------------


def _goals(following: TensorDictBase) -> Tensor:
    episode = following.get("episode")
    return torch.cat((episode.get("goals_for"), episode.get("goals_against")), -1)


def _rule(env: Any, worlds: Tensor) -> Tensor:
    """Returns the rule-based player's actions ``[n, C, ...]`` in some worlds of a :class:`Rocket`."""
    state = env.worlds.world
    if len(worlds) < state.clock.shape[-1]:
        state = state.map(lambda value: value.index_select(-1, worlds))
    return chosen_for(env.options["actions"], rule_controls(state, env.kernels.flights))


SIDES = Sides(
    names=TEAMS,
    score=_goals,
    scripted={"rule": _rule},
    anchors={"random": 800.0, "rule": 1200.0},
    mirrored=(("goals_for", "goals_against"), *((f"{name}_{TEAMS[0]}", f"{name}_{TEAMS[1]}") for name in COUNTED)),
    one_sided=("reward_",),
)
