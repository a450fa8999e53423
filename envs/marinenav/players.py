"""Classical players of MarineNav: artificial potential field and reciprocal velocity obstacles.

Both choose a velocity, in metres per second in the robot's axes (x ahead, y to starboard), from its observation;
:func:`sail` converts it to thrust rates. Their numbers were chosen by hand among two dozen on 60 random episodes with
a seed that is not reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .rules import CONTINUOUS_THRUST_RATE, HULL_RADIUS, THRUST_RATES, WIDTH

FIELD_SPEED, REACH, GAIN, ASIDE, BRAKING = 1.5, 10.0, 8.0, 0.3, 0.15
"""Numbers of the potential field: top speed (m/s), gap below which an object repels (m), strength of the repulsion (m),
the part of it that is added to starboard, and the assumed deceleration of a robot (m/s^2)."""
CRUISE, HORIZON, MARGIN = 2.0, 6.0, 4.0
"""Numbers of reciprocal velocity obstacles: top speed (m/s), time within which collisions are avoided (s), and a margin
of the radii (m), since a vessel takes seconds to turn to a velocity that the method assumes to be reached at once."""
_STILL = 0.3  # m/s; slower objects count as obstacles, which do not give way
_STEP = 0.5  # s between two actions
_THRUST = (-500.0, 1000.0)  # N
_MOST_MOMENT = 0.5 * WIDTH * (_THRUST[1] - _THRUST[0])  # N m
_MASS, _INERTIA = 380.0, 1430.0  # including the added mass of water, kg and kg m^2
_DRAG, _TURN_DRAG = (100.0, 150.0), (980.0, 950.0)  # linear and quadratic

Wanted = Callable[[TensorDictBase], Tensor]
"""Chooses a velocity ``[..., 2]`` from an observation (``self [..., 7]``, ``objects [..., K, 5]``, ``mask``)."""


def potential_field(observation: TensorDictBase) -> Tensor:
    """Returns the velocity ``[..., 2]`` along an artificial potential field (Khatib 1986; Ge and Cui 2002).

    The goal attracts with constant strength. An approaching object repels according to the gap that would remain after
    braking, and a little to starboard, since a robot that meets it head-on would otherwise stop before it.
    """
    goal, own, position, speed, radius = _seen(observation)
    distance = position.norm(dim=-1, keepdim=True).clamp_min(1e-3)
    toward = position / distance
    closing = ((own[..., None, :] - speed) * toward).sum(-1, keepdim=True).clamp_min(0)
    gap = (distance - radius - HULL_RADIUS - closing.square() / (2 * BRAKING)).clamp_min(0.3)
    strength = torch.where((gap < REACH) & (closing > 0), GAIN * (1 / gap - 1 / REACH), 0.0)
    strength = strength * observation.get("mask")[..., None]
    aside = torch.stack((toward[..., 1], -toward[..., 0]), -1)
    aside = aside * aside[..., 1:].sign()  # across the line of sight, to starboard
    force = goal / goal.norm(dim=-1, keepdim=True).clamp_min(1e-3) + (strength * (ASIDE * aside - toward)).sum(-2)
    return FIELD_SPEED * force / force.norm(dim=-1, keepdim=True).clamp_min(1.0)


def reciprocal_velocity(observation: TensorDictBase) -> Tensor:
    """Returns the velocity ``[..., 2]`` in m/s nearest to the preferred one that avoids objects for :data:`HORIZON`.

    Optimal reciprocal collision avoidance (van den Berg et al. 2011): every object forbids a half-plane of velocities;
    a moving one is expected to do half of the avoiding, a still one none. Candidates are the preferred velocity, its
    projections onto the borders of half-planes, and their intersections with each other and with the circle of top
    speed. The allowed candidate nearest to the preferred velocity is chosen; without any, the one that violates the
    constraints least.
    """
    goal, own, position, velocity, radius = _seen(observation)
    preferred = CRUISE * goal / goal.norm(dim=-1, keepdim=True).clamp_min(1e-3)

    # Of each object's half-plane: a point of the border, and the allowed side's normal, [..., K, 2].
    reach, relative = radius + HULL_RADIUS + MARGIN, own[..., None, :] - velocity
    distance = position.norm(dim=-1, keepdim=True).clamp_min(1e-3)
    # The velocity obstacle is a cone truncated by a disc around position / horizon; inside the reach it is the disc of
    # the next step.
    horizon = torch.where(distance > reach, HORIZON, _STEP)
    from_disc = relative - position / horizon
    from_disc_length = from_disc.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    disc_normal = from_disc / from_disc_length
    disc_change = (reach / horizon - from_disc_length) * disc_normal
    leg = (distance.square() - reach.square()).clamp_min(1e-6).sqrt()
    left = position[..., :1] * relative[..., 1:] - position[..., 1:] * relative[..., :1] < 0
    side = torch.where(left, -1.0, 1.0)
    x, y = position[..., :1], position[..., 1:]
    direction = torch.cat((x * leg - side * y * reach, side * x * reach + y * leg), -1) / distance.square()
    leg_change = (relative * direction).sum(-1, keepdim=True) * direction - relative
    leg_normal = side * torch.cat((-direction[..., 1:], direction[..., :1]), -1)
    along = (from_disc * position).sum(-1, keepdim=True)
    on_disc = (distance <= reach) | ((along < 0) & (along.square() > (reach * from_disc_length).square()))
    normal = torch.where(on_disc, disc_normal, leg_normal)
    change = torch.where(on_disc, disc_change, leg_change)
    share = torch.where(velocity.norm(dim=-1, keepdim=True) < _STILL, 1.0, 0.5)
    point = own[..., None, :] + share * change

    # Velocities on the borders, [..., n, 2]: projections, ends at the top speed, and crossings.
    border = torch.stack((-normal[..., 1], normal[..., 0]), -1)
    offset = ((preferred[..., None, :] - point) * border).sum(-1, keepdim=True)
    middle = (point * border).sum(-1, keepdim=True)
    half = (middle.square() - point.square().sum(-1, keepdim=True) + CRUISE**2).clamp_min(0).sqrt()
    candidates = [preferred[..., None, :], point + offset * border]
    candidates += [point + (half - middle) * border, point - (half + middle) * border]
    for first, second in itertools.combinations(range(point.shape[-2]), 2):
        a, b, p, q = border[..., first, :], normal[..., second, :], point[..., first, :], point[..., second, :]
        slope = (a * b).sum(-1, keepdim=True)
        reached = ((q - p) * b).sum(-1, keepdim=True) / torch.where(slope.abs() < 1e-6, torch.nan, slope)
        candidates.append((p + reached * a)[..., None, :])

    there = observation.get("mask") > 0.5
    tried = torch.cat(candidates, -2)  # [..., C, 2]
    excess = ((point[..., None, :, :] - tried[..., :, None, :]) * normal[..., None, :, :]).sum(-1)  # [..., C, K]
    broken = torch.where(there[..., None, :], excess, -torch.inf).amax(-1).clamp_min(0)
    broken = torch.maximum(broken, tried.norm(dim=-1) - CRUISE)
    cost = torch.where(broken <= 1e-4, (tried - preferred[..., None, :]).norm(dim=-1), 1e3 * (1 + broken))
    best = cost.nan_to_num(torch.inf).argmin(-1)
    return tried.gather(-2, best[..., None, None].expand(*best.shape, 1, 2)).squeeze(-2)


def sail(choose: Wanted, observation: TensorDictBase, continuous: bool = True) -> Tensor:
    """Returns actions that bring a robot to the velocity that a player chooses.

    It turns towards it, and slows down while pointing elsewhere.

    Args:
        continuous: whether to return thrust rates ``[..., 2]`` in [-1, 1], or the nearest of the 25 choices ``[...]``.
    """
    own, wanted = observation.get("self"), choose(observation)
    ahead, yaw_rate, thrust = own[..., 2], own[..., 4], own[..., 5:7]
    off = torch.atan2(wanted[..., 1], wanted[..., 0])
    speed, turn = wanted.norm(dim=-1) * off.cos().clamp_min(0), (1.5 * off).clamp(-1, 1)
    # Compensates drag at the wanted speed and yaw rate, and reduces the difference to them.
    force = _DRAG[0] * speed + _DRAG[1] * speed.square() + _MASS * (speed - ahead)
    moment = _TURN_DRAG[0] * turn + _TURN_DRAG[1] * turn * turn.abs() + 2 * _INERTIA * (turn - yaw_rate)
    moment = moment.clamp(-_MOST_MOMENT, _MOST_MOMENT)
    aim = torch.stack((0.5 * force + moment / WIDTH, 0.5 * force - moment / WIDTH), -1).clamp(*_THRUST)
    rates = ((aim - thrust) / (_STEP * CONTINUOUS_THRUST_RATE)).clamp(-1, 1)
    if continuous:
        return rates
    known = torch.tensor(THRUST_RATES, dtype=rates.dtype, device=rates.device) / CONTINUOUS_THRUST_RATE
    nearest = (rates[..., None] - known).abs().argmin(-1)
    return nearest[..., 0] * len(THRUST_RATES) + nearest[..., 1]


def _seen(observation: TensorDictBase) -> tuple[Tensor, ...]:
    """Returns goal and velocity ``[..., 2]``; of objects position, velocity, radius, ``[..., K, 2 or 1]`` each."""
    own, objects = observation.get("self"), observation.get("objects")
    return own[..., :2], own[..., 2:4], objects[..., :2], objects[..., 2:4], objects[..., 4:]


PLAYERS: dict[str, Wanted] = {"orca": reciprocal_velocity, "apf": potential_field}
"""Players by the name that ``policy=`` takes."""
