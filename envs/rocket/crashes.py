"""Which cars of a batch crash into each other, and what that does to them."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from . import bumps
from .ball import Moved
from .bumps import Pair, bump, collide, overlap
from .scene import Met, Scene
from .state import Cars
from .vectors import dot


def near_pairs(cars: Cars) -> tuple[Tensor, Tensor, Tensor]:
    """First car, second car and world of all pairs that are near each other."""
    pairs = list(combinations(range(cars.boost.shape[0]), 2))
    firsts, seconds = ([pair[side] for pair in pairs] for side in (0, 1))
    apart = cars.position[:, seconds] - cars.position[:, firsts]
    here = (cars.gone[firsts] == 0) & (cars.gone[seconds] == 0)
    pair, worlds = ((dot(apart, apart) < bumps.REACH**2) & here).nonzero().unbind(1)
    table = torch.tensor(pairs, device=pair.device)
    return table[pair, 0], table[pair, 1], worlds


def touching_pairs(cars: Cars, first: Tensor, second: Tensor, worlds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of some pairs, those that touch."""
    if not len(worlds):
        return first, second, worlds
    (one, turned_one), (two, turned_two) = (
        (cars.position[:, car, worlds], cars.rotation[:, :, car, worlds]) for car in (first, second)
    )
    here = overlap(two - one, turned_one, turned_two).touches
    return first[here], second[here], worlds[here]


def with_pairs(scene: Scene, met: Met, first: Tensor, second: Tensor, worlds: Tensor) -> Met:
    """Contacts of ``n`` pairs of cars ``[n]`` in worlds ``[n]``, added to what there is."""
    cars = scene.cars
    width = cars.boost.shape[1]
    places = (first * width + worlds, second * width + worlds)

    def part(value: Tensor, place: Tensor) -> Tensor:
        return value.flatten(-2).index_select(-1, place)

    one, two = (
        Pair(
            part(cars.position, place),
            part(cars.rotation, place),
            part(scene.motion.velocity, place),
            (part(cars.wheels, place).sum(0) >= 3).to(cars.boost.dtype),
            part(cars.supersonic, place),
        )
        for place in places
    )
    apart = two.position - one.position
    crash = overlap(apart, one.rotation, two.rotation)
    here = (part(cars.gone, places[0]) == 0) & (part(cars.gone, places[1]) == 0)
    crash = crash._replace(touches=crash.touches & here)
    before = tuple(Moved(*(part(value, place) for value in met.cars)) for place in places)
    after = collide(one.rotation, two.rotation, before[0], before[1], apart, crash)
    turned = crash._replace(point=crash.point - apart[:, None], normal=-crash.normal)
    half = width * ((cars.boost.shape[0] + 1) // 2)
    rivals = (places[0] < half) != (places[1] < half)
    onto = bump(one, two, crash, _free(cars, places[0], second), rivals)
    back = bump(two, one, turned, _free(cars, places[1], first), rivals)

    def added(value: Tensor, changes: tuple[Tensor, ...]) -> Tensor:
        flat = value.flatten(-2)
        for place, change in zip(places, changes):
            flat = flat.index_add(-1, place, change)
        return flat.view(value.shape)

    touches = crash.touches
    moved = [
        added(value, tuple(torch.where(touches, new[row] - old[row], 0.0) for new, old in zip(after, before)))
        for row, value in enumerate(met.cars)
    ]
    kind = cars.boost.dtype
    hurt = (back.demolishes.to(kind), onto.demolishes.to(kind))
    marks = (onto.bumps.to(kind) * (second + 1), back.bumps.to(kind) * (first + 1))
    return met._replace(
        cars=Moved(*moved),
        kick=added(met.kick, (back.kick, onto.kick)),
        victim=torch.maximum(met.victim, added(torch.zeros_like(met.victim), marks).clamp_max(99.0) - 1),
        demolishes=added(met.demolishes, (onto.demolishes.to(kind), back.demolishes.to(kind))).clamp_max(1.0),
        demolished=added(met.demolished, hurt).clamp_max(1.0),
    )


def _free(cars: Cars, place: Tensor, other: Tensor) -> Tensor:
    """Whether a car may bump another again."""
    waiting = cars.bump_wait.flatten(-2).index_select(-1, place) > 0
    return ~(waiting & (cars.bumped.flatten(-2).index_select(-1, place) == other))
