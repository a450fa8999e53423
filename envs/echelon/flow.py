"""The way to the zone from every cell of many maps at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

# x and y of the directions 1 to 8; 0 stands still.
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_STRAIGHT, _DIAGONAL = 2, 3
_FAR = 20000
_LONGEST = 1200
_FRINGE = 12  # cells from the nearest free one


def flow_field(free: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Directions along shortest ways: a wave that needs two beats for a straight step and three for a diagonal one.

    A diagonal step needs both cells beside it free. Cells that are not free point to the nearest that is.

    Args:
        free, goal: ``[M, rows, columns]`` bool, row y and column x.

    Returns the index into :data:`DIRECTIONS` plus 1 (0: at the goal, or no way), uint8, and the beats, int16.
    """
    free = free | goal
    corners = {way: free & _from(free, (way[0], 0)) & _from(free, (0, way[1])) for way in DIRECTIONS[4:]}
    beats = _wave(free, goal, corners)
    outside = beats.clone()
    for _ in range(_FRINGE):
        nearest = torch.stack([_from(outside, way, _FAR) + _cost(way) for way in DIRECTIONS]).amin(0)
        outside = torch.where(free, beats, torch.minimum(outside, nearest))
    score = torch.stack([_from(outside, way, _FAR) + _cost(way) for way in DIRECTIONS])
    for row, way in enumerate(DIRECTIONS):
        open_ = _from(free, way) & corners.get(way, free)
        score[row] = torch.where(free & ~open_, _FAR, score[row])
    best, index = score.min(0)
    return torch.where(goal | (best >= _FAR), 0, index + 1).to(torch.uint8), outside


def _cost(way: tuple[int, int]) -> int:
    return _DIAGONAL if way[0] and way[1] else _STRAIGHT


def _wave(free: Tensor, goal: Tensor, corners: dict[tuple[int, int], Tensor]) -> Tensor:
    """Beats until the wave reaches a cell, ``_FAR`` where it never does."""
    empty = torch.zeros_like(goal)
    before = [goal, empty, empty]  # reached up to one, two and three beats ago
    beats = torch.zeros(goal.shape, dtype=torch.int16)
    for beat in range(1, _LONGEST):
        reached = before[0].clone()
        for way in DIRECTIONS[:4]:
            reached |= _from(before[1], way)
        for way, corner in corners.items():
            reached |= _from(before[2], way) & corner
        reached &= free
        if beat % 16 == 0 and torch.equal(reached, before[2]):
            break
        beats += ~before[0]
        before = [reached, *before[:2]]
    return torch.where(before[0], beats, _FAR).to(torch.int16)


def _from(field: Tensor, way: tuple[int, int], outside: int = 0) -> Tensor:
    """The field's value one step in a direction from every cell."""
    x, y = way
    rows, columns = field.shape[1:]
    return pad(field, (1, 1, 1, 1), value=outside)[:, 1 + y : 1 + y + rows, 1 + x : 1 + x + columns]
