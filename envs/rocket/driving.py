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
from .vectors import along, constant, cross, dot, pieces, to_local, to_world, unit

_SPEED_CURVES = pieces(rules.ENGINE_CURVE, rules.STEERING_CURVE, rules.SLIDING_CURVE)
_SLOPE_CURVE = pieces(rules.SLOPE_GRIP_CURVE)


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
    contact: Tensor  # [4, ...] flag
    standing: Tensor  # [...] wheels in contact
    side_slip: Tensor  # [4, ...] velocity at the hard points, along the axles
    long_slip: Tensor  # [4, ...] and across them


def ray_length(like: Tensor) -> Tensor:
    """Returns the lengths of the wheels' rays, ``[4, 1, ...]``."""
    sizes = zip(rules.SUSPENSION_REST, rules.WHEEL_RADIUS)
    reach = rules.SUSPENSION_TRAVEL - rules.SUSPENSION_SHORTER
    return constant([rest + radius + reach for rest, radius in sizes], like)


def roll_on(cars: Cars, ground: WheelGround, velocity: Tensor, spin: Tensor) -> Impulse:
    """Computes the impulse of suspension and tyres, with engine, brake and steering of the previous tick.

    Args:
        velocity, spin: ``[3, ...]`` in the car's axes.
    """
    like = cars.boost
    x, y = constant(rules.WHEEL_X, like), constant(rules.WHEEL_Y, like)
    vx, vy, vz = velocity.unbind(0)
    wx, wy, wz = spin.unbind(0)
    nx, ny, nz = ground.normal.unbind(0)
    contact = (ground.distance <= ray_length(like)).to(like.dtype)
    z = rules.WHEEL_Z - ground.distance.clamp_max(60.0)
    along_x, along_y = vx - wz * y, vy + wz * x
    cx, cy, cz = along_x + wy * z, along_y - wx * z, vz + wx * y - wy * x
    approach = cx * nx + cy * ny + cz * nz
    load = contact * (_suspension(ground.distance, approach, nz) * DT + _pushed_back(cars, ground, approach, z))

    front = constant((1.0, 1.0, 0.0, 0.0), like)
    ax, ay = -cars.steering.sin() * front, 1 + (cars.steering.cos() - 1) * front
    # Velocities at the hard points along the axles and across.
    hx, hy = along_x + wy * rules.WHEEL_Z, along_y - wx * rules.WHEEL_Z
    slips = (hx * ax + hy * ay).abs(), (nz * (hx * ay - hy * ax) + cz * (ax * ny - ay * nx)).abs()
    # The axle within the ground's plane, and the direction that the wheel rolls in.
    lift = ax * nx + ay * ny
    px, py, pz = ax - lift * nx, ay - lift * ny, -lift * nz
    scale = (px * px + py * py + pz * pz).clamp_min(1.0e-12).rsqrt()
    px, py, pz = px * scale, py * scale, pz * scale
    fx, fy, fz = py * nz - pz * ny, pz * nx - px * nz, px * ny - py * nx
    sideways, speed = cx * px + cy * py + cz * pz, cx * fx + cy * fy + cz * fz
    hold = -0.2 * (rules.CAR_MASS / 3) * DT
    side = contact * (hold * cars.side_grip * sideways / _resistance((px, py, pz), (x, y, z)))
    brake = cars.brake * 50.0
    braking = (rules.BRAKE_GRIP * speed).clamp(-brake, brake) * (rules.CAR_MASS / 3)
    engine = torch.where(cars.engine != 0, cars.engine * rules.CAR_MASS, -braking)
    forth = contact * (engine * DT * cars.long_grip)

    tx, ty, tz = side * px + forth * fx, side * py + forth * fy, side * pz + forth * fz
    lx, ly, lz = load * nx, load * ny, load * nz
    sx, sy, sz = tx + lx, ty + ly, tz + lz
    push = torch.stack((sx.sum(0), sy.sum(0), sz.sum(0))) / rules.CAR_MASS
    # Tyres act at the height of the car's origin.
    turn = ((y * sz - z * ly).sum(0), (z * lx - x * sz).sum(0), (x * sy - y * sx).sum(0))
    turn_rate = torch.stack(turn) / constant(rules.CAR_INERTIA, like)
    return Impulse(push, turn_rate, contact, contact.sum(0), *slips)


def _suspension(distance: Tensor, approach: Tensor, cosine: Tensor) -> Tensor:
    """Returns the force ``[4, ...]`` along the normal."""
    like = distance[0]
    rest, radius = constant(rules.SUSPENSION_REST, like), constant(rules.WHEEL_RADIUS, like)
    compressed = (rest + radius - distance).clamp(-rules.SUSPENSION_TRAVEL, rules.SUSPENSION_TRAVEL)
    steep = cosine < 0.1
    inverse = torch.where(steep, 10.0, 1 / cosine)
    speed = torch.where(steep, 0.0, approach * inverse)
    damping = torch.where(speed < 0, rules.DAMPING_COMPRESSION, rules.DAMPING_EXTENSION)
    force = compressed * rules.STIFFNESS * inverse - damping * speed
    return (force * constant(rules.SUSPENSION_FORCE, like)).clamp_min(0.0)


def _pushed_back(cars: Cars, ground: WheelGround, approach: Tensor, z: Tensor) -> Tensor:
    """Returns the impulse ``[4, ...]`` along the normal of a wheel that is pressed into the car."""
    like = cars.boost
    x, y = constant(rules.WHEEL_X, like), constant(rules.WHEEL_Y, like)
    rest, radius = constant(rules.SUSPENSION_REST, like), constant(rules.WHEEL_RADIUS, like)
    deep = rest + radius - rules.SUSPENSION_SHORTER - ground.distance
    wanted = torch.where(cars.age < 1, 0.1, 0.2) * rules.TICKS_PER_SECOND
    impulse = (wanted * deep - approach).clamp_min(0.0) / (4 * _resistance(tuple(ground.normal.unbind(0)), (x, y, z)))
    return torch.where(deep > 0, impulse, 0.0)


def _resistance(direction: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
    """Returns the effective inverse mass for an impulse in a direction at a point."""
    (dx, dy, dz), (x, y, z) = direction, point
    a, b, c = y * dz - z * dy, z * dx - x * dz, x * dy - y * dx
    ix, iy, iz = rules.CAR_INERTIA
    return a * a * (1 / ix) + b * b * (1 / iy) + c * c * (1 / iz) + 1 / rules.CAR_MASS


def tell_wheels(cars: Cars, control: Control, wheels: Impulse, slope: Tensor, speed: Tensor) -> dict[str, Tensor]:
    """Returns the fields of ``cars`` that the wheels use in the next tick: engine, brake, steering, grip.

    Args:
        slope: ``[4, ...]`` of :class:`WheelGround`.
        speed: ``[...]`` forward.
    """
    fast = speed.abs()
    throttle = real_throttle(cars, control)
    sliding = control.handbrake > 0
    change = torch.where(sliding, rules.HANDBRAKE_RISE * DT, -rules.HANDBRAKE_FALL * DT)
    handbrake = (cars.handbrake + change).clamp(0.0, 1.0)
    pressed, moving = throttle.abs() > rules.DEAD_ZONE, fast > rules.STOPPING_SPEED
    against = pressed & moving & (throttle * speed < 0)
    brake = torch.where(pressed, against.to(fast.dtype), torch.where(moving, rules.COASTING, 1.0))
    pull, turn, sliding_turn = along(_SPEED_CURVES, fast)
    engine = throttle * rules.ENGINE * pull * torch.where(wheels.standing < 3, 0.25, 1.0)
    off = ~sliding & (~pressed | against)
    turn = torch.lerp(turn, sliding_turn, handbrake)
    side_grip, long_grip = _grip(wheels, handbrake, throttle != 0, slope)
    return {
        "engine": torch.where(off, 0.0, engine),
        "brake": torch.where(sliding, 0.0, brake * rules.BRAKE),
        "steering": turn * control.steer,
        "handbrake": handbrake,
        "side_grip": torch.where(wheels.contact > 0, side_grip, cars.side_grip),
        "long_grip": torch.where(wheels.contact > 0, long_grip, cars.long_grip),
        "wheels": wheels.contact,
    }


def _grip(wheels: Impulse, handbrake: Tensor, driven: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    side, forth = wheels.side_slip, wheels.long_slip
    share = torch.where(side > 5.0, side / (side + forth).clamp_min(1.0e-9), 0.0)
    side_grip = (1 - 0.8 * share) * (1 - 0.9 * handbrake)
    long_grip = 1 - handbrake * (0.5 - 0.4 * share)
    sticks = torch.where(driven, 1.0, along(_SLOPE_CURVE, slope)[0])
    return side_grip * sticks, long_grip * sticks


def real_throttle(cars: Cars, control: Control) -> Tensor:
    """Returns the throttle, which is full while boosting."""
    return torch.where((control.boost > 0) & (cars.boost > 0), 1.0, control.throttle)


class Thrust(NamedTuple):
    """The effect of maneuvers in a tick, in world axes ``[3, ...]``.

    Attributes:
        kick, twist: immediate changes of velocity and spin.
        force, torque: accelerations, which contacts counteract.
    """

    kick: Tensor
    twist: Tensor
    force: Tensor
    torque: Tensor


class Facts(NamedTuple):
    """Quantities of wheels and motion that maneuvers depend on."""

    speed: Tensor  # [...] forward
    wheels: Tensor  # [...] in contact
    throttle: Tensor  # [...] full while boosting
    up: Tensor  # [3, ...] mean normal under the wheels, or of the last contact of the body
    spin: Tensor  # [3, ...] in the car's axes


def maneuver(cars: Cars, control: Control, facts: Facts) -> tuple[dict[str, Tensor], Thrust]:
    """Applies jumps, flips, air control, auto-flip, auto-roll and boost in order; also returns changes of ``cars``."""
    kind = cars.boost.dtype
    forward, _, up = cars.rotation.unbind(0)
    grounded = facts.wheels >= 3
    pressed = (control.jump > 0) & (cars.held == 0)

    flipping = (cars.flipping > 0) & ~grounded & (cars.flip_ticks < rules.FLIP_TICKS)
    torque, throttle_air = _in_the_air(cars, control, facts, flipping)
    jump, jump_start, jump_force = _jump(cars, control, grounded, pressed)
    auto_start, auto = _auto_flip(cars, pressed)
    turning = auto["auto_flip"] > 1
    second, flip, kick = _second_press(cars, control, facts.speed, pressed & ~turning, grounded, flipping, jump)

    kick = kick + up * (rules.JUMP_SPEED * (jump_start + second["leap"]) - rules.AUTO_FLIP_SPEED * auto_start)
    flip_ticks = flip["flip_ticks"]
    flipping = (flip["flipping"] > 0) & (flip_ticks < rules.FLIP_TICKS)
    falling = (cars.velocity[2] + kick[2] < 0) | (flip_ticks < rules.FLIP_DAMPING_ALWAYS)
    slowed = flipping & (flip_ticks >= rules.FLIP_DAMPING_FROM) & falling
    slowing = (cars.velocity[2] + kick[2]) * (slowed.to(kind) * (rules.FLIP_DAMPING - 1))
    kick = torch.stack((kick[0], kick[1], kick[2] + slowing))
    twist = forward * (auto["auto_side"] * turning * (rules.AUTO_FLIP_SPIN * DT))

    roll_force, roll_torque = _auto_roll(cars, facts)
    boost, boosted = _boost(cars, control, grounded)
    force = up * jump_force + forward * (throttle_air + boosted) + roll_force
    force = force + _gravity_and_grip(facts)
    changes = {
        **jump,
        **boost,
        **flip,
        "double_jumped": second["double_jumped"],
        "air_ticks": second["air_ticks"],
        "auto_flip": (auto["auto_flip"] - 1).clamp_min(0.0),
        "auto_side": auto["auto_side"],
        "held": (control.jump > 0).to(kind),
    }
    return changes, Thrust(kick, twist, force, torque + roll_torque)


def _gravity_and_grip(facts: Facts) -> Tensor:
    """Returns gravity plus the force that presses a car to the surface under its wheels."""
    stuck = (facts.throttle != 0) | (facts.speed.abs() > rules.STOPPING_SPEED)
    grip = 0.5 + torch.where(stuck, 1 - facts.up[2].abs(), 0.0)
    pressed = facts.up * torch.where(facts.wheels > 0, -rules.GRAVITY * grip, 0.0)
    return torch.stack((pressed[0], pressed[1], pressed[2] - rules.GRAVITY))


def _in_the_air(cars: Cars, control: Control, facts: Facts, flipping: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the torque ``[3, ...]`` of a flip or of the sticks, and the throttle's push forward."""
    kind = cars.boost.dtype
    airborne = facts.wheels < 3
    flip = torch.stack((cars.flip_axis[0] * rules.FLIP_ROLL, cars.flip_axis[1] * rules.FLIP_PITCH))
    # A stick held against the flip's pitch cancels it.
    cancels = cars.flip_axis[1] * control.pitch > 0
    share = torch.where(cancels, 1 - control.pitch.abs().clamp_max(1.0), 1.0)
    spinning = flipping.to(kind)
    stalled = (cars.flip_axis == 0).all(0)
    free = ~flipping | stalled | (cancels & (cars.flip_axis[1] != 0))
    free = free & (facts.wheels == 0) & (cars.auto_flip == 0)
    locked = flipping | ((cars.flipped > 0) & (cars.flip_ticks < rules.FLIP_TICKS + rules.FLIP_LOCK))
    pitch = torch.where(locked, 0.0, control.pitch)
    sticks = torch.stack((-control.roll, -pitch, control.yaw))
    used = 1 - sticks.abs()
    used = torch.stack((torch.ones_like(pitch), used[1], used[2]))
    control_torque = sticks * constant(rules.AIR_TORQUE, pitch)
    damping = facts.spin * used * constant(rules.AIR_DAMPING, pitch)
    local = (control_torque - damping) * (rules.AIR_SCALE * free.to(kind))
    local = torch.stack((local[0] + flip[0] * spinning, local[1] + flip[1] * share * spinning, local[2]))
    local = local * airborne.to(kind)
    throttle = control.throttle * (rules.AIR_THROTTLE * airborne.to(kind))
    return (cars.rotation * local[:, None]).sum(0), throttle


def _jump(cars: Cars, control: Control, grounded: Tensor, pressed: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Returns changes of ``cars``, the flag of a starting jump, and the acceleration along up."""
    kind = cars.boost.dtype
    was, ticks = cars.jumping > 0, cars.jump_ticks
    landed = grounded & ~was & ~((cars.jumped > 0) & (ticks < rules.JUMP_RESET))
    holds = (ticks < rules.JUMP_EARLY) | ((control.jump > 0) & (ticks < rules.JUMP_LONGEST))
    start = ~was & grounded & pressed
    jumping = (was & holds) | start
    jumped = jumping | ((cars.jumped > 0) & ~landed)
    ticks = torch.where(start, 0.0, ticks)
    share = torch.where(ticks < rules.JUMP_EARLY, rules.JUMP_EARLY_SHARE, 1.0)
    force = jumping.to(kind) * share * rules.JUMP_ACCELERATION
    now = {"jumping": jumping.to(kind), "jumped": jumped.to(kind), "jump_ticks": ticks + jumped.to(kind)}
    return now, start.to(kind), force


def _auto_flip(cars: Cars, pressed: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Turns over a car on its roof when jump is pressed; returns the flag of the start, ticks left and side."""
    kind = cars.boost.dtype
    roll = torch.atan2(-cars.rotation[1, 2], cars.rotation[2, 2])
    lies = (cars.touching > 0) & (cars.touch_normal[2] > rules.AUTO_FLIP_SLOPE)
    start = pressed & lies & (roll.abs() > rules.AUTO_FLIP_ROLL)
    ticks = torch.where(start, (rules.AUTO_FLIP_TICKS / math.pi * roll.abs()).ceil() + 1, cars.auto_flip)
    side = torch.where(start, torch.where(roll > 0, 1.0, -1.0), cars.auto_side)
    return start.to(kind), {"auto_flip": ticks, "auto_side": side}


def _second_press(
    cars: Cars,
    control: Control,
    speed: Tensor,
    pressed: Tensor,
    grounded: Tensor,
    flipping: Tensor,
    jump: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Applies a double jump or flip; returns changes, those of a flip, and its kick ``[3, ...]``."""
    kind = cars.boost.dtype
    aloft = ~grounded
    counts = aloft & (jump["jumped"] > 0) & (jump["jumping"] == 0)
    air_ticks = torch.where(counts, cars.air_ticks + 1, 0.0)
    can = aloft & pressed & (air_ticks <= rules.SECOND_JUMP_LATEST)
    can = can & (cars.double_jumped == 0) & (cars.flipped == 0)
    stick = control.pitch.abs() + control.yaw.abs() + control.roll.abs()
    starts = can & (stick >= rules.FLIP_INPUT)
    leaps = (can & ~starts).to(kind)
    double_jumped = torch.where(grounded, 0.0, torch.maximum(cars.double_jumped, leaps))

    forth, side = _flip_direction(control)
    begun = starts.to(kind)
    flipped = torch.where(grounded, 0.0, torch.maximum(cars.flipped, begun))
    ticks = torch.where(starts, 0.0, cars.flip_ticks) + flipped
    axis = torch.where(starts, torch.stack((-side, forth)), cars.flip_axis)
    flip = {
        "flipped": flipped,
        "flipping": flipped * torch.maximum(flipping.to(kind), begun),
        "flip_ticks": torch.where(grounded, 0.0, ticks),
        "flip_axis": axis,
    }
    kick = _flip_kick(cars, forth, side, speed) * begun
    return {"double_jumped": double_jumped, "air_ticks": air_ticks, "leap": leaps}, flip, kick


def _flip_direction(control: Control) -> tuple[Tensor, Tensor]:
    """Returns the forward and sideways shares of a flip."""
    forth, side = -control.pitch, control.yaw + control.roll
    forth = torch.where(forth.abs() < 0.1, 0.0, forth)
    side = torch.where(side.abs() < 0.1, 0.0, side)
    size = torch.hypot(forth, side).clamp_min(1.0e-6)
    return forth / size, side / size


def _flip_kick(cars: Cars, forth: Tensor, side: Tensor, speed: Tensor) -> Tensor:
    """Returns the horizontal change of velocity ``[3, ...]``."""
    ratio = speed.abs() / rules.CAR_TOP_SPEED
    backward = torch.where(speed.abs() < 100.0, forth < 0, (forth >= 0) != (speed >= 0))
    forth = forth * torch.where(backward, (16 / 15) * (1 + 1.5 * ratio), 1.0) * rules.FLIP_SPEED
    side = side * (1 + 0.9 * ratio) * rules.FLIP_SPEED
    x, y = cars.rotation[0, 0], cars.rotation[0, 1]
    size = torch.hypot(x, y).clamp_min(1.0e-6)
    x, y = x / size, y / size
    return torch.stack((x * forth - y * side, y * forth + x * side, torch.zeros_like(x)))


def _auto_roll(cars: Cars, facts: Facts) -> tuple[Tensor, Tensor]:
    """Turns a car upright that touches with its body or some wheels while the throttle is pressed."""
    some = (facts.wheels > 0) & (facts.wheels < 4)
    acts = ((facts.throttle != 0) & (some | (cars.touching > 0))).to(cars.boost.dtype)
    forward, right, _ = cars.rotation.unbind(0)
    across = cross(facts.up, forward)
    ahead = cross(across, facts.up)
    roll = torch.where(dot(right, facts.up) >= 0, -1.0, 1.0) * (1 - dot(right, across).clamp(0.0, 1.0))
    pitch = torch.where(dot(forward, facts.up) >= 0, 1.0, -1.0) * (1 - dot(forward, ahead).clamp(0.0, 1.0))
    torque = (forward * roll + right * pitch) * (rules.AUTO_ROLL_TORQUE * acts)
    return facts.up * (-rules.AUTO_ROLL_FORCE * acts), torque


def _boost(cars: Cars, control: Control, grounded: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Returns changes of ``cars`` and the acceleration forward."""
    kind = cars.boost.dtype
    goes_on = (cars.boosting > 0) & (cars.boosting < rules.BOOST_SHORTEST)
    on = ((cars.boost > 0) & ((control.boost > 0) | goes_on)).to(kind)
    left = (cars.boost - on * (rules.BOOST_USE * DT)).clamp_min(0.0)
    force = on * torch.where(grounded, rules.BOOST_GROUND, rules.BOOST_AIR)
    return {"boost": left, "boosting": (cars.boosting + 1) * on}, force


def drive(cars: Cars, controls: Tensor, ground: WheelGround) -> tuple[Cars, Motion]:
    """Computes wheels and maneuvers; position, velocity, spin and rotation do not change.

    Args:
        controls: ``[8, ...]`` in the order of :class:`~rlstack.envs.rocket.driving.Control`.
    """
    control = Control(*controls.unbind(0))
    rotation = cars.rotation
    velocity, spin = to_local(rotation, cars.velocity), to_local(rotation, cars.spin)
    wheels = roll_on(cars, ground, velocity, spin)
    speed = velocity[0]
    told = tell_wheels(cars, control, wheels, ground.slope, speed)
    local_up = (ground.normal * wheels.contact).sum(1)
    up = torch.where(wheels.standing > 0, unit(to_world(rotation, local_up)), cars.touch_normal)
    facts = Facts(speed, wheels.standing, real_throttle(cars, control), up, spin)
    done, thrust = maneuver(cars, control, facts)
    motion = Motion(
        cars.velocity + thrust.kick + to_world(rotation, wheels.push),
        cars.spin + thrust.twist + to_world(rotation, wheels.turn),
        thrust.force,
        thrust.torque,
    )
    return cars.replace(**told, **done), motion
