"""Derived inputs for a policy network: positions of all objects, and whether a shot would hit them.

The environment's observation stays as published, so that any policy can play; a network may apply this module before
its encoder.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from ..world import Mirror
from .observation import GROUPS
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


# -- the mirror symmetry -------------------------------------------------------------------------------------------


_TURNS = {1: (2, 3), 2: (3, 4)}
"""The actions to the left and to the right, by style."""


def mirror(style: int) -> Mirror:
    """Returns the mirror of a style of control, which swaps left and right.

    One rule is not symmetric: if several spawners are due and only some of them may still make an enemy, the first in
    the list of the phase do.
    """
    return Mirror(partial(_seen, style), partial(_chosen, _TURNS[style]))


def _seen(style: int, observation: Any) -> Any:
    if isinstance(observation, Tensor):
        return _flat(style, observation)
    names = sorted(GROUPS, key=lambda name: GROUPS[name].start)
    flat = _flat(style, torch.cat([observation.get(name) for name in names], -1))
    parts = {name: flat[..., GROUPS[name]] for name in GROUPS}
    return TensorDict(parts, observation.batch_size, observation.device)


def _flat(style: int, observation: Tensor) -> Tensor:
    """Mirrors an observation ``[..., 32]``; :class:`~.env.Arena` describes its numbers."""
    seen = list(observation.unbind(-1))
    seen[0], seen[2] = 1 - seen[0], -seen[2]
    # A heading lies in [0, 1) in style 1 and in (-0.5, 0.5] in style 2, a bearing in [0, 1) and in (0, 1].
    heading = 0.5 - seen[4]
    seen[4] = heading.remainder(1) if style == 1 else torch.where(heading > 0.5, heading - 1, heading)
    for column in _BEARINGS:
        seen[column] = (-seen[column]).remainder(1) if style == 1 else 1 - seen[column].remainder(1)
    seen[27], seen[28] = seen[28], seen[27]
    return torch.stack(seen, -1)


def _chosen(turns: tuple[int, int], action: Tensor) -> Tensor:
    left, right = turns
    turned = (action == left).to(action.dtype) - (action == right).to(action.dtype)
    return action + (right - left) * turned
