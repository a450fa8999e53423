"""The ball: its flight, its bounces off the field, and hits by cars."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .field import Field
from .rules import DT
from .solver import BALL_EFFECT, BALL_SCALE, CAR_EFFECT, CAR_SCALE, Met, Moved, Plane, Scene, relax, sideways
from .state import Ball
from .vectors import along, constant, cross, dot, length, pieces, to_local, to_world, unit


def fly(ball: Ball, field: Field) -> tuple[Tensor, Tensor, Plane, Moved]:
    """Moves the balls by a tick without cars; returns their entries of :class:`~rlstack.envs.rocket.solver.Scene`."""
    return fly_by(ball, *field.inside(ball.position))


def fly_by(ball: Ball, gap: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Plane, Moved]:
    """Computes :func:`fly` with the results of :meth:`~rlstack.envs.rocket.field.Field.inside`."""
    # A ball that is untouched since the kick-off does not move, and does not touch the floor.
    still = (torch.cat((ball.velocity, ball.spin)) == 0).all(0)
    fallen = ball.velocity * (1 - rules.BALL_DRAG) ** DT
    pull = constant((0.0, 0.0, -rules.GRAVITY * DT), fallen[0]) * ~still
    plane = Plane(torch.add(gap - rules.BALL_RADIUS, still, alpha=rules.HEIGHT), normal)

    # A bounce off the field.
    radius, pulled = rules.BALL_RADIUS, fallen + pull
    touches = plane.gap < rules.CONTACT_GAP
    approach, into = -dot(fallen, normal), dot(pulled, normal)
    back = rules.BALL_RESTITUTION * approach * (approach > rules.SOFT)
    push = (back - into).clamp_min(0.0) * touches
    slip = torch.addcmul(pulled, normal, into, value=-1).sub(cross(ball.spin, normal), alpha=radius)
    speed = length(slip).clamp_min(1.0e-6)
    hold = torch.minimum(rules.BALL_FRICTION * push, (2 / 7) * speed)
    along = slip * (hold / speed)
    spin = ball.spin.add(cross(normal, along), alpha=1 / (0.4 * radius))
    shift = normal * (plane.gap.clamp_max(0.0) * touches * -rules.PUSH)
    bounced = Moved(torch.addcmul(pulled, normal, push) - along, spin, shift, torch.zeros_like(shift))
    return fallen, pull, plane, bounced


# -- cars against the ball ---------------------------------------------------------------------------------------------


_HIT_CURVE = pieces(rules.HIT_CURVE)
_HITTERS = 2  # number of nearest cars of a world that can hit the ball in the same tick


def reach(position: Tensor, rotation: Tensor, ball: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finds the point of a car's body, a box with round edges, nearest to the ball's centre.

    Args:
        position, rotation: the cars', ``[3, ...]`` and ``[3, 3, ...]``.
        ball: position of the ball, broadcastable.

    Returns:
        The gap ``[...]``; the normal towards the ball, and the arm from the car's origin to the point of contact.
    """
    like = position[0]
    half = constant([side / 2 - rules.CORE_MARGIN for side in rules.HITBOX], like)
    centre = constant(rules.HITBOX_CENTRE, like)
    away = to_local(rotation, ball - position) - centre
    core = torch.minimum(torch.maximum(away, -half), half)
    out = away - core
    distance = length(out)
    normal = out / distance.clamp_min(1.0e-6)
    normal = torch.where(distance < 1.0e-6, constant((0.0, 0.0, 1.0), like), normal)
    arm = (core + centre).add(normal, alpha=rules.EDGE_RADIUS)
    normal, arm = to_world(rotation[:, :, None], torch.stack((normal, arm), 1)).unbind(1)
    return distance - (rules.EDGE_RADIUS + rules.BALL_RADIUS), normal, arm


def extra_speed(position: Tensor, forward: Tensor, velocity: Tensor, ball: Tensor, ball_velocity: Tensor) -> Tensor:
    """Returns the velocity that a hit gives to the ball in addition to the contact, ``[3, ...]``.

    Args:
        position, forward: the cars'.
        velocity: velocity of the cars, without the forces of this tick.
        ball, ball_velocity: the ball's position, and velocity after drag, broadcastable.
    """
    heading = unit((ball - position) * constant((1.0, 1.0, rules.HIT_UP), position[0]))
    heading = unit(torch.addcmul(heading, forward, dot(heading, forward), value=-rules.HIT_FORWARD))
    difference = ball_velocity - velocity
    speed = length(difference).clamp_max(rules.HIT_SPEED_MOST)
    return heading * (speed * along(_HIT_CURVE, speed)[0])


def _rows(rotation: Tensor, arm: Tensor, axes: Tensor) -> Tensor:
    """Returns rows ``[2 (H + 1), 6 + 6 H, n]`` along axes ``[3, 2, H + 1, n]``: the ball, then the cars."""
    hitters = arm.shape[1]
    like = axes[0]
    own = torch.cat((axes, cross(axes[:, 0, None], axes) * -rules.BALL_RADIUS)) * constant(BALL_SCALE, like)
    against = axes[:, :, :hitters]
    lever = to_local(rotation[:, :, None], cross(arm[:, None], against))
    car = torch.cat((against, lever)) * constant([-scale for scale in CAR_SCALE], like)
    mine = [float(row == hitter) for row in range(hitters + 1) for hitter in range(hitters)]
    mine_only = constant(mine, like, 2).unflatten(0, (hitters + 1, hitters))
    blocks = mine_only * car.permute(1, 2, 0, 3)[:, None]  # [2, H + 1, H, 6, n]
    return torch.cat((own.permute(1, 2, 0, 3), blocks.flatten(2, 3)), 2).flatten(0, 1)


class Meeting(NamedTuple):
    """Worlds in which cars may hit the ball: the cars, ``[..., C, n]``, and the ball, ``[..., n]``."""

    position: Tensor
    rotation: Tensor
    velocity: Tensor  # without the forces of this tick
    torque: Tensor
    gone: Tensor
    extra_hit: Tensor
    moved: tuple[Tensor, Tensor]  # velocity and spin after all other contacts
    ball: tuple[Tensor, Tensor, Tensor]  # position, velocity, spin
    fallen: Tensor
    pull: Tensor
    plane: Plane
    bounced: Moved  # the ball if no car hits it


class BallHits(NamedTuple):
    """What hits change."""

    cars: Tensor  # [14, C, n] changes of velocity, spin, shift and twist; flags: hit, with extra speed
    ball: Moved
    kick: Tensor  # [3, n]


def hits(meeting: Meeting) -> BallHits:
    """Computes the hits of the cars of each world that are nearest to the ball."""
    ball = Ball(*meeting.ball)
    spot, fallen = ball.position[:, None], meeting.fallen[:, None]
    gap, *contact = reach(meeting.position, meeting.rotation, spot)
    gap = torch.where(meeting.gone > 0, rules.HEIGHT, gap)
    values = (*contact, meeting.position, meeting.velocity, meeting.torque, *meeting.moved)
    rotation, extra_hit, hitters = meeting.rotation, meeting.extra_hit, None
    if len(gap) > _HITTERS:  # in the order of the cars, which determines the order of solving
        hitters = gap.topk(_HITTERS, dim=0, largest=False).indices.sort(0).values  # [H, n]
        rows = torch.cat((gap[None], extra_hit[None], rotation.flatten(0, 1), *values))
        rows = rows.gather(1, hitters.expand(len(rows), *hitters.shape))
        gap, extra_hit, rotation, values = rows[0], rows[1], rows[2:11].unflatten(0, (3, 3)), rows[11:].split(3)
    towards, arm, position, velocity, torque, velocity_now, spin = values
    hit, count = gap < rules.CONTACT_GAP, len(gap)

    # Contacts of the ball with H cars and the field, a last, immovable one. Friction ignores a driver's torque.
    plane, pulled = meeting.plane, meeting.fallen + meeting.pull
    gaps = torch.cat((gap, plane.gap[None]))
    normal = torch.cat((towards, plane.normal[:, None]), 1)  # [3, H + 1, n], towards the ball
    spins = torch.stack((spin, spin.sub(torque, alpha=DT)), 1)
    moving = velocity_now[:, None] + cross(spins, arm[:, None])
    moving = torch.cat((moving, torch.zeros_like(moving[:, :, :1])), 2)
    slip = torch.add(pulled[:, None], cross(ball.spin[:, None], normal), alpha=-rules.BALL_RADIUS)[:, None] - moving
    axes = torch.stack((normal, sideways(slip[:, 0], normal)), 1)  # [3, 2, H + 1, n]
    approach = -dot(meeting.fallen, plane.normal)
    bounce = rules.BALL_RESTITUTION * approach * (approach > rules.SOFT)
    wanted = -dot(slip, axes).flatten(0, 1)
    wanted = torch.cat((wanted[:count], wanted[count : count + 1] + bounce, wanted[count + 1 :]))
    rows = _rows(rotation, arm, axes)
    friction = [*[rules.HIT_FRICTION] * count, rules.BALL_FRICTION]
    impulses = relax(rows, wanted, gaps.clamp_max(0.0) * (-rules.PUSH / DT), gaps < rules.CONTACT_GAP, friction)

    change = (rows[:, :, None] * impulses[:, None]).sum(0)  # [6 + 6 H, 2, n]
    effect = constant((*BALL_EFFECT, *CAR_EFFECT * count), approach).unflatten(0, (-1, 2))
    change = (change * effect).unflatten(0, (-1, 2, 3))
    line, turn = change.permute(1, 3, 2, 0, 4).unbind(0)  # [2, 3, 1 + H, n]: of the motion, and out of the penetration
    moved = Moved(pulled + line[0, :, 0], ball.spin + turn[0, :, 0], line[1, :, 0], turn[1, :, 0])
    turn = to_world(rotation[:, :, None], turn[:, :, 1:].transpose(0, 1))

    fresh, where = hit & (extra_hit == 0), hit.any(0)
    cars = torch.cat((line[0, :, 1:], turn[:, 0], line[1, :, 1:], turn[:, 1], torch.stack((hit, fresh))))
    if hitters is not None:
        none = cars.new_zeros(len(cars), *meeting.gone.shape)
        cars = none.scatter_(1, hitters.expand(len(cars), *hitters.shape), cars)
    extra = extra_speed(position, rotation[0], velocity, spot, fallen)
    after = Moved(*(torch.where(where, new, old) for old, new in zip(meeting.bounced, moved)))
    return BallHits(cars, after, (extra * fresh).sum(1))


def struck(scene: Scene, met: Met, worlds: Tensor | None = None, compute: Callable[[Meeting], BallHits] = hits) -> Met:
    """Returns ``met`` with the hits in the worlds of an index tensor ``[n]``, or in all of them.

    Args:
        compute: :func:`hits`, eager or compiled.
    """
    cars, ball = scene.cars, scene.ball

    def part(value: Tensor) -> Tensor:
        return value if worlds is None else value.index_select(-1, worlds)

    own = (cars.position, cars.rotation, scene.motion.velocity, scene.motion.torque, cars.gone, cars.extra_hit)
    moved, balls = (met.cars.velocity, met.cars.spin), (ball.position, ball.velocity, ball.spin)
    parts = *map(part, own), tuple(map(part, moved)), tuple(map(part, balls)), part(scene.fallen), part(scene.pull)
    after = compute(Meeting(*parts, Plane(*map(part, scene.plane)), Moved(*map(part, met.ball))))

    def put_back(old: Tensor, new: Tensor) -> Tensor:
        return new if worlds is None else old.index_copy(-1, worlds, new)

    def added(old: Tensor, change: Tensor) -> Tensor:
        return old + change if worlds is None else old.index_add(-1, worlds, change)

    return met._replace(
        cars=Moved(*map(added, met.cars, after.cars[:12].split(3))),
        ball=Moved(*map(put_back, met.ball, after.ball)),
        ball_kick=put_back(met.ball_kick, after.kick),
        hit=put_back(met.hit, after.cars[12]),
        extra=put_back(met.extra, after.cars[13]),
    )
