"""The ball's flight and its bounces off the field."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .state import Ball
from .vectors import cross, dot


class Moved(NamedTuple):
    """What contacts made of a body, ``[3, ...]``.

    Attributes:
        velocity, spin: with everything that acts in this tick.
        shift, twist: moves out of what it is in, beside its velocity: uu, rad.
    """

    velocity: Tensor
    spin: Tensor
    shift: Tensor
    twist: Tensor


class Plane(NamedTuple):
    """What of the field is nearest to the ball."""

    gap: Tensor  # [...] between the surfaces
    normal: Tensor  # [3, ...]


def fall(velocity: Tensor) -> Tensor:
    """The ball's velocity after a tick of air: drag, without gravity."""
    return velocity * (1 - rules.BALL_DRAG) ** DT


def gravity(moves: Tensor) -> Tensor:
    """What a tick of gravity adds to the ball's velocity, ``[3, ...]``, where it is :func:`awake`."""
    down = moves * (-rules.GRAVITY * DT)
    return torch.stack((torch.zeros_like(down), torch.zeros_like(down), down))


def awake(ball: Ball) -> Tensor:
    """1 where the ball moves, 0 where it has not been touched since the kick-off and hangs where it is, ``[...]``."""
    moving = dot(ball.velocity, ball.velocity) + dot(ball.spin, ball.spin) > 0
    return moving.to(ball.velocity.dtype)


def bounce(ball: Ball, velocity: Tensor, pull: Tensor, plane: Plane) -> Moved:
    """A tick of a ball that no car touches.

    Args:
        velocity: after :func:`fall`.
        pull: what gravity adds to it.
    """
    normal, radius = plane.normal, rules.BALL_RADIUS
    pulled = velocity + pull
    touches = plane.gap < rules.CONTACT_GAP
    approach = -dot(velocity, normal)
    back = rules.BALL_RESTITUTION * torch.where(approach > rules.SOFT, approach, 0.0)
    push = (back - dot(pulled, normal)).clamp_min(0.0) * touches
    slip = pulled - normal * dot(pulled, normal) - radius * cross(ball.spin, normal)
    speed = dot(slip, slip).clamp_min(1.0e-12).sqrt()
    hold = torch.minimum(rules.BALL_FRICTION * push, (2 / 7) * speed)
    along = slip * (hold / speed)
    spin = ball.spin + cross(normal, along) / (0.4 * radius)
    shift = normal * ((-plane.gap).clamp_min(0.0) * (rules.PUSH * touches.to(push.dtype)))
    return Moved(pulled + normal * push - along, spin, shift, torch.zeros_like(shift))
