"""Everything that touches in a tick: bodies and field, cars and cars, cars and ball.

:func:`meet_where_needed` looks only at what is near something else, which on a CPU saves most of the work;
:func:`meet_everywhere` computes all contacts of all worlds under masks, without a branch on data. Both agree.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from . import body, rules
from .ball import Moved, Plane
from .body import deepest_corner, press
from .crashes import near_pairs, touching_pairs, with_pairs
from .driving import Motion
from .field import Field
from .hits import Reach, extra_speed, reach, strike
from .scene import Met, Scene, untouched
from .state import Ball
from .vectors import dot

_HITTERS = 2
"""Cars of a world that can hit the ball in the same tick, the nearest ones."""
_BALL_REACH = body.REACH + rules.BALL_RADIUS + 2.0


# -- everywhere --------------------------------------------------------------------------------------------------------


def meet_everywhere(scene: Scene, field: Field) -> Met:
    """All contacts of all worlds."""
    met = untouched(scene)
    cars = scene.cars
    corner = deepest_corner(cars.position, cars.rotation, field)
    pressed, touches = press(cars.rotation, scene.motion, corner)
    touches = touches & (cars.gone == 0)
    met = met._replace(
        cars=Moved(*(torch.where(touches, new, old) for new, old in zip(pressed, met.cars))),
        touching=touches.to(cars.boost.dtype),
        touch_normal=torch.where(touches, corner.normal, cars.touch_normal),
    )
    for first, second in combinations(range(cars.boost.shape[0]), 2):
        met = _add_pair(scene, met, first, second)
    worlds = torch.arange(cars.boost.shape[1], device=cars.boost.device)
    struck = _hit_ball(scene, met, worlds)
    return _placed(met, struck, worlds, struck.any_hit)


def _add_pair(scene: Scene, met: Met, first: int, second: int) -> Met:
    worlds = torch.arange(scene.cars.boost.shape[1], device=scene.cars.boost.device)
    ones = torch.ones_like(worlds)
    return with_pairs(scene, met, ones * first, ones * second, worlds)


# -- where needed ------------------------------------------------------------------------------------------------------


def meet_where_needed(scene: Scene, near_walls: Tensor, field: Field) -> Met:
    """All contacts, of the worlds that may have one. Branches on data.

    Args:
        near_walls: ``[C, W]`` bool, cars that may touch something else than the floor.
    """
    met = untouched(scene)
    cars = scene.cars
    low = body.clearance(cars.rotation, cars.position[2]) < rules.BODY_GAP
    met = _with_bodies(scene, met, ((low | near_walls) & (cars.gone == 0)).flatten().nonzero()[:, 0], field)
    if cars.boost.shape[0] > 1:
        first, second, worlds = touching_pairs(cars, *near_pairs(cars))
        if len(worlds):
            met = with_pairs(scene, met, first, second, worlds)
    away = scene.ball.position[:, None] - cars.position
    close = (dot(away, away) < _BALL_REACH**2) & (cars.gone == 0)
    worlds = _touched_balls(scene, close.any(0).nonzero()[:, 0])
    if len(worlds):
        struck = _hit_ball(scene, met, worlds)
        met = _placed(met, struck, worlds, struck.any_hit)
    return met


def _touched_balls(scene: Scene, worlds: Tensor) -> Tensor:
    """Of some worlds, those where a car touches the ball."""
    if not len(worlds):
        return worlds
    cars = scene.cars
    position, rotation, gone = (value.index_select(-1, worlds) for value in (cars.position, cars.rotation, cars.gone))
    near = reach(position, rotation, scene.ball.position.index_select(-1, worlds)[:, None])
    return worlds[((near.gap < rules.CONTACT_GAP) & (gone == 0)).any(0)]


def _with_bodies(scene: Scene, met: Met, index: Tensor, field: Field) -> Met:
    if not len(index):
        return met
    cars = scene.cars

    def part(value: Tensor) -> Tensor:
        return value.flatten(-2).index_select(-1, index)

    rotation = part(cars.rotation)
    corner = deepest_corner(part(cars.position), rotation, field)
    here = (corner.gap < rules.BODY_GAP).nonzero()[:, 0]
    if not len(here):
        return met
    index, rotation = index[here], rotation.index_select(-1, here)
    corner = body.Corner(*(value.index_select(-1, here) for value in corner))
    pressed, _ = press(rotation, Motion(*(part(value) for value in scene.motion)), corner)

    def put(value: Tensor, new: Tensor) -> Tensor:
        return value.flatten(-2).index_copy(-1, index, new).view(value.shape)

    return met._replace(
        cars=Moved(*(put(value, new) for value, new in zip(met.cars, pressed))),
        touching=put(met.touching, torch.ones_like(corner.gap)),
        touch_normal=put(met.touch_normal, corner.normal),
    )


# -- cars and ball -----------------------------------------------------------------------------------------------------


class _Struck(NamedTuple):
    """The cars nearest to the ball, and what hits make of them and it, ``[..., H, n]`` and ``[..., n]``."""

    hitters: Tensor  # [H, n]
    ball: Moved
    ball_kick: Tensor
    cars: Moved
    hit: Tensor  # [H, n] flag
    extra: Tensor  # [H, n] flag
    any_hit: Tensor  # [n] bool


def _hit_ball(scene: Scene, met: Met, worlds: Tensor) -> _Struck:
    """Hits in the worlds of an index tensor."""
    cars, ball = scene.cars, scene.ball
    count = min(_HITTERS, cars.boost.shape[0])

    def part(value: Tensor) -> Tensor:
        return value.index_select(-1, worlds)

    spot = part(ball.position)
    near = reach(part(cars.position), part(cars.rotation), spot[:, None])
    gap = torch.where(part(cars.gone) > 0, rules.HEIGHT, near.gap)
    hitters = gap.topk(count, dim=0, largest=False).indices
    # In the order of the cars, which decides who is solved first.
    hitters = hitters.sort(0).values

    def chosen(value: Tensor) -> Tensor:
        lead = value.shape[:-2]
        return value.gather(-2, hitters.expand(*lead, *hitters.shape))

    touch = Reach(chosen(gap), chosen(near.normal), chosen(near.arm))
    hit = touch.gap < rules.CONTACT_GAP
    rotation = chosen(part(cars.rotation))
    sphere = Ball(spot, part(ball.velocity), part(ball.spin))
    before = Moved(*(chosen(part(value)) for value in met.cars))
    fallen, pull = part(scene.fallen), part(scene.pull)
    plane = Plane(*(part(value) for value in scene.plane))
    torque = chosen(part(scene.motion.torque))
    struck, moved = strike(sphere, fallen, pull, plane, rotation, before, torque, touch)
    fresh = hit & (chosen(part(cars.extra_hit)) == 0)
    velocity = chosen(part(scene.motion.velocity))
    extra = extra_speed(chosen(part(cars.position)), rotation[0], velocity, spot[:, None], fallen[:, None])
    kind = gap.dtype
    return _Struck(hitters, struck, (extra * fresh).sum(1), moved, hit.to(kind), fresh.to(kind), hit.any(0))


def _placed(met: Met, struck: _Struck, worlds: Tensor, where: Tensor) -> Met:
    """With what hits did, in the worlds where there was one."""

    def cars_of(value: Tensor, new: Tensor) -> Tensor:
        old = value.index_select(-1, worlds)
        lead = value.shape[:-2]
        index = struck.hitters.expand(*lead, *struck.hitters.shape)
        changed = old.scatter(-2, index, torch.where(where, new, old.gather(-2, index)))
        return value.index_copy(-1, worlds, changed)

    def ball_of(value: Tensor, new: Tensor) -> Tensor:
        return value.index_copy(-1, worlds, torch.where(where, new, value.index_select(-1, worlds)))

    return met._replace(
        ball=Moved(*(ball_of(value, new) for value, new in zip(met.ball, struck.ball))),
        ball_kick=ball_of(met.ball_kick, struck.ball_kick),
        cars=Moved(*(cars_of(value, new) for value, new in zip(met.cars, struck.cars))),
        hit=cars_of(met.hit, struck.hit),
        extra=cars_of(met.extra, struck.extra),
    )
