"""The mirror symmetry of Rocket, which swaps left and right of the field and of the cars."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from ..world import Mirror
from . import rules
from .actions import AXES, lookup_table
from .observation import size

_FIRST = (0, 3, 7, 8, 9, 13, 14, 15, 22, 25, 29, 30, 31, 34)
"""Indices of the first 37 numbers that change sign: x, and for spins and the car's right axis y and z."""
_TURNS = (AXES.index("steer"), AXES.index("yaw"), AXES.index("roll"))


def mirror(observation: str, actions: str, cars: int) -> Mirror:
    """Returns the mirror at the plane x = 0; the order of equally near pads may differ.

    Args:
        observation, actions: forms of observations and actions.
        cars: number of cars in a match.
    """
    return Mirror(partial(_seen, observation, cars), partial(_chosen, actions))


def _seen(kind: str, cars: int, observation: Tensor) -> Tensor:
    order, signs = _layout(kind, cars, observation.device)
    return observation.index_select(-1, order) * signs.to(observation.dtype)


@cache
def _layout(kind: str, cars: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the source index and sign of each number of a mirrored observation."""
    order, signs = list(range(size(kind, cars))), torch.ones(size(kind, cars))
    others, first = (5, 48) if kind == "rlbot180" else (cars - 1, 37)
    turned = [*_FIRST, *(first + 13 * other + x for other in range(others) for x in (0, 3, 6, 9))]
    if kind == "rlbot180":
        turned += [37, *range(113, 173, 6)]
    else:
        pads = len(order) - len(rules.PADS)
        order[pads:] = [pads + rules.PADS.index((-x, y)) for x, y in rules.PADS]
    signs[turned] = -1
    return torch.tensor(order, device=device), signs.to(device)


def _chosen(kind: str, action: Tensor) -> Tensor:
    if kind == "lookup90":
        return _table(action.device)[action]
    parts = list(action.unbind(-1))
    for axis in _TURNS:
        parts[axis] = 4 - parts[axis] if kind == "multi" else -parts[axis]
    return torch.stack(parts, -1)


@cache
def _table(device: torch.device) -> Tensor:
    """Returns the mirror image of each of the 90 combinations."""
    rows = list(lookup_table())
    images = [tuple(-value if axis in _TURNS else value for axis, value in enumerate(row)) for row in rows]
    return torch.tensor([rows.index(image) for image in images], device=device)
