"""The motion of a car in a tick before contacts: wheels, engine, jumps, flips and boost."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .field import WheelGround
from .rules import DT
from .state import Cars
from .vectors import along, constant, cross, dot, each_with, in_parts, length, pieces, to_local, to_world, unit, without

_SPEED_CURVES = pieces(rules.ENGINE_CURVE, rules.STEERING_CURVE, rules.SLIDING_CURVE)
_AIR_TORQUE = tuple(rules.AIR_SCALE * sign * torque for sign, torque in zip((-1, -1, 1), rules.AIR_TORQUE))
_AIR_DAMPING = tuple(rules.AIR_SCALE * damping for damping in rules.AIR_DAMPING)
_STICK_DAMPING = (0.0, *[-damping for damping in _AIR_DAMPING[1:]])
_FLIP_PHASES = (rules.FLIP_DAMPING_FROM, rules.FLIP_DAMPING_ALWAYS, rules.FLIP_TICKS)
_LEANING = (rules.AUTO_ROLL_TORQUE, -rules.AUTO_ROLL_TORQUE)
_UPRIGHT = (-rules.AUTO_ROLL_TORQUE, rules.AUTO_ROLL_TORQUE)
_SLOPE_CURVE = pieces(rules.SLOPE_GRIP_CURVE)
_WHEELS = (*rules.WHEEL_X, *rules.WHEEL_Y, *[rules.WHEEL_Z] * 4)
_LEVEL = (*_WHEELS[:8], *[0.0] * 4)
_LENGTHS = tuple(rest + radius for rest, radius in zip(rules.SUSPENSION_REST, rules.WHEEL_RADIUS))
_RAYS = tuple(length + rules.SUSPENSION_TRAVEL - rules.SUSPENSION_SHORTER for length in _LENGTHS)
_SPRINGS = tuple(force / rules.CAR_MASS for force in rules.SUSPENSION_FORCE)
_GYRATION = tuple(inertia / rules.CAR_MASS for inertia in rules.CAR_INERTIA)
_STEER = (
    (*[0.0] * 4, *(0.0, 0.0, 1.0, 1.0), *[0.0] * 4),
    (*(-1.0, -1.0, 0.0, 0.0), *[0.0] * 8),
    (*[0.0] * 4, *(1.0, 1.0, 0.0, 0.0), *[0.0] * 4),
)
"""Axles of the four wheels: without steering, and what its sine and cosine add."""


class Motion(NamedTuple):
    """The motion of cars before contacts, ``[3, ...]`` in world axes.

    Attributes:
        velocity, spin: values without the forces of this tick.
        force, torque: the forces of this tick, as accelerations.
    """

    velocity: Tensor
    spin: Tensor
    force: Tensor
    torque: Tensor


class Control(NamedTuple):
    """A driver's controls, ``[...]`` each; the last three are flags."""

    throttle: Tensor
    steer: Tensor
    pitch: Tensor
    yaw: Tensor
    roll: Tensor
    jump: Tensor
    boost: Tensor
    handbrake: Tensor


class Impulse(NamedTuple):
    """The impulse of the wheels in a tick, in the car's axes."""

    push: Tensor  # [3, ...] change of velocity
    turn: Tensor  # [3, ...] change of spin
    touches: Tensor  # [4, ...] bool
    contact: Tensor  # [4, ...] the same as a flag
    standing: Tensor  # [...] wheels in contact
    side_slip: Tensor  # [4, ...] velocity at the hard points, along the axles
    long_slip: Tensor  # [4, ...] and across them


def roll_on(cars: Cars, ground: WheelGround, velocity: Tensor, spin: Tensor) -> Impulse:
    """Computes the impulse of suspension and tyres, with engine, brake and steering of the previous tick.

    Args:
        velocity, spin: ``[3, ...]`` in the car's axes.
    """
    like = cars.boost
    wheel = constant(_WHEELS, like).unflatten(0, (3, 4))
    touches = ground.distance <= constant(_RAYS, like)
    contact = touches.to(like.dtype)
    foot = wheel[2] - ground.distance.clamp_max(60.0)
    level = constant(_LEVEL, like).unflatten(0, (3, 4))
    feet = torch.cat((wheel[:2].expand(-1, *foot.shape), foot[None]))
    velocity, spin = velocity[:, None], spin[:, None]
    moving, hard = velocity + cross(spin, feet), velocity + cross(spin, wheel)  # at the feet, at the hard points

    # The axle, in the plane of the car, and across it; the axle within the ground's plane, and where the wheel rolls.
    steer = [constant(row, like).unflatten(0, (3, 4)) for row in _STEER]
    axle = torch.addcmul(torch.addcmul(steer[0], steer[1], cars.steering.sin()), steer[2], cars.steering.cos())
    normal = ground.normal
    side_slip, long_slip = each_with(lambda axis, speed: dot(speed, axis).abs(), (axle, cross(axle, normal)), hard)
    flat = unit(torch.addcmul(axle, normal, dot(axle, normal), value=-1))
    axes = flat, cross(flat, normal), normal.expand_as(flat)
    sideways, speed, approach = each_with(dot, axes, moving)

    def resistance(direction: Tensor, point: Tensor) -> Tensor:
        """Returns the inverse mass for an impulse in a direction at a point, relative to the car's."""
        lever = cross(point, direction)
        return dot(lever * lever, constant([1 / value for value in _GYRATION], lever[0])) + 1

    side_weight, weight = each_with(resistance, axes[::2], feet)
    side = cars.side_grip * sideways * (-0.2 * (rules.CAR_MASS / 3) * DT) / side_weight
    brake = cars.brake * (50.0 / 3)
    braking = (speed * (-rules.BRAKE_GRIP / 3)).clamp(-brake, brake)
    forth = torch.where(cars.engine != 0, cars.engine, braking) * cars.long_grip * DT
    # Along the normal: the suspension, and what stops one that is pressed too far.
    cosine, short = normal[2], constant(_LENGTHS, like) - ground.distance
    compressed = short.clamp(-rules.SUSPENSION_TRAVEL, rules.SUSPENSION_TRAVEL)
    gentle = cosine >= 0.1
    inverse = torch.where(gentle, cosine, constant((0.1,), like)).reciprocal()
    closing = approach * inverse * gentle
    force = (compressed * inverse * rules.STIFFNESS).sub(closing, alpha=rules.DAMPING_EXTENSION)
    force = force.sub(closing.clamp_max(0.0), alpha=rules.DAMPING_COMPRESSION - rules.DAMPING_EXTENSION)
    force = (force * constant(_SPRINGS, like)).clamp_min(0.0)
    deep = short - rules.SUSPENSION_SHORTER
    wanted = deep * ((cars.age >= 1) * (0.1 * rules.TICKS_PER_SECOND) + 0.1 * rules.TICKS_PER_SECOND)
    stop = (wanted - approach).clamp_min(0.0) / (4 * weight) * (deep > 0)
    load = stop.add(force, alpha=DT)

    # Tyres act at the height of the car's origin.
    level = level.expand_as(feet)
    if in_parts(like):
        pushes = [axis * (size * contact) for axis, size in zip(axes, (side, forth, load))]
        turns = [cross(arm, push) for arm, push in zip((level, level, feet), pushes)]
        push, turn = pushes[0] + pushes[1] + pushes[2], turns[0] + turns[1] + turns[2]
    else:
        pushed = torch.stack(axes, 1) * (torch.stack((side, forth, load)) * contact)
        push, turn = pushed.sum(1), cross(torch.stack((level, level, feet), 1), pushed).sum(1)
    turn_rate = turn.sum(1) / constant(_GYRATION, like)
    return Impulse(push.sum(1), turn_rate, touches, contact, contact.sum(0), side_slip, long_slip)


def tell_wheels(cars: Cars, control: Control, wheels: Impulse, slope: Tensor, facts: Facts) -> dict[str, Tensor]:
    """Returns the fields of ``cars`` that the wheels use in the next tick: engine, brake, steering, grip.

    Args:
        slope: ``[4, ...]`` of :class:`WheelGround`.
    """
    like, throttle = cars.boost, facts.throttle

    def number(value: float) -> Tensor:
        return constant((value,), like[0])

    sliding = facts.flags.sliding
    change = torch.where(sliding, number(rules.HANDBRAKE_RISE * DT), number(-rules.HANDBRAKE_FALL * DT))
    handbrake = (cars.handbrake + change).clamp(0.0, 1.0)
    pressed = throttle.abs() > rules.DEAD_ZONE
    against = pressed & facts.moving & (throttle * facts.speed < 0)
    coasting = torch.where(facts.moving, number(rules.COASTING), number(1.0))
    brake = torch.where(pressed, against, coasting) * rules.BRAKE
    pull, turn, sliding_turn = along(_SPEED_CURVES, facts.fast)
    engine = throttle * pull * torch.where(facts.flags.grounded, number(rules.ENGINE), number(0.25 * rules.ENGINE))
    side, forth = wheels.side_slip, wheels.long_slip
    share = side / (side + forth).clamp_min(1.0e-9) * (side > 5.0)
    side_grip = torch.rsub(share, 1, alpha=0.8) * torch.rsub(handbrake, 1, alpha=0.9)
    long_grip = 1 - handbrake * torch.rsub(share, 0.5, alpha=0.4)
    sticks = torch.where(facts.driven, constant((1.0,), handbrake), along(_SLOPE_CURVE, slope)[0])
    return {
        "engine": engine * (sliding | without(pressed, against)),
        "brake": brake.masked_fill(sliding, 0.0),
        "steering": torch.lerp(turn, sliding_turn, handbrake) * control.steer,
        "handbrake": handbrake,
        "side_grip": torch.where(wheels.touches, side_grip * sticks, cars.side_grip),
        "long_grip": torch.where(wheels.touches, long_grip * sticks, cars.long_grip),
        "wheels": wheels.contact,
    }


class Facts(NamedTuple):
    """Quantities of wheels and motion that maneuvers depend on."""

    speed: Tensor  # [...] forward
    fast: Tensor  # [...] its absolute value
    flags: Flags
    some_wheels: Tensor  # [...] bool: one or more are in contact
    all_wheels: Tensor  # [...] bool
    throttle: Tensor  # [...] full while boosting
    up: Tensor  # [3, ...] mean normal under the wheels, or of the last contact of the body
    spin: Tensor  # [3, ...] in the car's axes
    driven: Tensor  # [...] bool: the throttle is pressed
    moving: Tensor  # [...] bool


class Flags(NamedTuple):
    """Flags of cars and controls before a tick, ``[...]`` bool. Names with ``late`` and ``past`` are of ticks."""

    jump: Tensor
    boost: Tensor
    sliding: Tensor  # with the handbrake
    held: Tensor
    jumping: Tensor
    jumped: Tensor
    double_jumped: Tensor
    flipped: Tensor
    flipping: Tensor
    touching: Tensor
    auto_flip: Tensor
    boosting: Tensor
    tank: Tensor
    past_shortest: Tensor  # boost
    past_early: Tensor  # of a jump
    past_reset: Tensor
    past_longest: Tensor
    past_flip: Tensor
    past_lock: Tensor  # of the pitch after a flip
    level: Tensor  # touching the floor, or something as flat
    grounded: Tensor
    pressed: Tensor  # jump has just been


_LIMITS = (
    *[0.0] * 13,
    *(rules.BOOST_SHORTEST - 0.5, rules.JUMP_EARLY - 0.5, rules.JUMP_RESET - 0.5, rules.JUMP_LONGEST - 0.5),
    *(rules.FLIP_TICKS - 0.5, rules.FLIP_TICKS + rules.FLIP_LOCK - 0.5, rules.AUTO_FLIP_SLOPE, 2.5),
)
"""Values above which all of :class:`Flags` but the last are set; ticks are whole numbers."""


def _flags(cars: Cars, control: Control, standing: Tensor) -> Flags:
    own = (cars.held, cars.jumping, cars.jumped, cars.double_jumped, cars.flipped, cars.flipping, cars.touching)
    tanks = (cars.auto_flip, cars.boosting, cars.boost, cars.boosting)
    ticks = (*[cars.jump_ticks] * 3, *[cars.flip_ticks] * 2)
    numbers = (control.jump, control.boost, control.handbrake, *own, *tanks, *ticks, cars.touch_normal[2], standing)
    known = torch.stack(numbers) > constant(_LIMITS, standing)
    return Flags(*known.unbind(0), without(known[0], known[3]))  # type: ignore[call-arg]


_FLIP_GAIN = (rules.FLIP_SPEED, rules.FLIP_SPEED * 16 / 15)
_FLIP_GAIN_PER_SPEED = (rules.FLIP_SPEED * 0.9 / rules.CAR_TOP_SPEED, rules.FLIP_SPEED * 1.6 / rules.CAR_TOP_SPEED)
"""Of flips to the side and backwards: the change of speed, and what the car's own speed adds to it."""


def maneuver(cars: Cars, control: Control, facts: Facts) -> tuple[dict[str, Tensor], Motion]:
    """Applies jumps, flips, air control, auto-flip, auto-roll and boost in order.

    Returns:
        Changes of ``cars``, and those of the motion: immediate ones of velocity and spin, force and torque.
    """
    like, flags = cars.boost, facts.flags
    forward, _, up = cars.rotation.unbind(0)

    # The torque of a flip or of the sticks. A stick held against the flip's pitch cancels it.
    flipping = without(without(flags.flipping, flags.grounded), flags.past_flip)
    cancels = cars.flip_axis[1] * control.pitch > 0
    share = torch.addcmul(constant((1.0, 1.0), like), constant((0.0, -1.0), like), control.pitch.abs() * cancels)
    flip = cars.flip_axis * share * constant((rules.FLIP_ROLL, rules.FLIP_PITCH), like) * flipping
    stalled = (cars.flip_axis == 0).all(0)
    free = without(without((stalled | cancels) >= flipping, facts.some_wheels), flags.auto_flip)
    locked = flipping | without(flags.flipped, flags.past_lock)
    sticks = torch.stack((control.roll, control.pitch.masked_fill(locked, 0.0), control.yaw))
    damping = facts.spin * torch.addcmul(constant(_AIR_DAMPING, like), constant(_STICK_DAMPING, like), sticks.abs())
    local = (sticks * constant(_AIR_TORQUE, like) - damping) * free
    local = torch.cat((local[:2] + flip, local[2:])).masked_fill(flags.grounded, 0.0)
    torque = to_world(cars.rotation, local)

    # A jump.
    lands = without(flags.grounded, flags.jumping)
    landed = without(lands, without(flags.jumped, flags.past_reset))
    holds = without(flags.jump, flags.past_longest) >= flags.past_early
    jump_start = lands & flags.pressed
    jumping = (flags.jumping & holds) | jump_start
    jumped = jumping | without(flags.jumped, landed)
    jump_ticks = cars.jump_ticks.masked_fill(jump_start, 0.0)
    early, late = (constant((rules.JUMP_ACCELERATION * part,), like[0]) for part in (rules.JUMP_EARLY_SHARE, 1.0))
    jump_force = torch.where(jump_ticks < rules.JUMP_EARLY, early, late) * jumping
    jump_ticks = jump_ticks + jumped

    # A car on its roof turns over when jump is pressed.
    roll = torch.atan2(-cars.rotation[1, 2], cars.rotation[2, 2])
    tilt = roll.abs()
    auto_start = flags.pressed & flags.touching & flags.level & (tilt > rules.AUTO_FLIP_ROLL)
    ticks = (tilt * (rules.AUTO_FLIP_TICKS / math.pi)).ceil() + 1
    auto_ticks = torch.where(auto_start, ticks, cars.auto_flip)
    auto_side = torch.where(auto_start, roll.sign(), cars.auto_side)
    turning = auto_ticks > 1

    # Jump pressed off the ground: a double jump, or a flip about an axis (forward, right).
    can = without(without(flags.pressed, turning), flags.grounded)
    air_ticks = (cars.air_ticks + 1) * without(without(jumped, jumping), flags.grounded)
    can = without(can & (air_ticks <= rules.SECOND_JUMP_LATEST), flags.double_jumped | flags.flipped)
    sticks = torch.stack((control.yaw + control.roll, control.pitch))
    starts = can & (control.pitch.abs() + control.yaw.abs() + control.roll.abs() >= rules.FLIP_INPUT)
    leaps = without(can, starts)
    axis = -sticks * (sticks.abs() >= 0.1)
    axis = axis / length(axis).clamp_min(1.0e-6)
    flipped = without(flags.flipped | starts, flags.grounded)
    flip_ticks = (cars.flip_ticks.masked_fill(starts, 0.0) + flipped).masked_fill(flags.grounded, 0.0)
    flipping = flipped & (flipping | starts)
    gain = torch.addcmul(constant(_FLIP_GAIN, like), constant(_FLIP_GAIN_PER_SPEED, like), facts.fast)
    backward = (axis[1] >= 0) != (facts.speed > -100.0)  # against the motion; of a slow car, to the rear
    gained = backward | constant((True, False), like, dtype=torch.bool)
    side, forth = (axis * torch.where(gained, gain, constant((rules.FLIP_SPEED,), like))).unbind(0)
    ahead = unit(forward * constant((1.0, 1.0, 0.0), like))
    kick = torch.addcmul(ahead * forth, cross(ahead, constant((0.0, 0.0, 1.0), like)), side) * starts

    speed = (jump_start | leaps) * constant((rules.JUMP_SPEED,), like[0])
    kick = torch.addcmul(kick, up, speed.add(auto_start, alpha=-rules.AUTO_FLIP_SPEED))
    falls = cars.velocity[2] + kick[2]
    damped, later, over = (flip_ticks >= constant(_FLIP_PHASES, like)).unbind(0)
    slowed = without(flipping & damped, over) & ((falls < 0) >= later)  # early in a flip, or while it falls
    kick = torch.addcmul(kick, constant((0.0, 0.0, rules.FLIP_DAMPING - 1), like), falls * slowed)
    twist = forward * (auto_side * turning * (rules.AUTO_FLIP_SPIN * DT))

    # A car that touches with its body or some wheels turns upright while the throttle is pressed.
    acts = facts.driven & (without(facts.some_wheels, facts.all_wheels) | flags.touching)
    axes = cars.rotation[:2]
    across = cross(facts.up, axes[0])
    near = (axes * torch.stack((cross(across, facts.up), across))).sum(1).clamp(0.0, 1.0)
    leans = (axes * facts.up).sum(1) >= 0
    pitch, roll = (torch.where(leans, constant(_LEANING, like), constant(_UPRIGHT, like)) * (1 - near) * acts).unbind(0)
    torque = torque + torch.addcmul(axes[0] * roll, axes[1], pitch)

    on = flags.tank & (flags.boost | without(flags.boosting, flags.past_shortest))
    boost = cars.boost.add(on, alpha=-rules.BOOST_USE * DT).clamp_min(0.0)
    ground, air = (constant((value,), like[0]) for value in (rules.BOOST_GROUND, rules.BOOST_AIR))
    boosted = torch.where(flags.grounded, ground, air) * on
    # Gravity, and what presses a car to the surface under its wheels or under its body.
    grip = 0.5 + (facts.driven | facts.moving) * (1 - facts.up[2].abs())
    press = (grip * facts.some_wheels * -rules.GRAVITY).add(acts, alpha=-rules.AUTO_ROLL_FORCE)
    thrust = boosted.add(control.throttle.masked_fill(flags.grounded, 0.0), alpha=rules.AIR_THROTTLE)
    force = torch.addcmul(torch.addcmul(up * jump_force, forward, thrust), facts.up, press)
    force = force - constant((0.0, 0.0, rules.GRAVITY), like)
    double_jumped = without(flags.double_jumped | leaps, flags.grounded)
    numbers = torch.stack((flags.jump, jumping, jumped, double_jumped, flipped, flipping)).to(like.dtype)
    names = ("held", "jumping", "jumped", "double_jumped", "flipped", "flipping")
    changes = {
        **dict(zip(names, numbers.unbind(0))),
        **{"jump_ticks": jump_ticks, "flip_ticks": flip_ticks, "air_ticks": air_ticks},
        **{
            "flip_axis": torch.where(starts, axis, cars.flip_axis),
            "boost": boost,
            "boosting": (cars.boosting + 1) * on,
        },
        **{"auto_flip": (auto_ticks - 1).clamp_min(0.0), "auto_side": auto_side},
    }
    return changes, Motion(kick, twist, force, torque)


def drive(cars: Cars, controls: Tensor, ground: WheelGround) -> tuple[Cars, Motion]:
    """Computes wheels and maneuvers; position, velocity, spin and rotation do not change.

    Args:
        controls: ``[8, ...]`` in the order of :class:`~rlstack.envs.rocket.driving.Control`.
    """
    control = Control(*controls.unbind(0))
    rotation = cars.rotation
    velocity, spin = to_local(rotation[:, :, None], torch.stack((cars.velocity, cars.spin), 1)).unbind(1)
    wheels = roll_on(cars, ground, velocity, spin)
    flags = _flags(cars, control, wheels.standing)
    throttle = torch.where(flags.boost & flags.tank, constant((1.0,), cars.boost[0]), control.throttle)
    some_wheels, all_wheels = (wheels.standing > constant((0.5, 3.5), wheels.standing)).unbind(0)
    speed = velocity[0]
    local_up = (ground.normal * wheels.contact).sum(1)
    up = torch.where(some_wheels, unit(to_world(rotation, local_up)), cars.touch_normal)
    fast = speed.abs()
    moving = fast > rules.STOPPING_SPEED
    facts = Facts(speed, fast, flags, some_wheels, all_wheels, throttle, up, spin, throttle != 0, moving)
    rolling = tell_wheels(cars, control, wheels, ground.slope, facts)
    flying, change = maneuver(cars, control, facts)
    push, turn = to_world(rotation[:, :, None], torch.stack((wheels.push, wheels.turn), 1)).unbind(1)
    motion = Motion(cars.velocity + change.velocity + push, cars.spin + change.spin + turn, *change[2:])
    return cars.replace(**rolling, **flying), motion
