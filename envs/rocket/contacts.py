"""All contacts of a tick: bodies with the field, cars with cars, and cars with the ball.

:func:`meet_where_needed` processes only bodies that are near others, which saves most of the work on a CPU;
:func:`meet_everywhere` computes all contacts of all worlds under masks, without branching on data. Both agree.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import rules
from .ball import struck
from .bumps import near_pairs, with_pairs
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


def meet_everywhere(scene: Scene, field: Field) -> Met:
    """Computes all contacts of all worlds."""
    met = untouched(scene)
    cars = scene.cars
    pressed = press(cars.position, cars.rotation, cars.touch_normal, scene.motion, field)
    touching = pressed.touching * (cars.gone == 0)
    met = met._replace(
        cars=Moved(*(torch.where(touching > 0, new, old) for new, old in zip(pressed.moved, met.cars))),
        touching=touching,
        touch_normal=torch.where(touching > 0, pressed.normal, cars.touch_normal),
    )
    worlds = torch.arange(cars.boost.shape[1], device=cars.boost.device)
    ones = torch.ones_like(worlds)
    for first, second in combinations(range(cars.boost.shape[0]), 2):
        met = with_pairs(scene, met, ones * first, ones * second, worlds)
    return struck(scene, met, worlds)


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


class Corner(NamedTuple):
    """The corner of a car's box with the least gap to the field."""

    arm: Tensor  # [3, ...] from the car's origin
    gap: Tensor  # [...]
    normal: Tensor  # [3, ...]


def clearance(rotation: Tensor, height: Tensor) -> Tensor:
    """Returns the height ``[...]`` of the lowest corner of cars at a height above the floor."""
    forward, right, up = rotation[:, 2].unbind(0)
    (hx, hy, hz), (ox, _, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    return height + ox * forward + oz * up - hx * forward.abs() - hy * right.abs() - hz * up.abs()


def deepest_corner(position: Tensor, rotation: Tensor, field: Field) -> Corner:
    """Returns the deepest corner of cars at ``[3, ...]``, the first of equally deep ones."""
    arm = corner_arms(rotation)
    gap, normal = field.inside(position[:, None] + arm)
    least, row = gap.min(0)
    where = row.expand(3, 1, *row.shape)
    return Corner(arm.gather(1, where)[:, 0], least, normal.gather(1, where)[:, 0])


def corner_arms(rotation: Tensor) -> Tensor:
    """Returns the offsets of the corners from the origin, ``[3, 8, ...]``."""
    signs = [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1)]
    (hx, hy, hz), (ox, oy, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    like = rotation[0, 0]
    x = constant([ox + a * hx for a, _, _ in signs], like)
    y = constant([oy + b * hy for _, b, _ in signs], like)
    z = constant([oz + c * hz for _, _, c in signs], like)
    forward, right, up = rotation.unbind(0)
    return x * forward[:, None] + y * right[:, None] + z * up[:, None]


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
    arm, gap, normal = deepest_corner(position, rotation, field)
    touches = gap < rules.BODY_GAP
    velocity, spin = motion.velocity + motion.force * DT, motion.spin + motion.torque * DT
    now = velocity + cross(spin, arm)
    direction = sideways(now, normal)
    before = dot(motion.velocity + cross(motion.spin, arm), normal)
    bounce = rules.BODY_RESTITUTION * torch.where(before < -rules.SOFT, -before, 0.0)
    # Friction ignores the torque that the driver applies.
    slip = dot(velocity + cross(motion.spin, arm), direction)

    push_turn, hold_turn = _turn(rotation, arm, normal), _turn(rotation, arm, direction)
    push_lever, hold_lever = cross(arm, normal), cross(arm, direction)
    one = 1 / rules.CAR_MASS
    push_weight = one + dot(push_lever, push_turn)
    hold_weight, both = one + dot(hold_lever, hold_turn), dot(push_lever, hold_turn)
    aim, hold_aim = bounce - dot(now, normal), -slip
    start, hold_start = aim / push_weight, hold_aim / hold_weight
    less, hold_less = -both / push_weight, -both / hold_weight
    hold = torch.zeros_like(gap)
    for _ in range(rules.SWEEPS):
        push = torch.addcmul(start, less, hold).clamp_min(0.0)
        most = rules.BODY_FRICTION * push
        hold = torch.addcmul(hold_start, hold_less, push).clamp(-most, most)
    push, hold = push * touches, hold * touches
    out = (-gap).clamp_min(0.0) * (rules.PUSH / push_weight) * touches
    moved = Moved(
        velocity + (normal * push + direction * hold) * one,
        spin + push_turn * push + hold_turn * hold,
        normal * (out * one),
        push_turn * (out * rules.PUSH_TURN),
    )
    return Pressed(moved, touches.to(gap.dtype), torch.where(touches, normal, last))


def _turn(rotation: Tensor, arm: Tensor, axis: Tensor) -> Tensor:
    """Returns the change of spin by an impulse of 1 along ``axis`` at ``arm``."""
    lever = to_local(rotation, cross(arm, axis))
    return to_world(rotation, lever / constant(rules.CAR_INERTIA, lever[0]))
