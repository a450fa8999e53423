"""The body of a car against the field: each tick, the corner that is deepest may touch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .ball import Moved
from .driving import Motion
from .field import Field
from .rules import DT
from .solver import sideways
from .vectors import constant, cross, dot, to_local, to_world

REACH = 96.0
"""No part of a car is further from its origin."""


class Corner(NamedTuple):
    """The deepest corner of a body."""

    arm: Tensor  # [3, ...] from the car's origin
    gap: Tensor  # [...]
    normal: Tensor  # [3, ...]


def clearance(rotation: Tensor, height: Tensor) -> Tensor:
    """How far the lowest corner of cars at a height ``[...]`` is above the floor."""
    forward, right, up = rotation[:, 2].unbind(0)
    (hx, hy, hz), (ox, _, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    return height + ox * forward + oz * up - hx * forward.abs() - hy * right.abs() - hz * up.abs()


def deepest_corner(position: Tensor, rotation: Tensor, field: Field) -> Corner:
    """Of cars at ``[3, ...]``, the first of equally deep ones."""
    arm = corner_arms(rotation)
    gap, normal = field.inside(position[:, None] + arm)
    least, row = gap.min(0)
    where = row.expand(3, 1, *row.shape)
    return Corner(arm.gather(1, where)[:, 0], least, normal.gather(1, where)[:, 0])


def corner_arms(rotation: Tensor) -> Tensor:
    """From the origin to the corners, ``[3, 8, ...]``."""
    signs = [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1)]
    (hx, hy, hz), (ox, oy, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    like = rotation[0, 0]
    x = constant([ox + a * hx for a, _, _ in signs], like)
    y = constant([oy + b * hy for _, b, _ in signs], like)
    z = constant([oz + c * hz for _, _, c in signs], like)
    forward, right, up = rotation.unbind(0)
    return x * forward[:, None] + y * right[:, None] + z * up[:, None]


def press(rotation: Tensor, motion: Motion, corner: Corner) -> tuple[Moved, Tensor]:
    """A tick of cars whose deepest corner may touch; also ``[...]`` bool, where it does."""
    arm, gap, normal = corner
    touches = gap < rules.BODY_GAP
    velocity, spin = motion.velocity + motion.force * DT, motion.spin + motion.torque * DT
    now = velocity + cross(spin, arm)
    direction = sideways(now, normal)
    before = dot(motion.velocity + cross(motion.spin, arm), normal)
    bounce = rules.BODY_RESTITUTION * torch.where(before < -rules.SOFT, -before, 0.0)
    # Friction does not feel the torque that the driver applies.
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
    return moved, touches


def _turn(rotation: Tensor, arm: Tensor, axis: Tensor) -> Tensor:
    """What an impulse of 1 along ``axis`` at ``arm`` does to the spin."""
    lever = to_local(rotation, cross(arm, axis))
    return to_world(rotation, lever / constant(rules.CAR_INERTIA, lever[0]))
