"""Seven styles of ground, many maps at once; a map has one in each quarter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

PLAIN, FOLIAGE, LOW_WALL, WATER, LAVA = range(5)


class Ground(NamedTuple):
    """What the cells of maps hold, ``[M, side, side]``, row y and column x."""

    height: Tensor  # 0 to 8
    kind: Tensor  # PLAIN to LAVA


class _Tiles:
    """A grid of square tiles with random numbers of their own.

    Args:
        side: of the maps.
        pitch: width of a tile.
    """

    def __init__(self, count: int, side: int, pitch: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._across = -(-side // pitch)
        cells = torch.arange(side)
        self._tile = cells // pitch
        self.x, self.y = (cells % pitch)[None, None, :].float(), (cells % pitch)[None, :, None].float()

    def chance(self) -> Tensor:
        """A number in [0, 1) for every tile, as its cells see it."""
        table = torch.rand(self._count, self._across, self._across, generator=self._generator)
        return table[:, self._tile][:, :, self._tile]

    def whole(self, low: int, high: int) -> Tensor:
        """A whole number from low to high for every tile."""
        return (low + self.chance() * (high - low + 1)).floor()


def _boxes(tiles: _Tiles, chance: float, least: int, most: int) -> Tensor:
    wide, deep = tiles.whole(least, most), tiles.whole(least, most)
    west, south = tiles.whole(0, 2), tiles.whole(0, 2)
    inside = (tiles.x >= west) & (tiles.x < west + wide) & (tiles.y >= south) & (tiles.y < south + deep)
    return inside & (tiles.chance() < chance)


def _discs(tiles: _Tiles, chance: float, centre: float, least: float, most: float) -> Tensor:
    radius = least + tiles.chance() * (most - least)
    shift = [(tiles.chance() - 0.5) * centre for _ in range(2)]
    away = (tiles.x - centre - shift[0]) ** 2 + (tiles.y - centre - shift[1]) ** 2
    return (away < radius * radius) & (tiles.chance() < chance)


def _buildings(count: int, side: int, generator: torch.Generator) -> Ground:
    tiles = _Tiles(count, side, 10, generator)
    there = _boxes(tiles, 0.7, 4, 7)
    return Ground(there * tiles.whole(4, 8), torch.zeros_like(there, dtype=torch.float32))


def _pillars(count: int, side: int, generator: torch.Generator, chance: float = 0.6) -> Ground:
    tiles = _Tiles(count, side, 7, generator)
    there = _boxes(tiles, chance, 1, 2)
    return Ground(there * tiles.whole(3, 6), torch.zeros_like(there, dtype=torch.float32))


def _forest(count: int, side: int, generator: torch.Generator) -> Ground:
    trees = torch.rand(count, side, side, generator=generator) < 0.25
    return Ground(torch.zeros(count, side, side), trees * float(FOLIAGE))


def _low_walls(count: int, side: int, generator: torch.Generator) -> Ground:
    tiles = _Tiles(count, side, 9, generator)
    lengthwise, row = tiles.chance() < 0.5, tiles.whole(1, 7)
    along, across = torch.where(lengthwise, tiles.x, tiles.y), torch.where(lengthwise, tiles.y, tiles.x)
    wall = (across == row) & (along >= 1) & (along < 8) & (tiles.chance() < 0.7)
    return Ground(torch.zeros(count, side, side), wall * float(LOW_WALL))


def _craters(count: int, side: int, generator: torch.Generator) -> Ground:
    tiles = _Tiles(count, side, 14, generator)
    water = _discs(tiles, 0.8, 6.5, 3.0, 6.0)
    return Ground(torch.zeros(count, side, side), water * float(WATER))


def _lava_ridge(count: int, side: int, generator: torch.Generator) -> Ground:
    tiles = _Tiles(count, side, 12, generator)
    ridge = _boxes(tiles, 0.6, 3, 8)
    lava = _discs(_Tiles(count, side, 12, generator), 0.7, 5.5, 2.0, 3.5) & ~ridge
    return Ground(ridge * tiles.whole(1, 3), lava * float(LAVA))


def _open(count: int, side: int, generator: torch.Generator) -> Ground:
    return _pillars(count, side, generator, 0.1)


STYLES: tuple[Callable[[int, int, torch.Generator], Ground], ...] = (
    _buildings,
    _pillars,
    _forest,
    _low_walls,
    _craters,
    _lava_ridge,
    _open,
)


def landscapes(count: int, side: int, generator: torch.Generator) -> Ground:
    """Maps of four quarters of random styles, which meet near the middle."""
    chosen = torch.randint(len(STYLES), (count, 4), generator=generator)
    split = side // 2 + torch.randint(-6, 7, (2, count, 1), generator=generator)
    cells = torch.arange(side)[None]
    east, north = (cells >= split[0]).long(), (cells >= split[1]).long()
    quarter = (east[:, None, :] + 2 * north[:, :, None]).view(count, -1)
    style = chosen.gather(1, quarter).view(count, side, side)
    height, kind = (torch.zeros(count, side, side) for _ in range(2))
    for index, make in enumerate(STYLES):
        ground = make(count, side, generator)
        height = torch.where(style == index, ground.height, height)
        kind = torch.where(style == index, ground.kind, kind)
    return Ground(height, kind)
