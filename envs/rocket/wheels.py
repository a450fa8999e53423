"""Wheels: suspension, tyres, engine, brakes and steering.

A wheel is a ray from its hard point down along the car; forces act at the point where it meets the field. All is in
the car's own axes, in which contacts differ only in their height.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .state import Cars
from .vectors import along, constant


class Ground(NamedTuple):
    """What the wheels' rays meet."""

    distance: Tensor  # [4, ...] along the ray
    normal: Tensor  # [3, 4, ...] in the car's axes
    slope: Tensor  # [4, ...] the normal's z component in the world


class Control(NamedTuple):
    """What a driver does, ``[...]`` each; the last three are flags."""

    throttle: Tensor
    steer: Tensor
    pitch: Tensor
    yaw: Tensor
    roll: Tensor
    jump: Tensor
    boost: Tensor
    handbrake: Tensor


class Impulse(NamedTuple):
    """What wheels do in a tick, in the car's axes."""

    push: Tensor  # [3, ...] change of velocity
    turn: Tensor  # [3, ...] change of spin
    contact: Tensor  # [4, ...] flag
    standing: Tensor  # [...] wheels in contact
    side_slip: Tensor  # [4, ...] velocity at the hard points, along the axles
    long_slip: Tensor  # [4, ...] and across them


def ray_length(like: Tensor) -> Tensor:
    """How far the wheels' rays reach, ``[4, 1, ...]``."""
    sizes = zip(rules.SUSPENSION_REST, rules.WHEEL_RADIUS)
    reach = rules.SUSPENSION_TRAVEL - rules.SUSPENSION_SHORTER
    return constant([rest + radius + reach for rest, radius in sizes], like)


def roll_on(cars: Cars, ground: Ground, velocity: Tensor, spin: Tensor) -> Impulse:
    """Suspension and tyres, with what the wheels were told in the tick before.

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
    slips = _slip(along_x + wy * rules.WHEEL_Z, along_y - wx * rules.WHEEL_Z, cz, ax, ay, (nx, ny, nz))
    # The axle within the ground's plane, and the direction that the wheel rolls in.
    lift = ax * nx + ay * ny
    px, py, pz = ax - lift * nx, ay - lift * ny, -lift * nz
    scale = (px * px + py * py + pz * pz).clamp_min(1.0e-12).rsqrt()
    px, py, pz = px * scale, py * scale, pz * scale
    fx, fy, fz = py * nz - pz * ny, pz * nx - px * nz, px * ny - py * nx
    side = contact * _held_sideways(cars, cx * px + cy * py + cz * pz, (px, py, pz), (x, y, z))
    forth = contact * _driven(cars, cx * fx + cy * fy + cz * fz)

    tx, ty, tz = side * px + forth * fx, side * py + forth * fy, side * pz + forth * fz
    lx, ly, lz = load * nx, load * ny, load * nz
    sx, sy, sz = tx + lx, ty + ly, tz + lz
    push = torch.stack((sx.sum(0), sy.sum(0), sz.sum(0))) / rules.CAR_MASS
    # Tyres act at the height of the car's origin.
    turn = ((y * sz - z * ly).sum(0), (z * lx - x * sz).sum(0), (x * sy - y * sx).sum(0))
    turn_rate = torch.stack(turn) / constant(rules.CAR_INERTIA, like)
    return Impulse(push, turn_rate, contact, contact.sum(0), *slips)


def _suspension(distance: Tensor, approach: Tensor, cosine: Tensor) -> Tensor:
    """Force ``[4, ...]`` along the normal."""
    like = distance[0]
    rest, radius = constant(rules.SUSPENSION_REST, like), constant(rules.WHEEL_RADIUS, like)
    compressed = (rest + radius - distance).clamp(-rules.SUSPENSION_TRAVEL, rules.SUSPENSION_TRAVEL)
    steep = cosine < 0.1
    inverse = torch.where(steep, 10.0, 1 / cosine)
    speed = torch.where(steep, 0.0, approach * inverse)
    damping = torch.where(speed < 0, rules.DAMPING_COMPRESSION, rules.DAMPING_EXTENSION)
    force = compressed * rules.STIFFNESS * inverse - damping * speed
    return (force * constant(rules.SUSPENSION_FORCE, like)).clamp_min(0.0)


def _pushed_back(cars: Cars, ground: Ground, approach: Tensor, z: Tensor) -> Tensor:
    """Impulse ``[4, ...]`` along the normal of a wheel that is pressed into the car."""
    like = cars.boost
    x, y = constant(rules.WHEEL_X, like), constant(rules.WHEEL_Y, like)
    rest, radius = constant(rules.SUSPENSION_REST, like), constant(rules.WHEEL_RADIUS, like)
    deep = rest + radius - rules.SUSPENSION_SHORTER - ground.distance
    wanted = torch.where(cars.age < 1, 0.1, 0.2) * rules.TICKS_PER_SECOND
    impulse = (wanted * deep - approach).clamp_min(0.0) / (4 * _resistance(tuple(ground.normal.unbind(0)), (x, y, z)))
    return torch.where(deep > 0, impulse, 0.0)


def _resistance(direction: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
    """Inverse mass that an impulse in a direction meets at a point."""
    (dx, dy, dz), (x, y, z) = direction, point
    a, b, c = y * dz - z * dy, z * dx - x * dz, x * dy - y * dx
    ix, iy, iz = rules.CAR_INERTIA
    return a * a * (1 / ix) + b * b * (1 / iy) + c * c * (1 / iz) + 1 / rules.CAR_MASS


def _held_sideways(
    cars: Cars, slip: Tensor, axle: tuple[Tensor, Tensor, Tensor], point: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Impulse ``[4, ...]`` along the axle."""
    strength = -0.2 * (rules.CAR_MASS / 3) * DT
    return strength * cars.side_grip * slip / _resistance(axle, point)


def _driven(cars: Cars, speed: Tensor) -> Tensor:
    """Impulse ``[4, ...]`` in the direction of rolling: engine or brake."""
    brake = cars.brake * 50.0
    braking = (rules.BRAKE_GRIP * speed).clamp(-brake, brake) * (rules.CAR_MASS / 3)
    force = torch.where(cars.engine != 0, cars.engine * rules.CAR_MASS, -braking)
    return force * DT * cars.long_grip


def _slip(
    x: Tensor, y: Tensor, z: Tensor, ax: Tensor, ay: Tensor, normal: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Velocity ``(x, y, z)`` at the hard points along the axles and across."""
    nx, ny, nz = normal
    return (x * ax + y * ay).abs(), (nz * (x * ay - y * ax) + z * (ax * ny - ay * nx)).abs()


def tell_wheels(cars: Cars, control: Control, wheels: Impulse, slope: Tensor, speed: Tensor) -> dict[str, Tensor]:
    """What the wheels are told for the next tick: changes of ``cars``.

    Args:
        slope: ``[4, ...]`` of :class:`Ground`.
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
    engine = throttle * rules.ENGINE * along(rules.ENGINE_CURVE, fast) * torch.where(wheels.standing < 3, 0.25, 1.0)
    off = ~sliding & (~pressed | against)
    turn = along(rules.STEERING_CURVE, fast)
    turn = turn + (along(rules.SLIDING_CURVE, fast) - turn) * handbrake
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
    sticks = torch.where(driven, 1.0, along(rules.SLOPE_GRIP_CURVE, slope))
    return side_grip * sticks, long_grip * sticks


def real_throttle(cars: Cars, control: Control) -> Tensor:
    """Boosting is full throttle."""
    return torch.where((control.boost > 0) & (cars.boost > 0), 1.0, control.throttle)
