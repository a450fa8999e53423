"""A bank of maps, made once from a seed, that worlds play on."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from .flow import DIRECTIONS, flow_field
from .landscapes import FOLIAGE, LAVA, LOW_WALL, Ground, landscapes
from .rules import MAP, SPAWN_SQUARE

_LANE = 4.0  # half the width of a lane
_FLANK = 9.0  # how far a flank's corner is from the map's
_MOST = 4096  # cells of all maps must be whole numbers in float32
_WALL, _LEAVES = 2.0, 2.0


class Maps(NamedTuple):
    """A bank of M maps; layers are ``[M * 64 * 64]`` uint8 with cell ``y * 64 + x``.

    Attributes:
        height: of the ground, 0 to 8: what shots and smoke meet.
        sight: of what hides, foliage among it.
        walk: of what blocks the way, low walls among it.
        floors: ``[2 * M * 64 * 64]``, the highest ``walk`` within 3 x 3, then within 5 x 5 cells.
        kind: of the ground, see :mod:`envs.echelon.landscapes`.
        flow: way to the zone, 0 none, else a row of :data:`envs.echelon.flow.DIRECTIONS` plus 1.
        zone: ``[3, M]`` centre x, y and radius.
        corner: ``[M]`` 0: teams start at the south-west and the north-east, 1: at the north-west and the south-east.
        beats: ``[M, 64, 64]`` int16, length of that way in halves of a cell.
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

    def to(self, device: torch.device | None) -> Maps:
        """The bank on a device."""
        return Maps(*(layer.to(device) for layer in self))


@lru_cache(maxsize=4)
def make_maps(count: int, seed: int, symmetric: bool) -> Maps:
    """A bank of maps.

    Args:
        count: M, 1 to 4096.
        symmetric: maps look the same from both starts, with the zone in the middle.

    Raises:
        ValueError: so many maps are not possible.
    """
    if not 1 <= count <= _MOST:
        raise ValueError(f"maps: {count} is not possible, a bank has 1 to {_MOST}")
    generator = torch.Generator().manual_seed(seed)
    ground = landscapes(count, generator)
    corner = torch.randint(2, (count,), generator=generator)
    zone = _zones(count, symmetric, corner, generator)
    if symmetric:
        ground = Ground(*(_turned(layer, 1) for layer in ground))
    cleared = _kept_clear(zone, corner)
    height, kind = (torch.where(cleared, 0.0, layer) for layer in ground)
    return _with_derived(height, kind, zone, corner, symmetric)


def _with_derived(height: Tensor, kind: Tensor, zone: Tensor, corner: Tensor, symmetric: bool) -> Maps:
    walk = height + _WALL * (kind == LOW_WALL)
    narrow, wide = (max_pool2d(walk[:, None], size, 1, size // 2)[:, 0] for size in (3, 5))
    near_lava = max_pool2d((kind == LAVA).float()[:, None], 3, 1, 1)[:, 0] > 0
    cells = torch.arange(MAP) + 0.5
    goal = _away(zone, cells) < 1.0
    flow, beats = flow_field((wide <= 1) & ~near_lava, goal)
    if symmetric:
        flow = _turned_flow(flow)

    def layer(values: Tensor) -> Tensor:
        return values.to(torch.uint8).reshape(-1)

    floors = torch.cat((layer(narrow), layer(wide)))
    sight = layer(height + _LEAVES * (kind == FOLIAGE))
    return Maps(layer(height), sight, layer(walk), floors, layer(kind), layer(flow), zone, corner, beats)


def _zones(count: int, symmetric: bool, corner: Tensor, generator: torch.Generator) -> Tensor:
    radius = (6.0 * (0.5 + torch.rand(count, generator=generator))).clamp_min(4.0)
    if symmetric:
        middle = torch.full((count,), MAP / 2.0)
        return torch.stack((middle, middle, radius))
    tries = torch.rand(2, 16, count, generator=generator) * (MAP - 4 - 2 * radius) + radius + 2
    starts = _starts(corner)
    apart = (tries[:, None] - starts[:, :, None]).abs().amax(0).amin(0)  # from the nearer start, [16, M]
    fits = (apart > SPAWN_SQUARE / 2 + radius).float()
    first = fits.argmax(0)
    centre = tries.gather(1, first.expand(2, 1, count))[:, 0]
    return torch.cat((centre, radius[None]))


def _starts(corner: Tensor) -> Tensor:
    """Centres of the two starts, ``[2 (x, y), 2, M]``."""
    near, far = SPAWN_SQUARE / 2, MAP - SPAWN_SQUARE / 2
    first = torch.where(corner == 0, near, far)
    x = torch.stack((torch.full_like(first, near), torch.full_like(first, far)))
    return torch.stack((x, torch.stack((first, MAP - first))))


def _kept_clear(zone: Tensor, corner: Tensor) -> Tensor:
    """Cells of starts, zone and lanes: straight from each start to the zone, and round a flank."""
    cells = torch.arange(MAP) + 0.5
    clear = _away(zone, cells) < (zone[2] + 1.5)[:, None, None]
    starts = _starts(corner)
    for team in range(2):
        start = starts[:, team]
        x, y = (cells - start[0, :, None]).abs(), (cells - start[1, :, None]).abs()
        clear |= (x[:, None, :] < SPAWN_SQUARE / 2) & (y[:, :, None] < SPAWN_SQUARE / 2)
        inwards = torch.stack((start[0], MAP - start[1]))  # the corner beside this start
        flank = inwards.clamp(_FLANK, MAP - _FLANK)
        for one, two in ((start, zone[:2]), (start, flank), (flank, zone[:2])):
            clear |= _along(one, two, cells) < _LANE
    return clear


def _away(zone: Tensor, cells: Tensor) -> Tensor:
    x, y = cells - zone[0, :, None], cells - zone[1, :, None]
    return (x[:, None, :] ** 2 + y[:, :, None] ** 2).sqrt()


def _along(one: Tensor, two: Tensor, cells: Tensor) -> Tensor:
    """Distance of every cell from a segment, ``[M, 64, 64]``."""
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
