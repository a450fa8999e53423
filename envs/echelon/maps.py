"""A bank of maps, made once from a seed, that worlds play on."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from .flow import DIRECTIONS, flow_field
from .landscapes import FOLIAGE, LAVA, LOW_WALL, Ground, landscapes
from .rules import MAP, SIDES, SPAWN_SQUARE

_LANE = 4.0  # half the width of a lane
_FLANK = 9.0  # how far a flank's corner is from the map's
_CELLS = 2**24  # of all maps: they must be whole numbers in float32
_WALL, _LEAVES = 2.0, 2.0


class Maps(NamedTuple):
    """A bank of M maps; layers are ``[M * side * side]`` uint8 with cell ``y * side + x``.

    Attributes:
        height: of the ground, 0 to 8: what shots and smoke meet.
        sight: of what hides, foliage among it.
        walk: of what blocks the way, low walls among it.
        floors: ``[2 * M * side * side]``, the highest ``walk`` within 3 x 3, then within 5 x 5 cells.
        kind: of the ground, see :mod:`envs.echelon.landscapes`.
        flow: way to the zone, 0 none, else a row of :data:`envs.echelon.flow.DIRECTIONS` plus 1.
        zone: ``[3, M]`` centre x, y and radius.
        corner: ``[M]`` 0: teams start at the south-west and the north-east, 1: at the north-west and the south-east.
        beats: ``[M, side, side]`` int16, length of that way in halves of a cell.
    """

    height: Tensor
    sight: Tensor
    walk: Tensor
    floors: Tensor
    kind: Tensor
    flow: Tensor
    zone: Tensor
    corner: Tensor
    beats: Tensor

    @property
    def size(self) -> int:
        """M."""
        return len(self.corner)

    @property
    def side(self) -> int:
        """Cells along a map's side."""
        return self.beats.shape[-1]

    def to(self, device: torch.device | None) -> Maps:
        """The bank on a device."""
        return Maps(*(layer.to(device) for layer in self))


@lru_cache(maxsize=4)
def make_maps(count: int, seed: int, symmetric: bool, side: int = MAP) -> Maps:
    """A bank of maps.

    Args:
        count: M, 1 to 4096 of the usual size.
        symmetric: maps look the same from both starts, with the zone in the middle.
        side: cells along a map's side, an even number.

    Raises:
        ValueError: maps of this size, or so many, are not possible.
    """
    if type(side) is not int or side % 2 or not SIDES[0] <= side <= SIDES[1]:
        raise ValueError(f"size: {side!r} is not an even number from {SIDES[0]} to {SIDES[1]}")
    most = _CELLS // side**2
    if not 1 <= count <= most:
        raise ValueError(f"maps: {count} is not possible, a bank has 1 to {most} of size {side}")
    generator = torch.Generator().manual_seed(seed)
    ground = landscapes(count, side, generator)
    corner = torch.randint(2, (count,), generator=generator)
    zone = _zones(symmetric, corner, side, generator)
    if symmetric:
        ground = Ground(*(_turned(layer, 1) for layer in ground))
    cleared = _kept_clear(zone, corner, side)
    height, kind = (torch.where(cleared, 0.0, layer) for layer in ground)
    return _with_derived(height, kind, zone, corner, symmetric)


def _with_derived(height: Tensor, kind: Tensor, zone: Tensor, corner: Tensor, symmetric: bool) -> Maps:
    walk = height + _WALL * (kind == LOW_WALL)
    narrow, wide = (max_pool2d(walk[:, None], size, 1, size // 2)[:, 0] for size in (3, 5))
    near_lava = max_pool2d((kind == LAVA).float()[:, None], 3, 1, 1)[:, 0] > 0
    cells = torch.arange(height.shape[-1]) + 0.5
    goal = _away(zone, cells) < 1.0
    flow, beats = flow_field((wide <= 1) & ~near_lava, goal)
    if symmetric:
        flow = _turned_flow(flow)

    def layer(values: Tensor) -> Tensor:
        return values.to(torch.uint8).reshape(-1)

    floors = torch.cat((layer(narrow), layer(wide)))
    sight = layer(height + _LEAVES * (kind == FOLIAGE))
    return Maps(layer(height), sight, layer(walk), floors, layer(kind), layer(flow), zone, corner, beats)


def _zones(symmetric: bool, corner: Tensor, side: int, generator: torch.Generator) -> Tensor:
    count = len(corner)
    radius = (6.0 * (0.5 + torch.rand(count, generator=generator))).clamp_min(4.0)
    if symmetric:
        middle = torch.full((count,), side / 2.0)
        return torch.stack((middle, middle, radius))
    tries = torch.rand(2, 16, count, generator=generator) * (side - 4 - 2 * radius) + radius + 2
    starts = _starts(corner, side)
    apart = (tries[:, None] - starts[:, :, None]).abs().amax(0).amin(0)  # from the nearer start, [16, M]
    fits = (apart > SPAWN_SQUARE / 2 + radius).float()
    first = fits.argmax(0)
    centre = tries.gather(1, first.expand(2, 1, count))[:, 0]
    return torch.cat((centre, radius[None]))


def _starts(corner: Tensor, side: int) -> Tensor:
    """Centres of the two starts, ``[2 (x, y), 2, M]``."""
    near, far = SPAWN_SQUARE / 2, side - SPAWN_SQUARE / 2
    first = torch.where(corner == 0, near, far)
    x = torch.stack((torch.full_like(first, near), torch.full_like(first, far)))
    return torch.stack((x, torch.stack((first, side - first))))


def _kept_clear(zone: Tensor, corner: Tensor, side: int) -> Tensor:
    """Cells of starts, zone and lanes: straight from each start to the zone, and round a flank."""
    cells = torch.arange(side) + 0.5
    clear = _away(zone, cells) < (zone[2] + 1.5)[:, None, None]
    starts = _starts(corner, side)
    for team in range(2):
        start = starts[:, team]
        x, y = (cells - start[0, :, None]).abs(), (cells - start[1, :, None]).abs()
        clear |= (x[:, None, :] < SPAWN_SQUARE / 2) & (y[:, :, None] < SPAWN_SQUARE / 2)
        inwards = torch.stack((start[0], side - start[1]))  # the corner beside this start
        flank = inwards.clamp(_FLANK, side - _FLANK)
        for one, two in ((start, zone[:2]), (start, flank), (flank, zone[:2])):
            clear |= _along(one, two, cells) < _LANE
    return clear


def _away(zone: Tensor, cells: Tensor) -> Tensor:
    x, y = cells - zone[0, :, None], cells - zone[1, :, None]
    return (x[:, None, :] ** 2 + y[:, :, None] ** 2).sqrt()


def _along(one: Tensor, two: Tensor, cells: Tensor) -> Tensor:
    """Distance of every cell from a segment, ``[M, side, side]``."""
    way = (two - one)[..., None, None]
    x, y = (cells - one[0, :, None])[:, None, :], (cells - one[1, :, None])[:, :, None]
    share = ((x * way[0] + y * way[1]) / (way**2).sum(0).clamp_min(1e-6)).clamp(0, 1)
    return ((x - share * way[0]) ** 2 + (y - share * way[1]) ** 2).sqrt()


def _turned(layer: Tensor, sign: int) -> Tensor:
    """The first half of a map, and the same turned by pi as the other."""
    flat = layer.reshape(len(layer), -1)
    half = flat.shape[1] // 2
    return torch.cat((flat[:, :half], sign * flat[:, :half].flip(1)), 1).view_as(layer)


def _turned_flow(flow: Tensor) -> Tensor:
    """The same of directions, which turn round."""
    opposite = [0, *(1 + DIRECTIONS.index((-x, -y)) for x, y in DIRECTIONS)]
    flat = flow.reshape(len(flow), -1)
    half = flat.shape[1] // 2
    back = torch.tensor(opposite, dtype=torch.uint8)[flat[:, :half].flip(1).long()]
    return torch.cat((flat[:, :half], back), 1).view_as(flow)
