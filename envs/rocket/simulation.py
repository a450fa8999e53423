"""A tick of 1/120 s for a batch of Rocket worlds.

:func:`advance` computes contacts only for near objects, which saves most of the work on a CPU; :func:`advance_densely`
computes them everywhere under masks, without branching on data, for CUDA graphs and ``torch.compile`` of the whole.
Both lead to the same worlds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..foundation.compilation import Compiled, CompiledColumns
from . import rules
from .ball import fly, fly_by, hits
from .bumps import crashes
from .contacts import ContactKernels, corner_arms, deepest, meet_everywhere, meet_where_needed, press
from .driving import drive
from .field import Field, WheelGround, trace_floor
from .prediction import FlightKernels, leap, lengthwise
from .rules import DT
from .solver import Met, Scene
from .starts import respawned
from .state import Ball, Cars, RocketState
from .vectors import clipped, constant, dot, length, put, taken, turned

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
    met = meet_where_needed(
        Scene(driven, motion, state.ball, fallen, pull, plane, bounced), near, field, kernels.contacts
    )
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
    picked, gained, pads = _pick_up(state.pads, position, driven.boost, here)
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
    return new, Events(met.hit, power, bumps.to(kind), met.demolishes, met.demolished, *picked, gained, used)


def _pick_up(
    pads: Tensor, position: Tensor, boost: Tensor, here: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Returns reached pads, big and small, ``[C, W]``; their boost; and ticks until pads are back, ``[34, W]``."""
    like, count = boost, len(boost)
    places = constant([place[axis] for axis in (0, 1) for place in rules.PADS], like).unflatten(0, (2, -1))
    big = [float(place in rules.BIG_PADS) for place in rules.PADS]
    radius = [rules.BIG_RADIUS if is_big else rules.SMALL_RADIUS for is_big in big]
    wants = (here > 0) & (boost < rules.BOOST_MOST) & ((position[2] - rules.PAD_Z).abs() < rules.PAD_REACH)
    # Numbers instead of flags: compiled code computes them several times faster.
    none, never = constant((0.0,), like[0]), constant((torch.inf,), like[0])
    away, waiting = torch.where(wants, none, never), torch.where(pads > 0, never, none)
    offset = places - position[:2, None]
    apart = dot(offset, offset) + away + waiting[:, None]  # [34, C, W]
    reaches = (apart < constant([size**2 for size in radius], like)).to(like.dtype)
    # The first of several cars takes it.
    earlier = constant([float(car > other) for car in range(count) for other in range(count)], like[0])
    takes = reaches * ((earlier.unflatten(0, (count, count)) * reaches[:, None]).sum(2) == 0)
    kinds = constant([*big, *[1 - value for value in big]], like).unflatten(0, (2, -1))
    bigs, smalls = (kinds * takes).sum(1).unbind(0)
    gained = torch.minimum((bigs * rules.BIG_BOOST).add(smalls, alpha=rules.SMALL_BOOST), rules.BOOST_MOST - boost)
    wait = constant([rules.BIG_TICKS if is_big else rules.SMALL_TICKS for is_big in big], like[0])
    left = torch.where(takes.sum(1) > 0, wait, (pads - 1).clamp_min(0.0))
    return (bigs, smalls), gained.clamp_min(0.0), left


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
    contacts: ContactKernels
    flights: FlightKernels


PLAIN = RocketKernels(
    advance_densely,
    drive,
    fly,
    finish,
    Field.trace,
    ContactKernels(press, crashes, hits),
    FlightKernels(leap, lengthwise),
)
"""The eager functions."""


def compiled_kernels(balls: int = 1024) -> RocketKernels:
    """Returns the kernels, compiled for the shapes of their first call; forecasts for so many balls at once."""

    def whole(function: Callable[..., Any]) -> Compiled:
        return Compiled(function, f"{function.__name__} of rocket", dynamic=False)

    def columns(function: Callable[..., Any], size: int) -> CompiledColumns:
        return CompiledColumns(function, f"{function.__name__} of rocket", size)

    contacts = ContactKernels(columns(press, 512), columns(crashes, 128), columns(hits, 128))
    flights = FlightKernels(columns(leap, balls), columns(lengthwise, balls))
    tick = whole(advance_densely), whole(drive), whole(fly), whole(finish), columns(Field.trace, 512)
    return RocketKernels(*tick, contacts, flights)
