"""Solves contacts by sequential impulses (Catto 2005): projected Gauss-Seidel on a small system per world."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..foundation.compilation import Compiled
from ..foundation.tensors import looks_are_free
from . import rules
from .driving import Motion
from .rules import DT
from .state import Ball, Cars
from .vectors import constant, cross, dot

BALL_SCALE = (*[rules.BALL_MASS**-0.5] * 3, *[rules.BALL_INERTIA**-0.5] * 3)
"""Square roots of the ball's inverse masses for velocity and spin."""
CAR_SCALE = (*[rules.CAR_MASS**-0.5] * 3, *[inertia**-0.5 for inertia in rules.CAR_INERTIA])
"""Square roots of a car's inverse masses, in its own axes."""
BALL_EFFECT = tuple(effect for scale in BALL_SCALE[:3] for effect in (scale, scale * DT)) + tuple(
    effect for scale in BALL_SCALE[3:] for effect in (scale, 0.0)
)
"""What scaled impulses change: of the motion, and those out of a penetration, which do not turn the ball."""
CAR_EFFECT = tuple(effect for scale in CAR_SCALE[:3] for effect in (scale, scale * DT)) + tuple(
    effect for scale in CAR_SCALE[3:] for effect in (scale, scale * DT * rules.PUSH_TURN)
)


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
    # Entries are not the same tensors, since compiled code treats shared ones as another case.
    shift, twist, kick = cars.position.new_zeros(3, *cars.position.shape).unbind(0)
    touching, hit, extra, victim, demolishes, demolished = cars.boost.new_zeros(6, *cars.boost.shape).unbind(0)
    moved = Moved(motion.velocity.add(motion.force, alpha=DT), motion.spin.add(motion.torque, alpha=DT), shift, twist)
    quiet = torch.zeros_like(scene.ball.position)
    normal = cars.touch_normal
    return Met(moved, kick, scene.bounced, quiet, touching, normal, hit, extra, victim - 1, demolishes, demolished)


def relax(rows: Tensor, wanted: Tensor, deep: Tensor, active: Tensor, friction: Sequence[float]) -> Tensor:
    """Returns impulses ``[R, 2, n]`` that change the rows' velocities as wanted, as far as contacts can push.

    The second ones move bodies out of each other; they act along normals only.

    Args:
        rows: ``[R, D, n]``: directions in which impulses act on ``D`` velocities, each divided by the square root of
            its mass. The first ``K`` are normals, which only push; the others are friction, bounded by the normal
            impulse of the same contact.
        wanted: ``[R, n]`` changes of the rows' velocities.
        deep: ``[K, n]`` velocities out of the penetrations.
        active: ``[K, n]`` bool.
        friction: coefficients of the ``K`` contacts.
    """
    size, count = len(rows), len(active)
    matrix = (rows[:, None] * rows).sum(2)
    inverse = matrix.diagonal(dim1=0, dim2=1).T.clamp_min(1.0e-12).reciprocal()
    inverse = torch.cat((inverse[:count] * active, inverse[count:]))[:, None]  # no impulse without a contact
    matrix = matrix * inverse
    aims = torch.stack((wanted, pad(deep, (0, 0, 0, count))), 1) * inverse  # [R, 2, n]
    if torch.compiler.is_compiling():
        share = constant([value for own in friction for value in (own, 0.0)], aims[0, 0]).unflatten(0, (count, 2))
        if not looks_are_free(aims.device):
            return _relaxed(matrix, aims, share)
        impulses = [torch.zeros_like(aims[0])] * size
        for _ in range(rules.SWEEPS):
            impulses = _swept(matrix, aims, share, impulses)
        return torch.stack(impulses)
    # A tape of all sweeps' rows. An impulse, once it is known, is subtracted from the next R - 1 rows: from those below
    # it in the same sweep, and from those above it in the next one.
    tape = aims.repeat(rules.SWEEPS + 1, 1, 1)
    places = tape.unsqueeze(-1).unbind(0)
    windows = tape.unfold(0, size - 1, 1).unbind(0)  # [2, n, R - 1] from each row on
    turns = torch.cat((matrix, matrix)).unfold(0, size - 1, 1)[1 : size + 1]  # [R, R, n, R - 1] from row r + 1 on
    weights = turns.diagonal(dim1=0, dim2=1).movedim(-1, 0)[:, None].unbind(0)  # [1, n, R - 1] for each row
    sweeps = tape.unflatten(0, (-1, size))[:, :count].unbind(0)
    both = constant([sign * value for sign in (-1, 1) for own in friction for value in (own, 0.0)], aims[0, 0])
    both = both.unflatten(0, (2, count, 2))
    for sweep in range(rules.SWEEPS):
        first = sweep * size
        for row in range(count):
            place = places[first + row].clamp_min_(0.0)
            windows[first + row + 1].addcmul_(weights[row], place, value=-1)
        bounds = (both * sweeps[sweep]).unsqueeze(-1).flatten(0, 1).unbind(0)
        for row in range(count, size):
            place = places[first + row].clamp_(bounds[row - count], bounds[row])
            windows[first + row + 1].addcmul_(weights[row], place, value=-1)
    return tape[(rules.SWEEPS - 1) * size : rules.SWEEPS * size]


def _swept(matrix: Tensor, aims: Tensor, share: Tensor, impulses: Sequence[Tensor]) -> list[Tensor]:
    """Returns the impulses ``[2, n]`` after a sweep over all rows, without writing in place, for compiled code."""
    size, count, new = len(matrix), len(share), list(impulses)
    for row in range(size):
        value = aims[row] - sum(matrix[row, other] * new[other] for other in range(size) if other != row)
        if row < count:
            new[row] = value.clamp_min(0.0)
        else:
            most = share[row - count] * new[row - count]
            new[row] = value.clamp(-most, most)
    return new


def sweep(matrix: Tensor, aims: Tensor, share: Tensor, impulses: Tensor) -> Tensor:
    """Makes a sweep of :func:`relax` for a GPU, which calls it again and again: ``[R, 2, n]``."""
    return torch.stack(_swept(matrix, aims, share, impulses.unbind(0)))


@cache
def _compiled_sweep() -> Compiled:
    return Compiled(sweep, "a sweep over contacts of rocket", dynamic=False)


@torch.library.custom_op("rlstack::relaxed", mutates_args=())
def _relaxed(matrix: Tensor, aims: Tensor, share: Tensor) -> Tensor:
    """Makes all sweeps of :func:`relax`; compiled code calls it as it is.

    Written out, the sweeps are most of a tick's operations, and one kernel of thousands takes minutes to compile.
    """
    impulses = torch.zeros(aims.shape, dtype=aims.dtype, device=aims.device)
    for _ in range(rules.SWEEPS):
        impulses = _compiled_sweep()(matrix, aims, share, impulses)
    return impulses


@_relaxed.register_fake
def _(matrix: Tensor, aims: Tensor, share: Tensor) -> Tensor:
    return aims.new_empty(aims.shape)


def sideways(velocity: Tensor, normal: Tensor) -> Tensor:
    """Returns the direction ``[3, ...]`` of friction: that of the slip, or any in the plane without slip."""
    like = normal[0]
    slip = torch.addcmul(velocity, normal, dot(velocity, normal), value=-1)
    steep = normal[2].abs() > 0.70710678
    axis = torch.where(steep, constant((1.0, 0.0, 0.0), like), constant((0.0, 0.0, 1.0), like))
    slip = torch.where(dot(slip, slip) > 3.0e-4, slip, cross(axis, normal))
    return slip * dot(slip, slip).clamp_min(1.0e-12).rsqrt()
