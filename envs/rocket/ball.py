"""The ball: its flight, its bounces off the field, and hits by cars."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .field import Field
from .rules import DT
from .solver import BALL_SCALE, CAR_SCALE, Met, Moved, Plane, Scene, relax, sideways
from .state import Ball
from .vectors import along, constant, cross, dot, to_local, to_world, unit


def fly(ball: Ball, field: Field) -> tuple[Tensor, Tensor, Plane, Moved]:
    """Moves the balls by a tick without cars; returns their entries of :class:`~rlstack.envs.rocket.solver.Scene`."""
    moving = dot(ball.velocity, ball.velocity) + dot(ball.spin, ball.spin) > 0
    # A ball that is untouched since the kick-off does not move, and does not touch the floor.
    moves = moving.to(ball.velocity.dtype)
    fallen = ball.velocity * (1 - rules.BALL_DRAG) ** DT
    down = moves * (-rules.GRAVITY * DT)
    pull = torch.stack((torch.zeros_like(down), torch.zeros_like(down), down))
    gap, normal = field.inside(ball.position)
    plane = Plane(gap - rules.BALL_RADIUS + (1 - moves) * rules.HEIGHT, normal)
    return fallen, pull, plane, _bounced(ball, fallen, pull, plane)


def _bounced(ball: Ball, fallen: Tensor, pull: Tensor, plane: Plane) -> Moved:
    normal, radius = plane.normal, rules.BALL_RADIUS
    pulled = fallen + pull
    touches = plane.gap < rules.CONTACT_GAP
    approach = -dot(fallen, normal)
    back = rules.BALL_RESTITUTION * torch.where(approach > rules.SOFT, approach, 0.0)
    push = (back - dot(pulled, normal)).clamp_min(0.0) * touches
    slip = pulled - normal * dot(pulled, normal) - radius * cross(ball.spin, normal)
    speed = dot(slip, slip).clamp_min(1.0e-12).sqrt()
    hold = torch.minimum(rules.BALL_FRICTION * push, (2 / 7) * speed)
    along = slip * (hold / speed)
    spin = ball.spin + cross(normal, along) / (0.4 * radius)
    shift = normal * ((-plane.gap).clamp_min(0.0) * (rules.PUSH * touches.to(push.dtype)))
    return Moved(pulled + normal * push - along, spin, shift, torch.zeros_like(shift))


# -- cars against the ball ---------------------------------------------------------------------------------------------


_HITTERS = 2  # number of nearest cars of a world that can hit the ball in the same tick


class Reach(NamedTuple):
    """The points of cars nearest to the ball."""

    gap: Tensor  # [...]
    normal: Tensor  # [3, ...] from the car to the ball
    arm: Tensor  # [3, ...] from the car's origin to the point of contact


def reach(position: Tensor, rotation: Tensor, ball: Tensor) -> Reach:
    """Finds the point of a car's body, a box with round edges, nearest to the ball's centre.

    Args:
        position, rotation: the cars', ``[3, ...]`` and ``[3, 3, ...]``.
        ball: position of the ball, broadcastable.
    """
    like = position[0]
    half = constant([side / 2 - rules.CORE_MARGIN for side in rules.HITBOX], like)
    centre = constant(rules.HITBOX_CENTRE, like)
    away = to_local(rotation, ball - position) - centre
    core = torch.minimum(torch.maximum(away, -half), half)
    out = away - core
    distance = dot(out, out).sqrt()
    within = distance < 1.0e-6
    normal = out / distance.clamp_min(1.0e-6)
    normal = torch.stack((normal[0], normal[1], torch.where(within, 1.0, normal[2])))
    arm = core + centre + rules.EDGE_RADIUS * normal
    return Reach(
        distance - (rules.EDGE_RADIUS + rules.BALL_RADIUS), to_world(rotation, normal), to_world(rotation, arm)
    )


def extra_speed(position: Tensor, forward: Tensor, velocity: Tensor, ball: Tensor, ball_velocity: Tensor) -> Tensor:
    """Returns the velocity that a hit gives to the ball in addition to the contact, ``[3, ...]``.

    Args:
        position, forward: the cars'.
        velocity: velocity of the cars, without the forces of this tick.
        ball, ball_velocity: the ball's position, and velocity after drag, broadcastable.
    """
    away = ball - position
    heading = unit(torch.stack((away[0], away[1], away[2] * rules.HIT_UP)))
    heading = unit(heading - forward * (dot(heading, forward) * rules.HIT_FORWARD))
    difference = ball_velocity - velocity
    speed = dot(difference, difference).sqrt().clamp_max(rules.HIT_SPEED_MOST)
    return heading * (speed * along(rules.HIT_CURVE, speed))


def strike(
    ball: Ball,
    ball_velocity: Tensor,
    pull: Tensor,
    plane: Plane,
    rotation: Tensor,
    moved: Moved,
    torque: Tensor,
    touch: Reach,
) -> tuple[Moved, Moved]:
    """Computes the motion of the ball and ``H`` cars after their contacts; trailing dimension ``[n]``.

    Args:
        ball_velocity: velocity of the ball after drag, without gravity.
        pull: change of the velocity by gravity.
        rotation, moved, torque, touch: the cars', ``[..., H, n]``; there is no contact if the gap is too wide.
    """
    hitters = touch.gap.shape[0]
    pulled = ball_velocity + pull
    gaps = torch.cat((touch.gap, plane.gap[None]))
    active = gaps < rules.CONTACT_GAP
    normal = torch.cat((touch.normal, plane.normal[:, None]), 1)  # [3, H + 1, n], towards the ball
    arm = -rules.BALL_RADIUS * normal
    still = torch.zeros_like(touch.normal[:, :1])
    # The field is a last, immovable car; friction ignores the torque that a driver applies.
    car_velocity = torch.cat((moved.velocity + cross(moved.spin, touch.arm), still), 1)
    untwisted = torch.cat((moved.velocity + cross(moved.spin - torque * DT, touch.arm), still), 1)
    slip = pulled[:, None] + cross(ball.spin[:, None], arm)
    direction = sideways(slip - car_velocity, normal)
    approach = -dot(ball_velocity, plane.normal)
    bounce = rules.BALL_RESTITUTION * torch.where(approach > rules.SOFT, approach, 0.0)
    target = torch.cat((torch.zeros_like(touch.gap), bounce[None]))
    wanted = torch.cat((target - dot(slip - car_velocity, normal), -dot(slip - untwisted, direction)))
    rows = torch.cat([_rows(rotation, touch.arm, arm, axis) for axis in (normal, direction)])

    friction = [*[rules.HIT_FRICTION] * hitters, rules.BALL_FRICTION]
    impulse = (rows * relax(rows, wanted, active, friction, rules.SWEEPS)[:, None]).sum(0)
    deep = (-gaps).clamp_min(0.0) * (rules.PUSH / DT)
    normals = rows[: hitters + 1]
    push = (normals * relax(normals, deep, active, (), rules.SWEEPS)[:, None]).sum(0)
    change, turn, car_change, car_turn = _applied(rotation, impulse)
    shift, _, car_shift, car_twist = _applied(rotation, push)
    struck_ball = Moved(pulled + change, ball.spin + turn, shift * DT, torch.zeros_like(shift))
    struck_cars = Moved(
        moved.velocity + car_change,
        moved.spin + car_turn,
        moved.shift + car_shift * DT,
        moved.twist + car_twist * (DT * rules.PUSH_TURN),
    )
    return struck_ball, struck_cars


def _rows(rotation: Tensor, car_arm: Tensor, ball_arm: Tensor, axis: Tensor) -> Tensor:
    """Returns rows ``[H + 1, 6 + 6 H, n]``: the ball, then the cars, each in its own axes."""
    hitters = car_arm.shape[1]
    own = torch.cat((axis, cross(ball_arm, axis))) * constant(BALL_SCALE, axis[0])  # [6, H + 1, n]
    against = axis[:, :hitters]
    lever = to_local(rotation, cross(car_arm, against))
    car = torch.cat((against, lever)) * constant([-scale for scale in CAR_SCALE], against[0])  # [6, H, n]
    none = torch.zeros_like(car[:, 0])
    blocks = []
    for row in range(hitters + 1):
        parts = [own[:, row]] + [car[:, row] if hitter == row else none for hitter in range(hitters)]
        blocks.append(torch.cat(parts))
    return torch.stack(blocks)


def _applied(rotation: Tensor, impulse: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Converts a scaled impulse ``[6 + 6 H, n]`` to changes of velocity and spin of ball and cars, world axes."""
    hitters = rotation.shape[2]
    own = impulse[:6] * constant(BALL_SCALE, impulse[0])
    car = impulse[6:].view(hitters, 6, -1).transpose(0, 1)
    car = car * constant(CAR_SCALE, car[0])
    return own[:3], own[3:], car[:3], to_world(rotation, car[3:])


class Meeting(NamedTuple):
    """Worlds in which cars may hit the ball: the cars, ``[..., C, n]``, and the ball, ``[..., n]``."""

    position: Tensor
    rotation: Tensor
    velocity: Tensor  # without the forces of this tick
    torque: Tensor
    gone: Tensor
    extra_hit: Tensor
    moved: Moved  # after all other contacts
    ball: tuple[Tensor, Tensor, Tensor]  # position, velocity, spin
    fallen: Tensor
    pull: Tensor
    plane: Plane
    bounced: Moved  # the ball if no car hits it


class BallHits(NamedTuple):
    """The entries of :class:`~rlstack.envs.rocket.solver.Met` that hits change."""

    cars: Moved
    ball: Moved
    ball_kick: Tensor
    hit: Tensor
    extra: Tensor


def hits(meeting: Meeting) -> BallHits:
    """Computes the hits of the cars of each world that are nearest to the ball."""
    ball = Ball(*meeting.ball)
    spot, fallen = ball.position, meeting.fallen
    near = reach(meeting.position, meeting.rotation, spot[:, None])
    gap = torch.where(meeting.gone > 0, rules.HEIGHT, near.gap)
    if len(gap) <= _HITTERS:
        hitters = None
    else:  # in the order of the cars, which determines the order of solving
        hitters = gap.topk(_HITTERS, dim=0, largest=False).indices.sort(0).values  # [H, n]

    def chosen(value: Tensor) -> Tensor:
        return value if hitters is None else value.gather(-2, hitters.expand(*value.shape[:-2], *hitters.shape))

    touch = Reach(chosen(gap), chosen(near.normal), chosen(near.arm))
    hit = touch.gap < rules.CONTACT_GAP
    rotation = chosen(meeting.rotation)
    before = Moved(*(chosen(value) for value in meeting.moved))
    struck_ball, struck_cars = strike(
        ball, fallen, meeting.pull, meeting.plane, rotation, before, chosen(meeting.torque), touch
    )
    fresh = hit & (chosen(meeting.extra_hit) == 0)
    velocity = chosen(meeting.velocity)
    extra = extra_speed(chosen(meeting.position), rotation[0], velocity, spot[:, None], fallen[:, None])
    where, kind = hit.any(0), gap.dtype

    def of_cars(old: Tensor, new: Tensor) -> Tensor:
        new = torch.where(where, new, chosen(old))
        return new if hitters is None else old.scatter(-2, hitters.expand(*old.shape[:-2], *hitters.shape), new)

    none = torch.zeros_like(gap)
    return BallHits(
        Moved(*(of_cars(old, new) for old, new in zip(meeting.moved, struck_cars))),
        Moved(*(torch.where(where, new, old) for old, new in zip(meeting.bounced, struck_ball))),
        torch.where(where, (extra * fresh).sum(1), 0.0),
        of_cars(none, hit.to(kind)),
        of_cars(none, fresh.to(kind)),
    )


def struck(scene: Scene, met: Met, worlds: Tensor, compute: Callable[[Meeting], BallHits] = hits) -> Met:
    """Returns ``met`` with the hits in the worlds of an index tensor ``[n]``.

    Args:
        compute: :func:`hits`, eager or compiled.
    """
    cars, ball = scene.cars, scene.ball

    def part(value: Tensor) -> Tensor:
        return value.index_select(-1, worlds)

    found = compute(
        Meeting(
            part(cars.position),
            part(cars.rotation),
            part(scene.motion.velocity),
            part(scene.motion.torque),
            part(cars.gone),
            part(cars.extra_hit),
            Moved(*(part(value) for value in met.cars)),
            (part(ball.position), part(ball.velocity), part(ball.spin)),
            part(scene.fallen),
            part(scene.pull),
            Plane(*(part(value) for value in scene.plane)),
            Moved(*(part(value) for value in met.ball)),
        )
    )

    def put_back(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(-1, worlds, new)

    return met._replace(
        cars=Moved(*map(put_back, met.cars, found.cars)),
        ball=Moved(*map(put_back, met.ball, found.ball)),
        ball_kick=put_back(met.ball_kick, found.ball_kick),
        hit=put_back(met.hit, found.hit),
        extra=put_back(met.extra, found.extra),
    )
