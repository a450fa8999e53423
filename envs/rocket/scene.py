"""A tick before and after everything that touches has done so."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .ball import Moved, Plane
from .driving import Motion
from .rules import DT
from .state import Ball, Cars


class Scene(NamedTuple):
    """A tick before anything has touched.

    Attributes:
        motion: of the cars.
        fallen: the ball's velocity after drag.
        pull: what gravity adds to it.
        plane: of the field below it.
        bounced: the ball if no car touches it.
    """

    cars: Cars
    motion: Motion
    ball: Ball
    fallen: Tensor
    pull: Tensor
    plane: Plane
    bounced: Moved


class Met(NamedTuple):
    """What contacts did, ``[..., C, W]`` and for the ball ``[..., W]``."""

    cars: Moved
    kick: Tensor  # [3, C, W] of bumps, after the move
    ball: Moved
    ball_kick: Tensor  # [3, W] of hits, after the move
    touching: Tensor  # flag: body on field
    touch_normal: Tensor  # [3, C, W]
    hit: Tensor  # flag: car on ball
    extra: Tensor  # flag: a hit gave its extra speed
    victim: Tensor  # the car it bumped, -1: none
    demolishes: Tensor  # flag
    demolished: Tensor  # flag


def untouched(scene: Scene) -> Met:
    """Nothing touches but ball and field."""
    cars, motion = scene.cars, scene.motion
    # Each entry is a tensor of its own: compiled code takes shared ones for another case.
    still = [torch.zeros_like(cars.position) for _ in range(3)]
    none = [torch.zeros_like(cars.boost) for _ in range(6)]
    moved = Moved(motion.velocity + motion.force * DT, motion.spin + motion.torque * DT, *still[:2])
    quiet = torch.zeros_like(scene.ball.position)
    touching, hit, extra, victim, demolishes, demolished = none
    normal = cars.touch_normal
    return Met(moved, still[2], scene.bounced, quiet, touching, normal, hit, extra, victim - 1, demolishes, demolished)
