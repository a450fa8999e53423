"""Rewards: named terms, each with a weight and a group; modes weight the groups.

Values are ``[C, W]`` unless noted, in the view of a car's own team.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..world import check_known
from . import rules
from .prediction import Forecast
from .simulation import Events
from .state import RocketState, team_signs
from .vectors import constant, dot, length

MODES: dict[str, dict[str, float]] = {
    "sparse": {"sparse": 1.0},
    "dense": {"sparse": 0.2, "ball": 1.0, "goal": 1.0, "positioning": 1.0, "boost": 1.0, "aerial": 1.0, "penalty": 1.0},
    "hybrid": {
        "sparse": 1.0,
        "ball": 0.5,
        "goal": 0.7,
        "positioning": 0.6,
        "boost": 0.5,
        "aerial": 0.8,
        "penalty": 0.7,
    },
}
"""Factors of groups; missing groups do not count."""

TERMS: dict[str, tuple[str, float]] = {
    "goal": ("sparse", 10.0),  # the team scores
    "conceded": ("sparse", -10.0),
    "own_goal": ("sparse", -15.0),  # by the car that touched the ball last
    "shot": ("sparse", 2.0),  # a touch after which a goal is predicted
    "save": ("sparse", 3.0),  # a touch after which one against the team no longer is
    "demo": ("sparse", 1.0),
    "demoed": ("sparse", -1.0),
    "touch": ("ball", 0.1),  # by how hard it is, 1 at 2000 uu/s
    "speed_to_ball": ("ball", 0.05),  # share of the top speed
    "approach": ("ball", 0.01),  # by how much nearer the ball is, 1 at 100 uu
    "ball_to_goal": ("goal", 0.2),  # the ball's speed towards the rivals' goal, share of its top speed
    "kick_off": ("goal", 1.5),  # the first to bring the ball 500 uu into the other half
    "spacing": ("positioning", 0.03),  # distance to the nearest mate, 1 from 1500 uu on
    "big_pad": ("boost", 0.15),
    "small_pad": ("boost", 0.05),
    "boost_use": ("boost", -0.02),  # tenths of a tank
    "aerial_touch": ("aerial", 0.5),  # of a ball above 300 uu, by a car that is off the ground
    "starved": ("penalty", -0.01),  # less than a tenth of a tank
    "idle": ("penalty", -0.01),  # slower than 100 uu/s
}
"""Group and weight of each term."""

_GOAL_CENTRE = rules.HALF_LENGTH
_OPENED = 500.0
_AERIAL = 300.0


class Before(NamedTuple):
    """Quantities of the previous step that rewards need."""

    distance: Tensor  # [C, W] to the ball
    threat: Tensor  # [W] of Forecast
    opening: Tensor  # [W] flag: the kick-off is undecided
    last_touch: Tensor  # [W] the car that touched the ball last, -1: none


def make_weights(mode: str, weights: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the factor of each term.

    Args:
        mode: a key of :data:`MODES`.
        weights: weights by term that replace those of :data:`TERMS`.

    Raises:
        ValueError: the mode or a term is unknown.
    """
    check_known("rewards", [mode], MODES)
    check_known("reward_weights", weights or (), TERMS)
    own = {name: weight for name, (_, weight) in TERMS.items()} | dict(weights or {})
    return {name: own[name] * MODES[mode].get(group, 0.0) for name, (group, _) in TERMS.items()}


def begin(state: RocketState, ahead: Forecast) -> Before:
    """Returns the quantities at the beginning of an episode."""
    opening = (state.ball.velocity == 0).all(0).to(state.clock.dtype)
    return Before(distance_to_ball(state), ahead.threat, opening, torch.full_like(state.clock, -1.0))


def distance_to_ball(state: RocketState) -> Tensor:
    """Returns distances in uu, ``[C, W]``."""
    return length(state.ball.position[:, None] - state.cars.position)


def judge(state: RocketState, events: Events, before: Before, ahead: Forecast) -> tuple[Tensor, Before]:
    """Returns the unweighted terms of a step, ``[terms, C, W]``, in the order of :data:`TERMS`.

    Args:
        events: events of all ticks of the step.
        before, ahead: quantities of the previous step, and forecasts of the balls.
    """
    cars, ball = state.cars, state.ball
    side = team_signs(cars.boost.shape[0], cars.boost)
    kind = cars.boost.dtype
    touched = (events.touches > 0).to(kind)
    # Of several that touch in the same step, the last in the list.
    places = torch.arange(1, len(touched) + 1, dtype=kind, device=touched.device)[:, None]
    last = (touched * places).amax(0) - 1
    last = torch.where(last >= 0, last, before.last_touch)
    scored = state.goal * side
    mine = (torch.arange(len(side), device=last.device)[:, None] == last).to(kind)
    threat, threatened = ahead.threat * side, before.threat * side
    distance = distance_to_ball(state)
    towards = dot(cars.velocity, ball.position[:, None] - cars.position) / distance.clamp_min(1.0)
    north = ball.position[1]
    kick_off = torch.where(north.abs() > _OPENED, torch.sign(north), 0.0) * before.opening  # who has just won it
    opening = before.opening * (kick_off == 0).to(kind)
    x, y, z = ball.position[:, None].expand(3, *touched.shape)
    goal = torch.stack((-x, side * _GOAL_CENTRE - y, rules.GOAL_HEIGHT / 2 - z))  # the rivals', from the ball
    to_goal = dot(goal, ball.velocity[:, None]) / length(goal).clamp_min(1.0)
    count, places = len(touched), cars.position
    teams = [car // ((count + 1) // 2) for car in range(count)]
    mates = [one != other and teams[one] == teams[other] for one in range(count) for other in range(count)]
    mates = constant(mates, cars.boost[0], dtype=torch.bool).unflatten(0, (count, count)) & ~cars.gone.isinf()[:, None]
    nearest = torch.where(mates, length(places[:, :, None] - places[:, None]), 1.0e6).amin(0)
    off = (cars.wheels.sum(0) < 3) & (ball.position[2] > _AERIAL)
    there = (cars.gone == 0).to(kind)
    flag = {
        "goal": scored > 0,
        "conceded": scored < 0,
        "own_goal": (scored < 0) & (mine > 0),
        "shot": (touched > 0) & (threat > 0) & (threatened <= 0),
        "save": (touched > 0) & (threat >= 0) & (threatened < 0) & (state.goal == 0),
        "aerial_touch": (touched > 0) & off,
        "starved": (cars.boost < 10.0) & (there > 0),
        "idle": (length(cars.velocity) < 100.0) & (there > 0),
    }
    value = {
        "demo": events.demolishes,
        "demoed": events.demolished,
        "touch": (events.power / 2000.0).clamp_max(1.0) * touched,
        "speed_to_ball": towards / rules.CAR_TOP_SPEED,
        "approach": (before.distance - distance) / 100.0 * there,
        "ball_to_goal": to_goal / rules.BALL_TOP_SPEED,
        "kick_off": kick_off * side,
        # 1 from 1500 uu to the nearest mate on, and 0 for a car without mates.
        "spacing": torch.where(nearest < 1.0e5, (nearest / 1500.0).clamp_max(1.0), 0.0),
        "big_pad": events.big_pads,
        "small_pad": events.small_pads,
        "boost_use": events.boost_used / 10.0,
    }
    flags = dict(zip(flag, torch.stack([row.expand_as(touched) for row in flag.values()]).to(kind).unbind(0)))
    terms = {**flags, **{name: row.expand_as(touched) for name, row in value.items()}}
    return torch.stack([terms[name] for name in TERMS]), Before(distance, ahead.threat, opening, last)
