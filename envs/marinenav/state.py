"""The state of a batch of MarineNav worlds: plain tensors whose last dimension is the world."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..record import Record
from .perception import PerceivedScene


@dataclass
class WorldState(Record):
    """``A`` robots, ``O`` obstacles, ``C`` vortex cores, ``W`` worlds.

    A robot that is padding is neither present nor active; an absent core has circulation 0.
    """

    pose: Tensor  # [3, A, W] x, y in m, heading in [0, 2 pi)
    velocity: Tensor  # [3, A, W] over ground, lagging, as observed; m/s, m/s, rad/s
    velocity_r: Tensor  # [3, A, W] relative to the water, world axes
    thrust: Tensor  # [2, A, W] left, right, N
    start: Tensor  # [2, A, W]
    goal: Tensor  # [2, A, W]
    present: Tensor  # [A, W] bool
    active: Tensor  # [A, W] bool: present and not deactivated
    collided: Tensor  # [A, W] bool, sticky
    reached: Tensor  # [A, W] bool, sticky
    obstacles: Tensor  # [3, O, W] x, y, r
    obstacle_present: Tensor  # [O, W] bool
    cores: Tensor  # [4, C, W] x, y, rotation flag (1 clockwise), Gamma
    steps: Tensor  # [W] int64: steps since the reset
    level: Tensor  # [W] int64: curriculum level the world was drawn at
    returns: Tensor  # [A, W] sum of rewards
    discounted: Tensor  # [A, W] sum of discount^t x reward
    time: Tensor  # [A, W] s while active
    energy: Tensor  # [A, W] sum of power_coefficient x |thrust| x s while active
    # Measured only with the option measure_safety, see safety.py.
    path: Tensor  # [A, W] m sailed
    closest: Tensor  # [A, W] smallest gap to anything, m
    rule_time: Tensor  # [A, W] s in which a rule of the road required a turn
    violation_time: Tensor  # [A, W] s of these without a turn to starboard

    @property
    def scene(self) -> PerceivedScene:
        """Returns the part that perception reads."""
        return PerceivedScene(
            self.pose, self.velocity, self.thrust, self.goal, self.active, self.obstacles, self.obstacle_present
        )


MEASURED = ("path", "closest", "rule_time", "violation_time")
"""Fields that are zero unless a world measures safety."""


def blank_state(
    robots: int, obstacles: int, cores: int, worlds: int, dtype: torch.dtype, device: torch.device
) -> WorldState:
    """Returns a state without robots, obstacles and cores."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(*shape, worlds, dtype=dtype, device=device)

    def false(*shape: int) -> Tensor:
        return torch.zeros(*shape, worlds, dtype=torch.bool, device=device)

    return WorldState(
        **{name: zeros(3, robots) for name in ("pose", "velocity", "velocity_r")},
        **{name: zeros(2, robots) for name in ("thrust", "start", "goal")},
        **{name: false(robots) for name in ("present", "active", "collided", "reached")},
        obstacles=zeros(3, obstacles),
        obstacle_present=false(obstacles),
        cores=zeros(4, cores),
        **{name: torch.zeros(worlds, dtype=torch.int64, device=device) for name in ("steps", "level")},
        **{name: zeros(robots) for name in ("returns", "discounted", "time", "energy", *MEASURED)},
    )
