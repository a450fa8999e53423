"""Derived inputs for a policy network: positions of all objects, and whether a shot would hit them.

The environment's observation stays as published, so that any policy can play; a network may apply this module before
its encoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .rules import ArenaRules

_DISTANCES = [10, 13, 16, 20, 24]  # indices of the distances of two enemies, two spawners and one shot
_BEARINGS = [11, 14, 17, 21, 25]
_OTHERS = [2, 3, 5, 6, 7, 8, 9, 19, 23, 26, 31]
_DIAGONAL = math.hypot(ArenaRules.width, ArenaRules.height)
_AIM = 30.0
"""Scale in px: a shot hits a spawner less than 28 px off its line."""
_FAR, _NEAR = 1000.0, 100.0


class TargetFeatures(nn.Module):
    """Maps a flat observation ``[..., 32]`` to ``[..., 60]``, all of order 1.

    For the two nearest enemies, the two nearest spawners and the nearest enemy shot there are nine numbers each, zeros
    for missing ones: existence, nearness, cosine and sine of the bearing, distance from the line of fire in units of a
    target's size, position in the arena's axes (2), and distance from the lines along them (2). Then follow the ship's
    position from -1 to 1, its heading (cosine, sine), and the rest of the observation.
    """

    size = 9 * len(_DISTANCES) + 4 + len(_OTHERS)

    def __init__(self) -> None:
        super().__init__()
        for name, columns in (("distances", _DISTANCES), ("bearings", _BEARINGS), ("others", _OTHERS)):
            self.register_buffer(name, torch.tensor(columns), persistent=False)  # stays on the device

    distances: Tensor
    bearings: Tensor
    others: Tensor

    def forward(self, observation: Tensor) -> Tensor:
        seen = observation.movedim(observation.dim() - 1, 0).contiguous()  # contiguous rows are faster
        turn, share = 2 * math.pi * seen[4:5], seen.index_select(0, self.distances)
        there = (share < 1).to(share.dtype)
        distance, bearing = share * _DIAGONAL * there, 2 * math.pi * (seen.index_select(0, self.bearings) - 0.5)
        ahead, aside = bearing.cos(), bearing.sin()
        along, across = turn.cos(), turn.sin()
        x = distance * (ahead * along - aside * across)
        y = distance * (aside * along + ahead * across)
        off = [(line / _AIM).tanh() for line in (distance * aside, x, y)]
        targets = [there, there / (1 + distance / _NEAR), ahead * there, aside * there, off[0]]
        targets += [x / _FAR, y / _FAR, off[1], off[2]]
        return torch.cat([*targets, 2 * seen[:2] - 1, along, across, seen.index_select(0, self.others)]).movedim(0, -1)
