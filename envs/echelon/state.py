"""The state of a batch of Echelon worlds: plain tensors whose last dimension is the world.

Mechs stand in ``[2, n, W]``: team (blue, red), slot, world; a target is known by its slot in the other team.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from . import rules


@dataclass
class State:
    """Everything a decision reads and writes. Flags are 0 or 1; clocks count sub-steps down, whole numbers."""

    position: Tensor  # [3, 2, n, W] of the feet
    velocity: Tensor  # [3, 2, n, W]
    yaw: Tensor  # [2, n, W]
    hp: Tensor  # [2, n, W] 0 or less: dead, or never there
    legs: Tensor  # [2, n, W] hp
    heat: Tensor  # [2, n, W]
    stability: Tensor  # [2, n, W]
    ground: Tensor  # [2, n, W] height below the feet
    clocks: Tensor  # [2, CLOCKS, n, W]
    painter: Tensor  # [2, n, W] slot of the enemy that painted it last
    focus: Tensor  # [2, n, W] slot of the chosen target, -1: none
    ewar: Tensor  # [2, n, W] 0 off, 1 ECM, 2 ECCM
    hit_from: Tensor  # [2, 2, n, W] direction (x, y) that the last damage came from
    under_fire: Tensor  # [2, n, W] flag: damaged in the last decision
    shots: Tensor  # [8, 2, 9P, W] position, velocity, sub-steps left, target slot
    screened: Tensor  # [2, 2P, P, W] flag: that enemy heavy has tried to intercept the missile
    shells: Tensor  # [7, 2, n, W] of smoke: position, velocity, sub-steps left
    clouds: Tensor  # [4, 2, 2, n, W] centre, sub-steps left; two for each mech
    # seen at the end of the last decision
    sight: Tensor  # [2, n, n, W] flag: line of sight to each enemy
    quality: Tensor  # [2, n, W] of sensors
    jam: Tensor  # [2, n, W] 0 to 1
    memory: Tensor  # [12, 2, n, n, W] of enemies as last seen; [0, ...] where everything is seen
    ago: Tensor  # [2, n, n, W] decisions since then
    # what bots remember
    still: Tensor  # [2, n, W] decisions without having moved
    escape: Tensor  # [2, n, W] decisions left of getting free
    # of the world
    zone: Tensor  # [3, W] centre, radius
    score: Tensor  # [2, W] seconds
    base: Tensor  # [W] first cell of its map in a bank's layers
    rival: Tensor  # [W] kind of bot that plays red, an index
    fire_prob: Tensor  # [W] how often it fires when it would
    key: Tensor  # [W] int64, of its random numbers
    steps: Tensor  # [W] decisions

    def replace(self, **changes: Any) -> State:
        """A new state that shares all but the given entries."""
        return replace(self, **changes)

    def map(self, function: Callable[[Tensor], Tensor]) -> State:
        """A new state with ``function`` applied to every tensor."""
        return State(**{name: function(value) for name, value in self.items()})

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and tensors."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    @property
    def fallen(self) -> Tensor:
        """``[2, n, W]`` bool: lies on the ground."""
        return self.clocks[:, rules.FALLEN] > 0

    @property
    def alive(self) -> Tensor:
        """``[2, n, W]`` bool."""
        return self.hp > 0
