"""Rocket's two teams, and its rule-based player.

The rule-based player kicks off, shoots at the rivals' goal, covers its own, fetches boost, flips and flies a little. It
computes all cars of all worlds at once with masks, in the view of their own team, which attacks +y.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ..world import Sides
from . import rules
from .actions import chosen_for
from .match import COUNTED, TEAMS
from .prediction import FlightKernels, forecast, intercept
from .state import RocketState, team_signs, team_turns
from .vectors import constant, dot, length, to_local, unit

_LOW_TANK, _EMPTY_TANK = 30.0, 12.0
_FAR_BALL = 1500.0
_HIGH_BALL = 300.0
_LEAD = 7  # row of the forecast half a second ahead


def rule_controls(state: RocketState, flights: FlightKernels | None = None) -> Tensor:
    """Returns ``[8, C, W]`` of :class:`~rlstack.envs.rocket.driving.Control` for every car.

    Args:
        flights: see :func:`~rlstack.envs.rocket.prediction.forecast`.
    """
    # The driver's own view, [3, C, W] and [C, W]; spin in the car's axes.
    cars, path = state.cars, forecast(state.ball, flights).path
    count, kind = len(cars.boost), cars.boost.dtype
    turn = team_turns(count, cars.boost)
    position, rotation, ball = cars.position * turn, cars.rotation * turn, state.ball.position[:, None] * turn
    place, seconds = intercept(cars, path)
    soon = path[:, _LEAD, None] * turn  # the ball half a second ahead
    meeting = torch.where(seconds > 0, place * turn, soon)  # where the car can meet it
    to_meeting = meeting - position
    near, apart = length(to_meeting), length(ball - position)
    speed, grounded = dot(cars.velocity, cars.rotation[0]), cars.wheels.sum(0) >= 3
    zero = torch.zeros_like(apart)

    # Each team's car that goes for the ball, preferably one behind it; whether it flies, or jumps to flip into it.
    wrong_side = (position[1] - meeting[1]).clamp_min(0.0)
    effort = near + wrong_side + 1.0e6 * (cars.gone > 0)
    half = count // 2
    chases = torch.cat([team == team.amin(0) for team in (effort[:half], effort[half:])])
    high = (ball[2] > _HIGH_BALL) & (meeting[2] > _HIGH_BALL - 50.0)
    ahead = dot(unit(to_meeting), rotation[0]) > 0.6
    begins = grounded & (cars.boost >= 40.0) & (near < 1200.0) & ahead & (speed > 0)
    goes_on = ~grounded & (cars.boost > 0) & (cars.flipped == 0) & (near < 1600.0)
    flies = chases & high & (begins | goes_on)
    aligned = dot(unit(soon - position), rotation[0]) > 0.92
    forward = rotation[0][1] > -0.2  # into the ball, not away from the rivals' goal
    reach = (200.0 + 0.25 * speed).clamp(250.0, 650.0)
    dodges = chases & aligned & forward & (apart < reach) & (ball[2] < 220.0) & (speed > 300.0)

    # The place to drive to. Through the ball to the goal: from a point behind it, farther back for a greater distance.
    goal = torch.stack((zero, zero + rules.HALF_LENGTH, zero))
    own = torch.stack((zero, zero - rules.HALF_LENGTH, zero))
    x, y, _ = (meeting - goal).unbind(0)
    behind = unit(torch.stack((x, y, zero)))
    wrong = (position[1] > meeting[1] - 50.0).to(kind)
    back = torch.where(wrong > 0, 500.0, (0.4 * (near - 250.0)).clamp(0.0, 800.0))
    around = torch.where(position[0] > meeting[0], 250.0, -250.0) * wrong
    shot = meeting + behind * back
    shot = torch.stack((shot[0] + around, shot[1], shot[2]))
    # Or to the nearest big pad, or to cover the own goal.
    big = [row for row, place in enumerate(rules.PADS) if place in rules.BIG_PADS]
    x, y = (constant([rules.PADS[row][axis] for row in big], cars.boost) for axis in (0, 1))
    away = torch.hypot(x - cars.position[0], y - cars.position[1])  # [6, C, W]
    waiting = state.pads.index_select(0, constant(big, cars.boost, 0, torch.int64))
    least, row = torch.where(waiting[:, None] <= 0, away, 1.0e5).min(0)
    signs = team_signs(count, cars.boost)
    east, north = (column.reshape(-1)[row] * signs for column in (x, y))
    there = (least < 2500.0) & grounded
    fetches = there & (cars.boost < _LOW_TANK) & (apart > _FAR_BALL)
    rest = torch.where(fetches, torch.stack((east, north, zero)), 0.5 * (own + soon))
    idle = (cars.boost < _EMPTY_TANK) & fetches & (ball[1] > 1000.0) & (apart > 2500.0)
    x, y, z = torch.where(chases & ~idle, shot, rest).unbind(0)
    target = torch.stack((x.clamp(-4000, 4000), y.clamp(-5050, 5050), z))

    # Controls on the ground.
    x, y, _ = to_local(rotation, target - position).unbind(0)
    angle, distance = torch.atan2(y, x), torch.hypot(x, y)
    backs = (angle.abs() > 2.4) & (distance < 600.0) & (speed < 400.0)
    angle = torch.where(backs, torch.atan2(-y, -x), angle)
    # A place beside a fast car cannot be reached by turning harder.
    too_fast = ~backs & (angle.abs() > 0.8) & (speed > 900.0) & (distance < 900.0)
    throttle = torch.where(backs, -1.0, torch.where(too_fast, -0.5, 1.0))
    arrives = ~chases & (distance < 400.0)
    throttle = torch.where(arrives, ((distance - 100.0) / 300.0).clamp(0.0, 1.0), throttle)
    steer = (3.0 * angle).clamp(-1.0, 1.0) * torch.where(backs, -1.0, 1.0)
    kick_off = (state.ball.velocity == 0).all(0)
    keen = (cars.boost > 20.0) | kick_off | (chases & (apart < 1500.0))
    fast = (angle.abs() < 0.25) & (distance > 500.0) & (speed < 2250.0) & keen & ~backs
    handbrake = (angle.abs() > 1.3) & (speed > 700.0) & ~backs
    takes_off, boosts = flies | dodges, fast | flies
    flags = [flag.to(kind) for flag in (takes_off, boosts, handbrake)]
    ground = torch.stack((throttle, steer, zero, steer, zero, *flags))

    # Off the ground: nose to the ball if flying at it, otherwise level; a flip if it is near.
    aim, up = unit(to_local(rotation, to_meeting)), rotation[:, 2]
    spin_roll, spin_pitch, spin_yaw = to_local(cars.rotation, cars.spin).unbind(0)
    pitch = torch.where(flies, 2.0 * torch.atan2(aim[2], aim[0]), -2.0 * up[0]) + 0.5 * spin_pitch
    yaw = torch.where(flies, 2.0 * torch.atan2(aim[1], aim[0]), 0.0) - 0.5 * spin_yaw
    roll = 2.0 * up[1] + 0.3 * spin_roll
    free = (cars.held == 0) & (cars.flipped == 0) & (cars.double_jumped == 0) & (cars.jumped > 0)
    flat = torch.hypot(aim[0], aim[1]).clamp_min(1.0e-6)
    close = apart < 220.0 + 0.15 * length(cars.velocity)
    flips = free & close & (aim[2].abs() < 0.7) & ~(flies & (apart > 300.0))
    pitch, yaw = torch.where(flips, -aim[0] / flat, pitch), torch.where(flips, aim[1] / flat, yaw)
    roll = torch.where(flips, 0.0, roll)
    # A tap makes a small jump; a held button reaches a high ball.
    holds = flies & (cars.jumping > 0) & (cars.jump_ticks < rules.JUMP_LONGEST - 8)
    sticks = [stick.clamp(-1.0, 1.0) for stick in (pitch, yaw, roll)]
    flags = [flag.to(kind) for flag in (flips | holds, flies & (aim[0] > 0.8))]
    air = torch.stack((zero + 1, zero, *sticks, *flags, zero))
    return torch.where(grounded, ground, air)


# -- the two sides -------------------------------------------------------------------------------------------------


def _rule(env: Any, worlds: Tensor) -> Tensor:
    """Returns the rule-based player's actions ``[n, C, ...]`` in some worlds of a :class:`Rocket`."""
    state = env.worlds.world
    if len(worlds) < state.clock.shape[-1]:
        state = state.map(lambda value: value.index_select(-1, worlds))
    return chosen_for(env.options["actions"], rule_controls(state, env.kernels.flights))


def _goals(following: TensorDictBase) -> Tensor:
    """Returns the goals of both teams, ``[W, 2]``."""
    return torch.cat([following["episode", f"goals_{whose}"] for whose in ("for", "against")], -1)


SIDES = Sides(
    names=TEAMS,
    score=_goals,
    scripted={"rule": _rule},
    anchors={"random": 800.0, "rule": 1200.0},
    mirrored=(("goals_for", "goals_against"), *((f"{name}_{TEAMS[0]}", f"{name}_{TEAMS[1]}") for name in COUNTED)),
    one_sided=("reward_",),
)
