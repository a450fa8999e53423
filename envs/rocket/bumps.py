"""Cars against cars: contacts, bumps and demolitions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .ball import Moved
from .rules import DT
from .solver import CAR_SCALE, relax, sideways
from .vectors import along, constant, cross, dot, to_world

_POINTS = 4
REACH = 192.0
"""Cars whose origins are further apart do not touch."""


class Crash(NamedTuple):
    """Where two boxes overlap."""

    point: Tensor  # [3, 4, n] world, from the first car's origin
    depth: Tensor  # [4, n]
    normal: Tensor  # [3, n] from the first car to the second
    touches: Tensor  # [n] bool


class Pair(NamedTuple):
    """One of two cars, ``[..., n]``."""

    position: Tensor
    rotation: Tensor
    velocity: Tensor  # without what pulls on it in this tick
    grounded: Tensor
    supersonic: Tensor


def overlap(apart: Tensor, first: Tensor, second: Tensor) -> Crash:
    """Boxes by the axis along which they overlap least (separating axes, Gottschalk 1996).

    Args:
        apart: ``[3, n]`` from the first car's origin to the second's.
        first, second: rotations ``[3, 3, n]``.
    """
    half, centre = (constant(values, apart[0]) for values in (rules.BOX_HALF, rules.HITBOX_CENTRE))
    between = apart + to_world(second, centre) - to_world(first, centre)
    edges = [cross(first[i], second[j]) for i in range(3) for j in range(3)]
    faces = torch.cat((first, second)).transpose(0, 1)  # [3, 6, n]
    crossed = torch.stack(edges, 1)
    size = dot(crossed, crossed)
    crossed = crossed * size.clamp_min(1.0e-12).rsqrt()

    def room(axes: Tensor) -> Tensor:
        reach = sum(
            (axes[:, :, None] * rotation.transpose(0, 1)[:, None]).sum(0).abs().mul(half).sum(1)
            for rotation in (first, second)
        )
        return reach - (axes * between[:, None]).sum(0).abs()

    inside = room(faces)
    crossing = torch.where(size > 1.0e-4, room(crossed), rules.HEIGHT)
    touches = (inside > 0).all(0) & (crossing > 0).all(0)
    row = inside.argmin(0)
    normal = faces.gather(1, row.expand(3, 1, -1))[:, 0]
    normal = normal * torch.where(dot(normal, between) < 0, -1.0, 1.0)
    from_first = row < 3
    points, depth = _face_points(between, first, second, normal)
    others, other_depth = _face_points(-between, second, first, -normal)
    others = others + between[:, None]
    # The points lie half way between the two surfaces.
    point = torch.where(
        from_first, points - 0.5 * depth * normal[:, None], others + 0.5 * other_depth * normal[:, None]
    )
    return Crash(point + to_world(first, centre)[:, None], torch.where(from_first, depth, other_depth), normal, touches)


def _face_points(between: Tensor, flat: Tensor, other: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """The corners of the face of ``other`` that looks at a face of ``flat``, drawn in to that face, and their depths.

    Args:
        between: ``[3, n]`` from the centre of ``flat``.
        normal: of the face of ``flat``.
    """
    half = constant(rules.BOX_HALF, between[0])
    facing = (other * normal).sum(1)  # [3, n]
    chosen = (facing.abs().argmax(0) == torch.arange(3, device=facing.device)[:, None]).to(facing.dtype)
    towards = -torch.where(facing > 0, 1.0, -1.0) * chosen * half
    # Two directions span the face: the axes after the chosen one.
    u, v = chosen.roll(1, 0) * half, chosen.roll(2, 0) * half
    corners = torch.stack([towards + a * u + b * v for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))], 1)  # [3, 4, n]
    corners = (other[:, :, None] * corners[:, None]).sum(0) + between[:, None]
    local = (flat[:, :, None] * corners).sum(1)
    drawn = torch.minimum(torch.maximum(local, -half[:, None]), half[:, None])
    back = (flat[:, :, None] * drawn[:, None]).sum(0)
    reach = (flat * normal).sum(1).abs().mul(half).sum(0)
    # Depth where the corner was, so that a tilted face presses on its deepest side.
    depth = reach - (corners * normal[:, None]).sum(0)
    surface = back + normal[:, None] * (reach - (back * normal[:, None]).sum(0))
    return surface, depth


def collide(first: Tensor, second: Tensor, one: Moved, two: Moved, apart: Tensor, crash: Crash) -> tuple[Moved, Moved]:
    """What a contact makes of two cars.

    Args:
        first, second: rotations.
        apart: see :func:`overlap`.
    """
    arm, other = crash.point, crash.point - apart[:, None]
    normal = crash.normal[:, None].expand_as(arm)
    slip = (two.velocity[:, None] + cross(two.spin[:, None], other)) - (
        one.velocity[:, None] + cross(one.spin[:, None], arm)
    )
    direction = sideways(slip, normal)
    approach = dot(slip, normal)
    bounce = rules.BUMPER_RESTITUTION * torch.where(approach < -rules.SOFT, -approach, 0.0)
    rows = torch.cat([_rows(first, second, arm, other, axis) for axis in (normal, direction)])
    wanted = torch.cat((bounce - approach, -dot(slip, direction)))
    active = (crash.depth > 0) & crash.touches
    friction = [rules.BUMPER_FRICTION] * _POINTS
    impulse = (rows * relax(rows, wanted, active, friction, rules.SWEEPS)[:, None]).sum(0)
    normals, deep = rows[:_POINTS], crash.depth * (rules.PUSH / DT)
    push = (normals * relax(normals, deep, active, (), rules.SWEEPS)[:, None]).sum(0) * DT
    return _moved(one, first, impulse[:6], push[:6]), _moved(two, second, impulse[6:], push[6:])


def _rows(first: Tensor, second: Tensor, arm: Tensor, other: Tensor, axis: Tensor) -> Tensor:
    """Rows ``[4, 12, n]`` of the second car's motion along ``axis`` less the first's."""
    scale = constant(CAR_SCALE, axis[0])
    parts = [
        torch.cat((axis, (rotation[:, :, None] * cross(lever, axis)).sum(1))) * scale
        for rotation, lever in ((first, arm), (second, other))
    ]
    return torch.cat((-parts[0], parts[1])).transpose(0, 1)


def _moved(before: Moved, rotation: Tensor, impulse: Tensor, push: Tensor) -> Moved:
    scale = constant(CAR_SCALE, impulse[0])
    change, shift = impulse * scale, push * scale
    return Moved(
        before.velocity + change[:3],
        before.spin + to_world(rotation, change[3:]),
        before.shift + shift[:3],
        before.twist + to_world(rotation, shift[3:]) * rules.PUSH_TURN,
    )


class Bump(NamedTuple):
    """What one car's bumper does to another."""

    kick: Tensor  # [3, n] change of the other's velocity, after it has moved
    bumps: Tensor  # [n] bool
    demolishes: Tensor  # [n] bool


def bump(attacker: Pair, victim: Pair, crash: Crash, free: Tensor, rivals: Tensor) -> Bump:
    """Whether and how hard a car bumps another that it touches.

    Args:
        crash: with points from the attacker's origin.
        free: ``[n]`` bool, the attacker may bump this car again.
        rivals: ``[n]`` bool, they are of two teams.
    """
    apart = victim.position - attacker.position
    distance = dot(apart, apart).sqrt().clamp_min(1.0e-6)
    fast = dot(attacker.velocity, attacker.velocity).sqrt().clamp_min(1.0e-6)
    towards = dot(attacker.velocity, apart) / distance
    heading = attacker.velocity / fast
    ahead = dot(crash.point, attacker.rotation[0][:, None])
    in_front = ((ahead > rules.BUMP_FRONT) & (crash.depth > 0)).any(0)
    bumps = crash.touches & free & in_front & (towards > 0) & (towards > dot(victim.velocity, heading))
    demolishes = bumps & rivals & (attacker.supersonic > 0)
    grounded = victim.grounded > 0
    strength = torch.where(grounded, along(rules.BUMP_GROUND, towards), along(rules.BUMP_AIR, towards))
    level = torch.zeros_like(apart)
    lift = torch.where(grounded, victim.rotation[2], torch.stack((level[0], level[1], level[2] + 1)))
    kick = heading * strength + lift * along(rules.BUMP_UP, towards)
    return Bump(kick * (bumps & ~demolishes), bumps, demolishes)
