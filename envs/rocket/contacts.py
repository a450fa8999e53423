"""All contacts of a tick: bodies with the field, cars with cars, and cars with the ball.

:func:`meet_where_needed` processes only bodies that are near others, which saves most of the work on a CPU;
:func:`meet_everywhere` computes all contacts of all worlds under masks, without branching on data. Both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import rules
from .ball import struck
from .bumps import near_pairs, with_all_pairs, with_pairs
from .driving import Motion
from .field import Field
from .rules import DT
from .solver import Met, Moved, Scene, sideways, untouched
from .vectors import constant, cross, dot, put, taken, to_local, to_world

_CAR_REACH = 96.0  # uu; greatest distance of a part of a car from its origin
_BALL_REACH = _CAR_REACH + rules.BALL_RADIUS + 2.0


class ContactKernels(NamedTuple):
    """The functions that compute contacts, eager or compiled."""

    press: Callable[..., Any]
    crashes: Callable[..., Any]
    hits: Callable[..., Any]


class Corner(NamedTuple):
    """The corner of a car's box with the least gap to the field."""

    arm: Tensor  # [3, ...] from the car's origin
    gap: Tensor  # [...]
    normal: Tensor  # [3, ...]


def meet_everywhere(scene: Scene, body: Corner) -> Met:
    """Computes all contacts of all worlds.

    Args:
        body: the deepest corners of all cars.
    """
    cars = scene.cars
    met = untouched(scene)
    pressed = pressed_by(body, cars.rotation, cars.touch_normal, scene.motion)
    touching = pressed.touching > cars.gone  # a flag, and whole ticks
    met = met._replace(
        cars=Moved(*(torch.where(touching, new, old) for new, old in zip(pressed.moved, met.cars))),
        touching=touching.to(cars.boost.dtype),
        touch_normal=torch.where(touching, pressed.normal, cars.touch_normal),
    )
    return struck(scene, with_all_pairs(scene, met) if len(cars.boost) > 1 else met)


def meet_where_needed(scene: Scene, near_walls: Tensor, field: Field, kernels: ContactKernels) -> Met:
    """Computes the contacts of worlds that may have one; branches on data.

    Args:
        near_walls: ``[C, W]`` bool, cars that may touch another surface than the floor.
    """
    met = untouched(scene)
    cars = scene.cars
    low = clearance(cars.rotation, cars.position[2]) < rules.BODY_GAP
    index = ((low | near_walls) & (cars.gone == 0)).flatten().nonzero()[:, 0]
    if len(index):
        motion = Motion(*(taken(value, index) for value in scene.motion))
        body = (taken(value, index) for value in (cars.position, cars.rotation, cars.touch_normal))
        pressed = kernels.press(*body, motion, field)
        met = met._replace(
            cars=Moved(*(put(value, index, new) for value, new in zip(met.cars, pressed.moved))),
            touching=put(met.touching, index, pressed.touching),
            touch_normal=put(met.touch_normal, index, pressed.normal),
        )
    if cars.boost.shape[0] > 1:
        first, second, worlds = near_pairs(cars)
        if len(worlds):
            met = with_pairs(scene, met, first, second, worlds, kernels.crashes)
    away = scene.ball.position[:, None] - cars.position
    worlds = ((dot(away, away) < _BALL_REACH**2) & (cars.gone == 0)).any(0).nonzero()[:, 0]
    return struck(scene, met, worlds, kernels.hits) if len(worlds) else met


# -- a body on the field: in each tick, the deepest corner may touch ---------------------------------------------------


def clearance(rotation: Tensor, height: Tensor) -> Tensor:
    """Returns the height ``[...]`` of the lowest corner of cars at a height above the floor."""
    forward, right, up = rotation[:, 2].unbind(0)
    (hx, hy, hz), (ox, _, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    return height + ox * forward + oz * up - hx * forward.abs() - hy * right.abs() - hz * up.abs()


def deepest(arms: Tensor, gaps: Tensor, normals: Tensor) -> Corner:
    """Returns the deepest of corners ``[..., 8, ...]``, the first of equally deep ones."""
    gap, row = gaps.min(0)
    found = torch.stack((arms, normals)).gather(2, row.expand(2, 3, 1, *row.shape))[:, :, 0]
    return Corner(found[0], gap, found[1])


def corner_arms(rotation: Tensor) -> Tensor:
    """Returns the offsets of the corners from the origin, ``[3, 8, ...]``."""
    corners = [
        middle + sign * half
        for axis, (half, middle) in enumerate(zip(rules.BOX_HALF, rules.HITBOX_CENTRE))
        for sign in (corner[axis] for corner in product((1, -1), repeat=3))
    ]
    return (constant(corners, rotation[0, 0]).unflatten(0, (3, 1, 8)) * rotation[:, :, None]).sum(0)


class Pressed(NamedTuple):
    """The effect of the field on bodies, ``[..., n]``."""

    moved: Moved
    touching: Tensor  # flag
    normal: Tensor  # of the last touch


def press(position: Tensor, rotation: Tensor, last: Tensor, motion: Motion, field: Field) -> Pressed:
    """Makes a tick of cars whose deepest corner may touch the field.

    Args:
        last: normals of their last touches ``[3, ...]``.
    """
    arms = corner_arms(rotation)
    return pressed_by(deepest(arms, *field.inside(position[:, None] + arms)), rotation, last, motion)


def pressed_by(corner: Corner, rotation: Tensor, last: Tensor, motion: Motion) -> Pressed:
    """Computes :func:`press` of bodies whose deepest corners are known."""
    arm, gap, normal = corner
    touches = gap < rules.BODY_GAP
    velocity, spin = motion.velocity.add(motion.force, alpha=DT), motion.spin.add(motion.torque, alpha=DT)
    now = velocity + cross(spin, arm)
    # The bounce ignores all forces of this tick, friction the torque that the driver applies.
    untwisted = cross(motion.spin, arm)
    axes = torch.stack((normal, sideways(now, normal)), 1)  # [3, 2, n]
    approach = -dot(motion.velocity + untwisted, normal)
    bounce = rules.BODY_RESTITUTION * approach * (approach > rules.SOFT)
    aims = torch.stack((bounce - dot(now, normal), -dot(velocity + untwisted, axes[:, 1])))

    levers = cross(arm[:, None], axes)
    turns = to_local(rotation[:, :, None], levers) / constant(rules.CAR_INERTIA, axes[0])
    turns = to_world(rotation[:, :, None], turns)
    one = 1 / rules.CAR_MASS
    weights = dot(levers, turns) + one
    # Friction counts in its share of the push.
    start, hold_start = (aims / weights * constant((1.0, 1 / rules.BODY_FRICTION), gap)).unbind(0)
    shares = constant((rules.BODY_FRICTION, 1 / rules.BODY_FRICTION), gap)
    less, hold_less = (-dot(levers[:, 0], turns[:, 1]) / weights * shares).unbind(0)
    signs = constant((-1.0, 1.0), gap)
    starts, less = signs * start, signs * less
    least, most = constant((-torch.inf, 0.0), gap), constant((0.0, torch.inf), gap)
    hold = torch.zeros_like(gap)
    for _ in range(rules.SWEEPS):
        pull, push = torch.addcmul(starts, less, hold).clamp(least, most).unbind(0)
        hold = torch.addcmul(hold_start, hold_less, push).clamp(pull, push)
    impulses = torch.stack((push, hold * rules.BODY_FRICTION)) * touches
    out = gap.clamp_max(0.0) * touches * -rules.PUSH / weights[0]
    moved = Moved(
        velocity.add((axes * impulses).sum(1), alpha=one),
        spin + (turns * impulses).sum(1),
        normal * (out * one),
        turns[:, 0] * (out * rules.PUSH_TURN),
    )
    return Pressed(moved, touches.to(gap.dtype), torch.where(touches, normal, last))
