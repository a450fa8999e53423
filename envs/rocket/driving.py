"""Everything a car does by itself in a tick, before it touches anything."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .maneuvers import Facts, maneuver
from .state import Cars
from .vectors import to_local, to_world, unit
from .wheels import Control, Ground, real_throttle, roll_on, tell_wheels


class Motion(NamedTuple):
    """What is about to move, ``[3, ...]`` in world axes.

    Attributes:
        velocity, spin: without what pulls on it in this tick.
        force, torque: that, as accelerations.
    """

    velocity: Tensor
    spin: Tensor
    force: Tensor
    torque: Tensor


def drive(cars: Cars, controls: Tensor, ground: Ground) -> tuple[Cars, Motion]:
    """Wheels and maneuvers; position, velocity, spin and rotation stay as they are.

    Args:
        controls: ``[8, ...]`` in the order of :class:`~envs.rocket.wheels.Control`.
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
