"""Solves contacts by sequential impulses (Catto 2005): projected Gauss-Seidel on a small system per world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .driving import Motion
from .rules import DT
from .state import Ball, Cars

_NEVER = -1.0e30

BALL_SCALE = (*[rules.BALL_MASS**-0.5] * 3, *[rules.BALL_INERTIA**-0.5] * 3)
"""Square roots of the ball's inverse masses for velocity and spin."""
CAR_SCALE = (*[rules.CAR_MASS**-0.5] * 3, *[inertia**-0.5 for inertia in rules.CAR_INERTIA])
"""Square roots of a car's inverse masses, in its own axes."""


class Moved(NamedTuple):
    """The motion of a body after its contacts, ``[3, ...]``.

    Attributes:
        velocity, spin: values with all forces of this tick.
        shift, twist: moves out of a penetration in addition to the velocity: uu, rad.
    """

    velocity: Tensor
    spin: Tensor
    shift: Tensor
    twist: Tensor


class Plane(NamedTuple):
    """The part of the field nearest to the ball."""

    gap: Tensor  # [...] between the surfaces
    normal: Tensor  # [3, ...]


class Scene(NamedTuple):
    """A tick before contacts.

    Attributes:
        motion: motion of the cars.
        fallen: velocity of the ball after drag.
        pull: change of the velocity by gravity.
        plane: the nearest part of the field.
        bounced: motion of the ball if no car touches it.
    """

    cars: Cars
    motion: Motion
    ball: Ball
    fallen: Tensor
    pull: Tensor
    plane: Plane
    bounced: Moved


class Met(NamedTuple):
    """The result of all contacts, ``[..., C, W]`` and for the ball ``[..., W]``."""

    cars: Moved
    kick: Tensor  # [3, C, W] of bumps, after the move
    ball: Moved
    ball_kick: Tensor  # [3, W] of hits, after the move
    touching: Tensor  # flag: body on field
    touch_normal: Tensor  # [3, C, W]
    hit: Tensor  # flag: car on ball
    extra: Tensor  # flag: a hit gave its extra speed
    victim: Tensor  # the car it bumped, -1: none
    demolishes: Tensor  # flag
    demolished: Tensor  # flag


def untouched(scene: Scene) -> Met:
    """Returns the result without contacts except between ball and field."""
    cars, motion = scene.cars, scene.motion
    # Entries do not share tensors, since compiled code treats shared ones as another case.
    still = [torch.zeros_like(cars.position) for _ in range(3)]
    none = [torch.zeros_like(cars.boost) for _ in range(6)]
    moved = Moved(motion.velocity + motion.force * DT, motion.spin + motion.torque * DT, *still[:2])
    quiet = torch.zeros_like(scene.ball.position)
    touching, hit, extra, victim, demolishes, demolished = none
    normal = cars.touch_normal
    return Met(moved, still[2], scene.bounced, quiet, touching, normal, hit, extra, victim - 1, demolishes, demolished)


def relax(rows: Tensor, wanted: Tensor, active: Tensor, friction: Sequence[float], sweeps: int) -> Tensor:
    """Returns impulses ``[R, n]`` that bring the rows' velocities to the wanted values, as far as contacts can push.

    Args:
        rows: ``[R, D, n]``: directions in which impulses act on ``D`` velocities, each divided by the square root of
            its mass. The first ``K`` are normals, which only push; the others are friction, bounded by the normal
            impulse of the same contact.
        wanted: ``[R, n]`` changes of the rows' velocities.
        active: ``[K, n]`` bool.
        friction: coefficients of the ``K`` contacts; empty where there are normals only.
        sweeps: number of passes over all rows.
    """
    count = len(active)
    matrix = (rows[:, None] * rows).sum(2)
    if not torch.compiler.is_compiling():
        return _relaxed_in_place(matrix, wanted, active, friction, sweeps)
    inverse = 1 / matrix.diagonal(dim1=0, dim2=1).transpose(0, 1).clamp_min(1.0e-12)
    off = (matrix * inverse[:, None]) * (1 - torch.eye(len(rows), dtype=rows.dtype, device=rows.device))[..., None]
    aims = wanted * inverse
    aims = torch.cat((torch.where(active, aims[:count], _NEVER), aims[count:]))
    impulses = [torch.zeros_like(aims[0])] * len(rows)
    for _ in range(sweeps):
        for row in range(len(rows)):
            others = [off[row, other] * impulses[other] for other in range(len(rows)) if other != row]
            value = aims[row] - sum(others) if others else aims[row]
            if row < count:
                impulses[row] = value.clamp_min(0.0)
            else:
                most = friction[row - count] * impulses[row - count]
                impulses[row] = value.clamp(-most, most)
    return torch.stack(impulses)


def _relaxed_in_place(matrix: Tensor, wanted: Tensor, active: Tensor, friction: Sequence[float], sweeps: int) -> Tensor:
    """Computes :func:`relax` with fewer and larger operations, for eager code; overwrites ``matrix``."""
    count = len(active)
    diagonal = matrix.diagonal(dim1=0, dim2=1)
    inverse = (1 / diagonal.clamp_min(1.0e-12)).T.contiguous()
    matrix.mul_(inverse[:, None])
    matrix.diagonal(dim1=0, dim2=1).zero_()
    aims = wanted * inverse
    aims[:count] = torch.where(active, aims[:count], _NEVER)
    impulses = torch.zeros_like(aims)
    places, factors, targets = impulses.unbind(0), matrix.unbind(0), aims.unbind(0)
    for _ in range(sweeps):
        for row, (place, factor, target) in enumerate(zip(places, factors, targets)):
            value = torch.sub(target, (factor * impulses).sum(0))
            if row < count:
                torch.clamp_min(value, 0.0, out=place)
            else:
                most = places[row - count] * friction[row - count]
                torch.clamp(value, -most, most, out=place)
    return impulses


def sideways(velocity: Tensor, normal: Tensor) -> Tensor:
    """Returns the direction ``[3, ...]`` of friction: that of the slip, or any in the plane without slip."""
    slip = velocity - normal * (velocity * normal).sum(0)
    size2 = (slip * slip).sum(0)
    x, y, z = normal.unbind(0)
    steep = z.abs() > 0.70710678
    flat = torch.where(steep, torch.hypot(y, z), torch.hypot(x, y)).clamp_min(1.0e-9)
    zero = torch.zeros_like(x)
    any_ = torch.stack((torch.where(steep, zero, -y), torch.where(steep, -z, x), torch.where(steep, y, zero))) / flat
    return torch.where(size2 > 3.0e-4, slip * size2.clamp_min(1.0e-12).rsqrt(), any_)
