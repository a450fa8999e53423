"""Contacts between cars, bumps and demolitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .solver import CAR_EFFECT, CAR_SCALE, Met, Moved, Scene, relax, sideways
from .state import Cars
from .vectors import along, constant, cross, dot, length, pieces, taken, to_local, to_world

_POINTS = 4
_NEAR = 192.0  # uu; cars with origins farther apart do not touch
_SIDES = (1.0, -1.0)
_STRENGTHS = pieces(rules.BUMP_GROUND, rules.BUMP_AIR, rules.BUMP_UP)


class Crash(NamedTuple):
    """The overlap of two boxes."""

    arm: Tensor  # [3, 2, 4, n] points of contact from each car's origin, world axes
    depth: Tensor  # [4, n]
    normal: Tensor  # [3, n] from the first car to the second
    touches: Tensor  # [n] bool


class Pairs(NamedTuple):
    """The two cars of ``n`` pairs, ``[..., 2, n]``."""

    position: Tensor
    rotation: Tensor
    velocity: Tensor  # without the forces of this tick
    wheels: Tensor  # [4, 2, n] flag: on the ground
    supersonic: Tensor
    gone: Tensor
    free: Tensor  # bool: may bump the other again
    moved: tuple[Tensor, Tensor]  # velocity and spin after its other contacts


def overlap(apart: Tensor, rotation: Tensor) -> Crash:
    """Finds the axis of least overlap of boxes (separating axes, Gottschalk 1996).

    Args:
        apart: ``[3, n]`` from the first car's origin to the second's.
        rotation: ``[3, 3, 2, n]``.
    """
    half, centre = (constant(values, apart[0]) for values in (rules.BOX_HALF, rules.HITBOX_CENTRE))
    middle = to_world(rotation, centre[:, None])  # [3, 2, n]
    between = apart + middle[:, 1] - middle[:, 0]
    axes = rotation.permute(1, 2, 0, 3)  # component, car, axis
    crossed = cross(axes[:, 0, :, None], axes[:, 1, None]).flatten(1, 2)
    size = dot(crossed, crossed)
    faces = axes.flatten(1, 2)  # [3, 6, n]
    every = torch.cat((faces, crossed * size.clamp_min(1.0e-12).rsqrt()), 1)
    reach = ((every[:, :, None, None] * axes[:, None]).sum(0).abs() * half).sum((1, 2))
    room = reach - dot(every, between[:, None]).abs()
    # Parallel edges span no axis.
    touches = ((room > 0) | torch.cat((torch.zeros_like(room[:6], dtype=torch.bool), size <= 1.0e-4))).all(0)
    row = room[:6].argmin(0)
    normal = faces.gather(1, row.expand(3, 1, -1))[:, 0]
    normal = normal * torch.copysign(torch.ones_like(size[0]), dot(normal, between))
    signs = constant(_SIDES, apart[0])

    # The corners of a face of the other car, clipped to a car's own; the points lie half-way between the two surfaces.
    away, outwards, other = (
        signs * between[:, None],
        signs * normal[:, None],
        rotation.flip(2),
    )  # of each car, [3, 2, n]
    facing = (other * outwards).sum(1)
    chosen = (facing.abs().argmax(0) == constant((0.0, 1.0, 2.0), facing[0])).to(facing.dtype)
    half = constant(rules.BOX_HALF, facing[0])
    corners = torch.copysign(chosen * half, -facing)[:, None]
    # Two directions span the face: the axes after the chosen one.
    for turn, sign in enumerate(((1.0, 1.0, -1.0, -1.0), (1.0, -1.0, 1.0, -1.0)), 1):
        beside = (chosen.roll(turn, 0) * half)[:, None]
        corners = torch.addcmul(corners, beside, constant(sign, facing[0]))  # [3, 4, 2, n]
    corners = (other[:, :, None] * corners[:, None]).sum(0) + away[:, None]
    local = (rotation[:, :, None] * corners).sum(1)
    drawn = torch.minimum(torch.maximum(local, -half[:, None]), half[:, None])
    back = (rotation[:, :, None] * drawn[:, None]).sum(0)
    extent = ((rotation * outwards).sum(1).abs() * half).sum(0)
    outwards = outwards[:, None]
    # Depth at the original corner, so that a tilted face presses on its deepest side.
    depth = extent - dot(corners, outwards)
    surface = torch.addcmul(back, outwards, extent - dot(back, outwards) - 0.5 * depth)
    from_first = row < 3
    surface = torch.where(from_first, surface[:, :, 0], surface[:, :, 1] + between[:, None]) + middle[:, None, 0]
    return Crash(
        torch.stack((surface, surface - apart[:, None]), 1),
        torch.where(from_first, depth[:, 0], depth[:, 1]),
        normal,
        touches,
    )


def collide(rotation: Tensor, velocity: Tensor, spin: Tensor, crash: Crash) -> tuple[Tensor, ...]:
    """Returns changes of velocity, spin, shift and twist of both cars by a contact, ``[3, 2, n]``.

    Args:
        rotation, velocity, spin: ``[..., 2, n]`` of the cars after their other contacts.
    """
    arm, depth = crash.arm, crash.depth
    normal = crash.normal[:, None].expand(3, *depth.shape)
    moving = velocity[:, :, None] + cross(spin[:, :, None], arm)
    slip = moving[:, 1] - moving[:, 0]
    axes = torch.stack((normal, sideways(slip, normal)), 1)  # [3, 2, 4, n]
    wanted = -dot(slip[:, None], axes)
    approach = wanted[0]
    wanted = torch.stack((approach + rules.BUMPER_RESTITUTION * approach * (approach > rules.SOFT), wanted[1]))
    # The second car's motion along the axes minus the first's.
    lever = to_local(rotation[..., None, None, :], cross(arm[:, :, None], axes[:, None]))
    signs = constant(_SIDES, lever[0, 0, 0], 3)
    scale = constant(CAR_SCALE, lever[0])
    rows = torch.cat((axes[:, None].expand_as(lever), lever)) * (scale * -signs)  # [6, 2, 2, 4, n]
    rows = rows.permute(2, 3, 1, 0, 4).flatten(2, 3).flatten(0, 1)  # [8, 12, n]
    active = (depth > 0) & crash.touches
    impulses = relax(rows, wanted.flatten(0, 1), depth * (rules.PUSH / DT), active, [rules.BUMPER_FRICTION] * _POINTS)
    change = (rows[:, :, None] * impulses[:, None]).sum(0).unflatten(0, (2, 2, 3))
    change = change * constant(CAR_EFFECT, depth[0]).unflatten(0, (2, 3, 2))
    line, turn = change.permute(1, 3, 2, 0, 4).unbind(0)  # [2, 3, 2, n]: of the motion, and out of the penetration
    turn = to_world(rotation[:, :, None], turn.transpose(0, 1))
    return line[0], turn[:, 0], line[1], turn[:, 1]


def bump(pairs: Pairs, apart: Tensor, crash: Crash, rivals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the bumps of cars into the others of their pairs.

    Args:
        apart: ``[3, 2, n]`` from each car to the other.
        rivals: ``[n]`` bool, whether the cars are of different teams.

    Returns:
        Changes of the others' velocities after their moves, ``[3, 2, n]``; whether a car bumps and demolishes,
        ``[2, n]`` bool.
    """
    vectors = torch.stack((apart, pairs.velocity), 1)
    distance, fast = length(vectors).clamp_min(1.0e-6).unbind(0)
    towards, heading = dot(pairs.velocity, apart) / distance, pairs.velocity / fast
    ahead = dot(crash.arm, pairs.rotation[0][:, :, None])
    in_front = ((ahead > rules.BUMP_FRONT) & (crash.depth > 0)).any(1)
    faster = towards > dot(pairs.velocity.flip(1), heading).clamp_min(0.0)
    bumps = crash.touches & pairs.free & in_front & faster
    demolishes = bumps & rivals & (pairs.supersonic > 0)
    grounded = (pairs.wheels.sum(0) >= 3).flip(0)
    on_ground, in_air, upwards = along(_STRENGTHS, towards)
    lift = torch.where(grounded, pairs.rotation[2].flip(1), constant((0.0, 0.0, 1.0), towards))
    kick = heading * torch.where(grounded, on_ground, in_air) + lift * upwards
    return kick * (bumps & ~demolishes), bumps, demolishes


def crashes(pairs: Pairs, rivals: Tensor) -> Tensor:
    """Computes the contacts of ``n`` pairs of cars.

    Args:
        rivals: see :func:`bump`.

    Returns:
        ``[18, 2, n]``: changes of velocity, spin, shift, twist and kick of each car, and flags: it bumps the other,
        demolishes it, is demolished.
    """
    apart = pairs.position[:, 1] - pairs.position[:, 0]
    crash = overlap(apart, pairs.rotation)
    crash = crash._replace(touches=crash.touches > pairs.gone.amax(0))  # whole ticks
    moved = collide(pairs.rotation, *pairs.moved, crash)
    kick, bumps, demolishes = bump(pairs, constant(_SIDES, apart[0]) * apart[:, None], crash, rivals)
    return torch.cat((*moved, kick.flip(1), torch.stack((bumps, demolishes, demolishes.flip(0)))))


def near_pairs(cars: Cars) -> tuple[Tensor, Tensor]:
    """Returns the cars ``[2, n]`` and the worlds ``[n]`` of all pairs that may touch."""
    pairs = list(combinations(range(cars.boost.shape[0]), 2))
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    apart = cars.position[:, seconds] - cars.position[:, firsts]
    here = (cars.gone[firsts] == 0) & (cars.gone[seconds] == 0)
    place, worlds = ((dot(apart, apart) < _NEAR**2) & here).nonzero().unbind(1)
    return torch.tensor([firsts, seconds], device=place.device)[:, place], worlds


def with_pairs(scene: Scene, met: Met, pair: Tensor, worlds: Tensor, compute: Callable[..., Tensor]) -> Met:
    """Returns ``met`` with the contacts of pairs of cars ``[2, n]`` in worlds ``[n]``.

    Args:
        compute: :func:`crashes`, eager or compiled.
    """
    count, width = scene.cars.boost.shape
    places = (pair * width + worlds).flatten()

    def both(value: Tensor) -> Tensor:
        return taken(value, places).unflatten(-1, (2, -1))

    changes = _computed(scene, met, both, pair, compute)
    total = changes.new_zeros(len(changes), count * width).index_add(-1, places, changes.flatten(1))
    return _changed(met, total.unflatten(-1, (count, width)))


def with_all_pairs(scene: Scene, met: Met) -> Met:
    """Returns ``met`` with the contacts of all pairs of cars of all worlds."""
    count, width = scene.cars.boost.shape
    pairs = list(combinations(range(count), 2))
    order = [pair[side] for side in (0, 1) for pair in pairs]
    cars = constant(order, scene.cars.boost, 0, torch.int64)

    def both(value: Tensor) -> Tensor:
        value = value if count == 2 else value.index_select(-2, cars)
        return value.unflatten(-2, (2, -1)).flatten(-2)

    pair = cars.view(2, -1, 1).expand(2, len(pairs), width).flatten(1)
    changes = _computed(scene, met, both, pair, crashes).unflatten(-1, (len(pairs), width)).flatten(1, 2)
    # The sum over each car's pairs.
    own = [place for car in range(count) for place, other in enumerate(order) if other == car]
    total = changes.index_select(1, constant(own, changes, 0, torch.int64)).unflatten(1, (count, count - 1)).sum(2)
    return _changed(met, total)


def _computed(
    scene: Scene, met: Met, both: Callable[[Tensor], Tensor], pair: Tensor, compute: Callable[..., Tensor]
) -> Tensor:
    """Returns :func:`crashes` of pairs of cars ``[2, n]``; a bump's flag is the other car's number from 1."""
    cars, other, half = scene.cars, pair.flip(0), (len(scene.cars.boost) + 1) // 2
    free = (both(cars.bump_wait) <= 0) | (both(cars.bumped) != other)
    motion = (both(scene.motion.velocity), both(cars.wheels), both(cars.supersonic), both(cars.gone), free)
    moved = (both(met.cars.velocity), both(met.cars.spin))
    changes = compute(Pairs(both(cars.position), both(cars.rotation), *motion, moved), (pair < half).sum(0) == 1)
    return torch.cat((changes[:15], changes[15:16] * (other + 1), changes[16:]))


def _changed(met: Met, total: Tensor) -> Met:
    """Returns ``met`` with the changes ``[18, C, W]`` of cars by one another."""
    moved = Moved(*(old + change for old, change in zip(met.cars, total[:12].unflatten(0, (4, 3)))))
    victim, demolishes, demolished = total[15].clamp_max(99.0) - 1, *total[16:].clamp_max(1.0).unbind(0)
    return met._replace(cars=moved, kick=total[12:15], victim=victim, demolishes=demolishes, demolished=demolished)
