"""The mirror symmetry of Arena, which swaps left and right."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from ..world import Mirror
from .observation import GROUPS

_BEARINGS = (11, 14, 17, 21, 25)
_TURNS = {1: (2, 3), 2: (3, 4)}
"""The actions to the left and to the right, by style."""


def mirror(style: int) -> Mirror:
    """Returns the mirror of a style of control.

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
