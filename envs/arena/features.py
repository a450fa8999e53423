"""Derived inputs for a policy network: where everything is, and whether a shot would hit it.

The observation stays what it was published as, so that any policy can play; a network may put this module in front.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .rules import Rules

_DISTANCES = [10, 13, 16, 20, 24]  # of two enemies, two spawners and one shot
_BEARINGS = [11, 14, 17, 21, 25]
_OWN = [0, 1, 2, 3, 5, 6, 7, 8, 9, 19, 23, 26, 31]
_POSITION = slice(0, 2)  # among these
_DIAGONAL = math.hypot(Rules.width, Rules.height)
_AIM = 30.0
"""px; a shot hits a spawner that is less than 28 off its line."""
_FAR, _NEAR = 1000.0, 100.0


class TargetFeatures(nn.Module):
    """A flat observation ``[..., 32]`` to ``[..., 60]``, all of order 1.

    Of each of the two nearest enemies and spawners and of the nearest enemy shot, zeros where there is none: whether it
    is there, its nearness, direction from the ship's heading (cosine, sine), place in the arena's axes (2), and how far
    it is off the lines along which the ship, facing as it does or along an axis, would shoot (3), in the size of a
    target. Then the ship itself: position from -1 to 1, heading (cosine, sine), and the rest as it was.
    """

    size = 9 * len(_DISTANCES) + len(_OWN) + 2

    def forward(self, observation: Tensor) -> Tensor:
        turn = 2 * math.pi * observation[..., 4:5]
        share = observation[..., _DISTANCES]
        there, distance = (share < 1).to(share.dtype), share * _DIAGONAL
        bearing = 2 * math.pi * (observation[..., _BEARINGS] - 0.5)
        ahead, aside = bearing.cos(), bearing.sin()
        along, across = turn.cos(), turn.sin()
        x = distance * (ahead * along - aside * across)
        y = distance * (aside * along + ahead * across)
        off = torch.stack((distance * aside, x, y), -1).div(_AIM).tanh()
        targets = torch.stack((1 / (1 + distance / _NEAR), ahead, aside, x / _FAR, y / _FAR, torch.ones_like(x)), -1)
        seen = torch.cat((targets, off), -1) * there.unsqueeze(-1)
        own = observation[..., _OWN]
        place = 2 * own[..., _POSITION] - 1
        return torch.cat((seen.flatten(-2), place, own[..., _POSITION.stop :], along, across), -1)
