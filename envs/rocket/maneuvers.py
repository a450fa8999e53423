"""What a car does besides rolling: boost, jumps, flips, air control, righting itself."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import DT
from .state import Cars
from .vectors import constant, cross, dot
from .wheels import Control


class Thrust(NamedTuple):
    """What acts on a car in a tick, in world axes ``[3, ...]``.

    Attributes:
        kick, twist: changes of velocity and spin at once.
        force, torque: accelerations that contacts have to hold out against.
    """

    kick: Tensor
    twist: Tensor
    force: Tensor
    torque: Tensor


class Facts(NamedTuple):
    """What maneuvers depend on."""

    speed: Tensor  # [...] forward
    wheels: Tensor  # [...] in contact
    throttle: Tensor  # [...] boosting is full throttle
    up: Tensor  # [3, ...] mean normal under the wheels, or of the last contact of the body
    spin: Tensor  # [3, ...] in the car's axes


def maneuver(cars: Cars, control: Control, facts: Facts) -> tuple[dict[str, Tensor], Thrust]:
    """Jumps, flips, air control, auto-flip, auto-roll and boost in their order; also changes of ``cars``."""
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

    roll_force, roll_torque = _auto_roll(cars, control, facts)
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
    """Gravity, and what presses a car to what its wheels stand on."""
    stuck = (facts.throttle != 0) | (facts.speed.abs() > rules.STOPPING_SPEED)
    grip = 0.5 + torch.where(stuck, 1 - facts.up[2].abs(), 0.0)
    pressed = facts.up * torch.where(facts.wheels > 0, -rules.GRAVITY * grip, 0.0)
    return torch.stack((pressed[0], pressed[1], pressed[2] - rules.GRAVITY))


def _in_the_air(cars: Cars, control: Control, facts: Facts, flipping: Tensor) -> tuple[Tensor, Tensor]:
    """Torque ``[3, ...]`` of a flip or of the sticks, and the throttle's push forward."""
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
    """Changes of ``cars``, flag of a jump that starts, acceleration along up."""
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
    """A car on its roof turns over at a press of jump: flag of the start, ticks left and side."""
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
    """Double jump or flip: changes, those of a flip, and its kick ``[3, ...]``."""
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
    """Forward and sideways share of a flip."""
    forth, side = -control.pitch, control.yaw + control.roll
    forth = torch.where(forth.abs() < 0.1, 0.0, forth)
    side = torch.where(side.abs() < 0.1, 0.0, side)
    size = torch.hypot(forth, side).clamp_min(1.0e-6)
    return forth / size, side / size


def _flip_kick(cars: Cars, forth: Tensor, side: Tensor, speed: Tensor) -> Tensor:
    """Change of velocity ``[3, ...]``, horizontal."""
    ratio = speed.abs() / rules.CAR_TOP_SPEED
    backward = torch.where(speed.abs() < 100.0, forth < 0, (forth >= 0) != (speed >= 0))
    forth = forth * torch.where(backward, (16 / 15) * (1 + 1.5 * ratio), 1.0) * rules.FLIP_SPEED
    side = side * (1 + 0.9 * ratio) * rules.FLIP_SPEED
    x, y = cars.rotation[0, 0], cars.rotation[0, 1]
    size = torch.hypot(x, y).clamp_min(1.0e-6)
    x, y = x / size, y / size
    return torch.stack((x * forth - y * side, y * forth + x * side, torch.zeros_like(x)))


def _auto_roll(cars: Cars, control: Control, facts: Facts) -> tuple[Tensor, Tensor]:
    """A car that touches with its body or some wheels turns upright while the throttle is pressed."""
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
    """Changes of ``cars`` and acceleration forward."""
    kind = cars.boost.dtype
    goes_on = (cars.boosting > 0) & (cars.boosting < rules.BOOST_SHORTEST)
    on = ((cars.boost > 0) & ((control.boost > 0) | goes_on)).to(kind)
    left = (cars.boost - on * (rules.BOOST_USE * DT)).clamp_min(0.0)
    force = on * torch.where(grounded, rules.BOOST_GROUND, rules.BOOST_AIR)
    return {"boost": left, "boosting": (cars.boosting + 1) * on}, force
