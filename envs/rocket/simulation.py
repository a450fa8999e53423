"""A tick of 1/120 s for a batch of Rocket worlds.

:func:`advance` computes contacts only for near objects, which saves most of the work on a CPU; :func:`advance_densely`
computes them everywhere under masks, without branching on data, for CUDA graphs and ``torch.compile`` of the whole.
Both lead to the same worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..foundation.compilation import Compiled, CompiledColumns
from . import rules
from .ball import fly, fly_by, hits, struck
from .bumps import crashes, near_pairs, with_all_pairs, with_pairs
from .driving import Motion, drive
from .field import Field, WheelGround, trace_floor
from .prediction import FlightKernels, leap, lengthwise
from .rules import DT
from .solver import Met, Moved, Scene, sideways, untouched
from .starts import respawned
from .state import Ball, Cars, RocketState
from .vectors import clipped, constant, cross, dot, length, put, taken, to_local, to_world, turned

_NEAR = 100.0  # greatest extent of a car


class Events(NamedTuple):
    """The events of a tick, or their sums over several, ``[C, W]``."""

    touches: Tensor  # ticks in which the car touched the ball
    power: Tensor  # change of the ball's velocity by its hits, uu/s
    bumps: Tensor  # cars bumped
    demolishes: Tensor  # cars demolished
    demolished: Tensor  # times it was
    big_pads: Tensor  # picked up
    small_pads: Tensor
    boost_gained: Tensor  # 0 to 100
    boost_used: Tensor


def advance(
    state: RocketState, controls: Tensor, field: Field, kernels: RocketKernels | None = None
) -> tuple[RocketState, Events]:
    """Makes one tick of all worlds, with contacts only where they are possible.

    Args:
        controls: ``[8, C, W]``, see :class:`~rlstack.envs.rocket.driving.Control`.
    """
    kernels = kernels or PLAIN
    cars = state.cars
    ground = trace_floor(cars.position, cars.rotation)
    near = near_walls(cars.position, field)
    away = state.ball.position[:, None] - cars.position
    beside = dot(away, away) < (rules.BALL_RADIUS + _NEAR) ** 2
    index = (near | beside).flatten().nonzero()[:, 0]
    if len(index):
        ground = _traced(ground, cars, state.ball, index, field, kernels)
    driven, motion = kernels.drive(cars, controls, ground)
    fallen, pull, plane, bounced = kernels.fly(state.ball, field)
    met = meet_where_needed(Scene(driven, motion, state.ball, fallen, pull, plane, bounced), near, field, kernels)
    new, events = kernels.finish(state, driven, met)
    if bool((new.cars.gone == 1).any()):
        new = new.replace(cars=respawned(new.cars, new.clock))
    return new, events


def advance_densely(state: RocketState, controls: Tensor, field: Field) -> tuple[RocketState, Events]:
    """Makes one tick with all contacts of all worlds; see :func:`advance`."""
    cars = state.cars
    ball = state.ball.position[:, None].expand_as(cars.position)
    driven, motion = drive(cars, controls, field.trace(cars.position, cars.rotation, ball))
    # The corners of all cars, and the balls.
    arms = corner_arms(cars.rotation)
    points = torch.cat(((cars.position[:, None] + arms).flatten(1, 2), state.ball.position[:, None]), 1)
    gaps, normals = field.inside(points)
    body = deepest(arms, gaps[:-1].view(arms.shape[1:]), normals[:, :-1].view_as(arms))
    fallen, pull, plane, bounced = fly_by(state.ball, gaps[-1], normals[:, -1])
    met = meet_everywhere(Scene(driven, motion, state.ball, fallen, pull, plane, bounced), body)
    new, events = finish(state, driven, met)
    new = new.replace(cars=respawned(new.cars, new.clock))
    if torch.compiler.is_compiling():  # for views, which the next tick begins with, it would be compiled once more
        new = new.map(torch.Tensor.contiguous)
    return new, events


def near_walls(position: Tensor, field: Field) -> Tensor:
    """Returns cars that may touch another surface than the floor, ``[...]`` bool."""
    x, y, z = position.unbind(0)
    wide, long = x.abs(), y.abs()
    margin = _NEAR + field.low_ramp
    near = (wide > rules.HALF_WIDTH - margin) | (z > rules.HEIGHT - _NEAR)
    if field.closed:
        near = near | (long > rules.HALF_LENGTH - margin) | (wide + long > rules.CORNER - 1.4143 * margin)
    if field.high_ramp > field.low_ramp:
        margin = _NEAR + field.high_ramp
        high = (wide > rules.HALF_WIDTH - margin) | (long > rules.HALF_LENGTH - margin)
        high = high | (wide + long > rules.CORNER - 1.4143 * margin)
        near = near | (high & (z > rules.HEIGHT - margin))
    return near


def _traced(
    ground: WheelGround, cars: Cars, ball: Ball, index: Tensor, field: Field, kernels: RocketKernels
) -> WheelGround:
    """Traces the rays of the cars of an index tensor."""
    shape = cars.boost.shape
    spot = ball.position.index_select(-1, index % shape[1])
    traced = kernels.trace(field, taken(cars.position, index), taken(cars.rotation, index), spot)
    return WheelGround(*(put(old.expand(*old.shape[:-3], 4, *shape), index, new) for old, new in zip(ground, traced)))


def finish(state: RocketState, driven: Cars, met: Met) -> tuple[RocketState, Events]:
    """Moves all objects, and applies bumps, pick-ups and goals."""
    struck = met.ball
    tops = (rules.BALL_TOP_SPEED, rules.BALL_TOP_SPIN), (rules.CAR_TOP_SPEED, rules.CAR_TOP_SPIN)
    ball_motion = clipped(torch.stack((struck.velocity + met.ball_kick, struck.spin), 1), tops[0])
    shift = struck.shift.add(struck.velocity, alpha=DT)
    ball = Ball(state.ball.position + shift, *ball_motion.unbind(1))
    kind = ball.position.dtype
    here = (driven.gone == 0) * (1 - met.demolished)
    moved = met.cars
    velocity, spin = (clipped(torch.stack((moved.velocity + met.kick, moved.spin), 1), tops[1]) * here).unbind(1)
    position = driven.position + moved.shift.add(moved.velocity, alpha=DT) * here
    speed2 = dot(velocity, velocity)
    fast, quite = speed2 >= rules.SUPERSONIC**2, speed2 >= rules.SUPERSONIC_KEPT**2
    keeps = (driven.supersonic > 0) & (driven.supersonic_ticks < rules.SUPERSONIC_GRACE)
    supersonic = torch.where(keeps, quite, fast).to(kind)
    pads, boost = state.pads, driven.boost

    # Pads reached by cars, [34, C, W]. Numbers instead of flags: compiled code computes them several times faster.
    count = len(boost)
    places = constant([place[axis] for axis in (0, 1) for place in rules.PADS], boost).unflatten(0, (2, -1))
    big = [float(place in rules.BIG_PADS) for place in rules.PADS]
    radius = [rules.BIG_RADIUS if is_big else rules.SMALL_RADIUS for is_big in big]
    wants = (here > 0) & (boost < rules.BOOST_MOST) & ((position[2] - rules.PAD_Z).abs() < rules.PAD_REACH)
    none, never = constant((0.0,), boost[0]), constant((torch.inf,), boost[0])
    away, waiting = torch.where(wants, none, never), torch.where(pads > 0, never, none)
    offset = places - position[:2, None]
    apart = dot(offset, offset) + away + waiting[:, None]
    reaches = (apart < constant([size**2 for size in radius], boost)).to(kind)
    # The first of several cars takes it.
    earlier = constant([float(car > other) for car in range(count) for other in range(count)], boost[0])
    takes = reaches * ((earlier.unflatten(0, (count, count)) * reaches[:, None]).sum(2) == 0)
    kinds = constant([*big, *[1 - value for value in big]], boost).unflatten(0, (2, -1))
    bigs, smalls = (kinds * takes).sum(1).unbind(0)
    gained = torch.minimum((bigs * rules.BIG_BOOST).add(smalls, alpha=rules.SMALL_BOOST), rules.BOOST_MOST - boost)
    gained = gained.clamp_min(0.0)
    wait = constant([rules.BIG_TICKS if is_big else rules.SMALL_TICKS for is_big in big], boost[0])
    pads = torch.where(takes.sum(1) > 0, wait, (pads - 1).clamp_min(0.0))

    bumps, line = met.victim >= 0, ball.position[1]
    cars = driven.replace(
        position=position,
        velocity=velocity,
        spin=spin,
        rotation=turned(driven.rotation, moved.twist.add(moved.spin, alpha=DT) * here),
        boost=driven.boost + gained,
        touching=met.touching,
        touch_normal=met.touch_normal,
        extra_hit=met.extra,
        supersonic=supersonic,
        supersonic_ticks=(driven.supersonic_ticks + 1) * supersonic,
        bump_wait=torch.where(bumps, constant((rules.BUMP_COOLDOWN,), line), (driven.bump_wait - 1).clamp_min(0.0)),
        bumped=torch.where(bumps, met.victim, driven.bumped),
        gone=torch.where(
            met.demolished > 0, constant((rules.RESPAWN_TICKS + 1,), line), (driven.gone - 1).clamp_min(0.0)
        ),
        age=driven.age + 1,
    )
    scored = line.sign() * (line.abs() > rules.GOAL_LINE)
    goal = torch.where(state.goal == 0, scored, state.goal)
    new = RocketState(cars, ball, pads, state.clock + 1, goal)
    change = ball.velocity - state.ball.velocity
    power = met.hit * length(change)
    used = (state.cars.boost - driven.boost) * here
    return new, Events(met.hit, power, bumps.to(kind), met.demolishes, met.demolished, bigs, smalls, gained, used)


# -- contacts: bodies with the field, cars with cars, cars with the ball ----------------------------------------------


_CAR_REACH = 96.0  # uu; greatest distance of a part of a car from its origin
_BALL_REACH = _CAR_REACH + rules.BALL_RADIUS + 2.0


class Corner(NamedTuple):
    """The corner of a car's box with the least gap to the field."""

    arm: Tensor  # [3, ...] from the car's origin
    gap: Tensor  # [...]
    normal: Tensor  # [3, ...]


def meet_everywhere(scene: Scene, body: Corner) -> Met:
    """Computes all contacts of all worlds.

    Args:
        body: the deepest corners of all cars.
    """
    cars = scene.cars
    met = untouched(scene)
    pressed = pressed_by(body, cars.rotation, cars.touch_normal, scene.motion)
    touching = pressed.touching > cars.gone  # a flag, and whole ticks
    met = met._replace(
        cars=Moved(*(torch.where(touching, new, old) for new, old in zip(pressed.moved, met.cars))),
        touching=touching.to(cars.boost.dtype),
        touch_normal=torch.where(touching, pressed.normal, cars.touch_normal),
    )
    return struck(scene, with_all_pairs(scene, met) if len(cars.boost) > 1 else met)


def meet_where_needed(scene: Scene, near_walls: Tensor, field: Field, kernels: RocketKernels) -> Met:
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
        pair, worlds = near_pairs(cars)
        if len(worlds):
            met = with_pairs(scene, met, pair, worlds, kernels.crashes)
    away = scene.ball.position[:, None] - cars.position
    worlds = ((dot(away, away) < _BALL_REACH**2) & (cars.gone == 0)).any(0).nonzero()[:, 0]
    return struck(scene, met, worlds, kernels.hits) if len(worlds) else met


# -- a body on the field: in each tick, the deepest corner may touch ---------------------------------------------------


def clearance(rotation: Tensor, height: Tensor) -> Tensor:
    """Returns the height ``[...]`` of the lowest corner of cars at a height above the floor."""
    forward, right, up = rotation[:, 2].unbind(0)
    (hx, hy, hz), (ox, _, oz) = rules.BOX_HALF, rules.HITBOX_CENTRE
    return height + ox * forward + oz * up - hx * forward.abs() - hy * right.abs() - hz * up.abs()


def deepest(arms: Tensor, gaps: Tensor, normals: Tensor) -> Corner:
    """Returns the deepest of corners ``[..., 8, ...]``, the first of equally deep ones."""
    gap, row = gaps.min(0)
    arm, normal = torch.stack((arms, normals)).gather(2, row.expand(2, 3, 1, *row.shape))[:, :, 0]
    return Corner(arm, gap, normal)


def corner_arms(rotation: Tensor) -> Tensor:
    """Returns the offsets of the corners from the origin, ``[3, 8, ...]``."""
    corners = [
        middle + sign * half
        for axis, (half, middle) in enumerate(zip(rules.BOX_HALF, rules.HITBOX_CENTRE))
        for sign in (corner[axis] for corner in product((1, -1), repeat=3))
    ]
    return (constant(corners, rotation[0, 0]).unflatten(0, (3, 1, 8)) * rotation[:, :, None]).sum(0)


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
    arms = corner_arms(rotation)
    return pressed_by(deepest(arms, *field.inside(position[:, None] + arms)), rotation, last, motion)


def pressed_by(corner: Corner, rotation: Tensor, last: Tensor, motion: Motion) -> Pressed:
    """Computes :func:`press` of bodies whose deepest corners are known."""
    arm, gap, normal = corner
    touches = gap < rules.BODY_GAP
    velocity, spin = motion.velocity.add(motion.force, alpha=DT), motion.spin.add(motion.torque, alpha=DT)
    now = velocity + cross(spin, arm)
    # The bounce ignores all forces of this tick, friction the torque that the driver applies.
    untwisted = cross(motion.spin, arm)
    axes = torch.stack((normal, sideways(now, normal)), 1)  # [3, 2, n]
    approach = -dot(motion.velocity + untwisted, normal)
    bounce = rules.BODY_RESTITUTION * approach * (approach > rules.SOFT)
    aims = torch.stack((bounce - dot(now, normal), -dot(velocity + untwisted, axes[:, 1])))

    levers = cross(arm[:, None], axes)
    turns = to_local(rotation[:, :, None], levers) / constant(rules.CAR_INERTIA, axes[0])
    turns = to_world(rotation[:, :, None], turns)
    one = 1 / rules.CAR_MASS
    weights = dot(levers, turns) + one
    # Friction counts in its share of the push.
    start, hold_start = (aims / weights * constant((1.0, 1 / rules.BODY_FRICTION), gap)).unbind(0)
    shares = constant((rules.BODY_FRICTION, 1 / rules.BODY_FRICTION), gap)
    less, hold_less = (-dot(levers[:, 0], turns[:, 1]) / weights * shares).unbind(0)
    signs = constant((-1.0, 1.0), gap)
    starts, less = signs * start, signs * less
    least, most = constant((-torch.inf, 0.0), gap), constant((0.0, torch.inf), gap)
    hold = torch.zeros_like(gap)
    for _ in range(rules.SWEEPS):
        pull, push = torch.addcmul(starts, less, hold).clamp(least, most).unbind(0)
        hold = torch.addcmul(hold_start, hold_less, push).clamp(pull, push)
    impulses = torch.stack((push, hold * rules.BODY_FRICTION)) * touches
    out = gap.clamp_max(0.0) * touches * -rules.PUSH / weights[0]
    moved = Moved(
        velocity.add((axes * impulses).sum(1), alpha=one),
        spin + (turns * impulses).sum(1),
        normal * (out * one),
        turns[:, 0] * (out * rules.PUSH_TURN),
    )
    return Pressed(moved, touches.to(gap.dtype), torch.where(touches, normal, last))


# -- eager or compiled -------------------------------------------------------------------------------------------------


class RocketKernels(NamedTuple):
    """The functions of a tick, eager or compiled.

    ``dense`` is a whole one, :func:`advance_densely`. Of the others, the first three run over all worlds, the next over
    the cars and worlds that need them. ``flights`` is for forecasts, which are not part of a tick.
    """

    dense: Callable[..., Any]
    drive: Callable[..., Any]
    fly: Callable[..., Any]
    finish: Callable[..., Any]
    trace: Callable[..., Any]
    press: Callable[..., Any]
    crashes: Callable[..., Any]
    hits: Callable[..., Any]
    flights: FlightKernels


_FLIGHTS = FlightKernels(leap, lengthwise)
PLAIN = RocketKernels(advance_densely, drive, fly, finish, Field.trace, press, crashes, hits, _FLIGHTS)
"""The eager functions."""


def compiled_kernels(balls: int = 1024) -> RocketKernels:
    """Returns the kernels, compiled for the shapes of their first call; forecasts for so many balls at once."""

    def whole(function: Callable[..., Any]) -> Compiled:
        return Compiled(function, f"{function.__name__} of rocket", dynamic=False)

    def columns(function: Callable[..., Any], size: int) -> CompiledColumns:
        return CompiledColumns(function, f"{function.__name__} of rocket", size)

    tick = whole(advance_densely), whole(drive), whole(fly), whole(finish)
    rare = columns(Field.trace, 512), columns(press, 512), columns(crashes, 128), columns(hits, 128)
    return RocketKernels(*tick, *rare, FlightKernels(columns(leap, balls), columns(lengthwise, balls)))
