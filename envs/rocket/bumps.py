"""Contacts between cars, bumps and demolitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .solver import CAR_SCALE, Met, Moved, Scene, relax, sideways
from .state import Cars
from .vectors import along, constant, cross, dot, taken, to_world

_POINTS = 4
_NEAR = 192.0  # uu; cars with origins farther apart do not touch


class Crash(NamedTuple):
    """The overlap of two boxes."""

    point: Tensor  # [3, 4, n] world, from the first car's origin
    depth: Tensor  # [4, n]
    normal: Tensor  # [3, n] from the first car to the second
    touches: Tensor  # [n] bool


class Side(NamedTuple):
    """One of two cars, ``[..., n]``."""

    position: Tensor
    rotation: Tensor
    velocity: Tensor  # without the forces of this tick
    wheels: Tensor  # [4, n] flag: on the ground
    supersonic: Tensor
    gone: Tensor
    free: Tensor  # bool: may bump the other again
    moved: Moved  # after its other contacts


class Change(NamedTuple):
    """What a contact adds to the entries of :class:`Met` of one of two cars, ``[..., n]``."""

    moved: Moved
    kick: Tensor
    bumps: Tensor  # flag
    demolishes: Tensor  # flag
    demolished: Tensor  # flag


def overlap(apart: Tensor, first: Tensor, second: Tensor) -> Crash:
    """Finds the axis of least overlap of boxes (separating axes, Gottschalk 1996).

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
    # The points lie half-way between the two surfaces.
    point = torch.where(
        from_first, points - 0.5 * depth * normal[:, None], others + 0.5 * other_depth * normal[:, None]
    )
    return Crash(point + to_world(first, centre)[:, None], torch.where(from_first, depth, other_depth), normal, touches)


def _face_points(between: Tensor, flat: Tensor, other: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the corners of the face of ``other`` towards a face of ``flat``, clipped to it, and their depths.

    Args:
        between: offset ``[3, n]`` from the centre of ``flat``.
        normal: normal of the face of ``flat``.
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
    # Depth at the original corner, so that a tilted face presses on its deepest side.
    depth = reach - (corners * normal[:, None]).sum(0)
    surface = back + normal[:, None] * (reach - (back * normal[:, None]).sum(0))
    return surface, depth


def collide(first: Tensor, second: Tensor, one: Moved, two: Moved, apart: Tensor, crash: Crash) -> tuple[Moved, Moved]:
    """Computes the motion of two cars after a contact.

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
    """Returns rows ``[4, 12, n]`` of the second car's motion along ``axis`` minus the first's."""
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
    """The effect of one car's bumper on another."""

    kick: Tensor  # [3, n] change of the other's velocity after its move
    bumps: Tensor  # [n] bool
    demolishes: Tensor  # [n] bool


def bump(attacker: Side, victim: Side, crash: Crash, rivals: Tensor) -> Bump:
    """Computes the bump of a car into another that it touches.

    Args:
        crash: overlap with points relative to the attacker's origin.
        rivals: ``[n]`` bool, whether the cars are of different teams.
    """
    apart = victim.position - attacker.position
    distance = dot(apart, apart).sqrt().clamp_min(1.0e-6)
    fast = dot(attacker.velocity, attacker.velocity).sqrt().clamp_min(1.0e-6)
    towards = dot(attacker.velocity, apart) / distance
    heading = attacker.velocity / fast
    ahead = dot(crash.point, attacker.rotation[0][:, None])
    in_front = ((ahead > rules.BUMP_FRONT) & (crash.depth > 0)).any(0)
    bumps = crash.touches & attacker.free & in_front & (towards > 0) & (towards > dot(victim.velocity, heading))
    demolishes = bumps & rivals & (attacker.supersonic > 0)
    grounded = victim.wheels.sum(0) >= 3
    strength = torch.where(grounded, along(rules.BUMP_GROUND, towards), along(rules.BUMP_AIR, towards))
    level = torch.zeros_like(apart)
    lift = torch.where(grounded, victim.rotation[2], torch.stack((level[0], level[1], level[2] + 1)))
    kick = heading * strength + lift * along(rules.BUMP_UP, towards)
    return Bump(kick * (bumps & ~demolishes), bumps, demolishes)


def near_pairs(cars: Cars) -> tuple[Tensor, Tensor, Tensor]:
    """Returns first car, second car and world of all pairs that may touch."""
    pairs = list(combinations(range(cars.boost.shape[0]), 2))
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    apart = cars.position[:, seconds] - cars.position[:, firsts]
    here = (cars.gone[firsts] == 0) & (cars.gone[seconds] == 0)
    pair, worlds = ((dot(apart, apart) < _NEAR**2) & here).nonzero().unbind(1)
    table = torch.tensor(pairs, device=pair.device)
    return table[pair, 0], table[pair, 1], worlds


def crashes(one: Side, two: Side, rivals: Tensor) -> tuple[Change, Change]:
    """Computes the contacts of ``n`` pairs of cars.

    Args:
        rivals: ``[n]`` bool, whether the cars are of different teams.
    """
    apart = two.position - one.position
    crash = overlap(apart, one.rotation, two.rotation)
    touches = crash.touches & (one.gone == 0) & (two.gone == 0)
    crash = crash._replace(touches=touches)
    after = collide(one.rotation, two.rotation, one.moved, two.moved, apart, crash)
    moves = [
        Moved(*(torch.where(touches, new - old, 0.0) for new, old in zip(moved, side.moved)))
        for moved, side in zip(after, (one, two))
    ]
    onto = bump(one, two, crash, rivals)
    turned = crash._replace(point=crash.point - apart[:, None], normal=-crash.normal)
    back = bump(two, one, turned, rivals)
    kind = apart.dtype
    own, other = ((move.bumps.to(kind), move.demolishes.to(kind)) for move in (onto, back))
    return Change(moves[0], back.kick, *own, other[1]), Change(moves[1], onto.kick, *other, own[1])


def with_pairs(
    scene: Scene,
    met: Met,
    first: Tensor,
    second: Tensor,
    worlds: Tensor,
    compute: Callable[[Side, Side, Tensor], tuple[Change, Change]] = crashes,
) -> Met:
    """Returns ``met`` with the contacts of ``n`` pairs of cars ``[n]`` in worlds ``[n]``.

    Args:
        compute: :func:`crashes`, eager or compiled.
    """
    cars = scene.cars
    width = cars.boost.shape[1]
    places = (first * width + worlds, second * width + worlds)
    one, two = (
        Side(
            taken(cars.position, place),
            taken(cars.rotation, place),
            taken(scene.motion.velocity, place),
            taken(cars.wheels, place),
            taken(cars.supersonic, place),
            taken(cars.gone, place),
            ~((taken(cars.bump_wait, place) > 0) & (taken(cars.bumped, place) == other)),
            Moved(*(taken(value, place) for value in met.cars)),
        )
        for place, other in zip(places, (second, first))
    )
    half = width * ((cars.boost.shape[0] + 1) // 2)
    changes = compute(one, two, (places[0] < half) != (places[1] < half))

    def added(value: Tensor, *parts: Tensor) -> Tensor:
        flat = value.flatten(-2)
        for place, part in zip(places, parts):
            flat = flat.index_add(-1, place, part)
        return flat.view(value.shape)

    marks = (changes[0].bumps * (second + 1), changes[1].bumps * (first + 1))
    return met._replace(
        cars=Moved(*map(added, met.cars, changes[0].moved, changes[1].moved)),
        kick=added(met.kick, *(change.kick for change in changes)),
        victim=torch.maximum(met.victim, added(torch.zeros_like(met.victim), *marks).clamp_max(99.0) - 1),
        demolishes=added(met.demolishes, *(change.demolishes for change in changes)).clamp_max(1.0),
        demolished=added(met.demolished, *(change.demolished for change in changes)).clamp_max(1.0),
    )
