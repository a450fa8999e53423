"""The bank of maps, made once from a seed: landscapes, starts, zones, and directions to the zone."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from .rules import MAP, SIDES, SPAWN_SQUARE

PLAIN, FOLIAGE, LOW_WALL, WATER, LAVA = range(5)
STYLES = 7
"""Number of styles of a quarter of a map; see :func:`styles`."""


class Landscape(NamedTuple):
    """Contents of the cells of maps, ``[M, side, side]``, row y and column x."""

    height: Tensor  # 0 to 8
    kind: Tensor  # PLAIN to LAVA


# -- the ground of four quarters -----------------------------------------------------------------------------------


class _Tiles:
    """A grid of square tiles, each with its own random numbers.

    Args:
        side: side of the maps.
        pitch: width of a tile.
    """

    def __init__(self, count: int, side: int, pitch: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._across = -(-side // pitch)
        cells = torch.arange(side)
        self._tile = cells // pitch
        self.x, self.y = (cells % pitch)[None, None, :].float(), (cells % pitch)[None, :, None].float()

    def chance(self) -> Tensor:
        """Returns a number in [0, 1) for every tile, repeated for its cells."""
        table = torch.rand(self._count, self._across, self._across, generator=self._generator)
        return table[:, self._tile][:, :, self._tile]

    def whole(self, low: int, high: int) -> Tensor:
        """Returns an integer from low to high for every tile."""
        return (low + self.chance() * (high - low + 1)).floor()

    def boxes(self, chance: float, least: int, most: int) -> Tensor:
        """Returns rectangles of ``least`` to ``most`` cells, one in so many tiles, bool."""
        wide, deep = self.whole(least, most), self.whole(least, most)
        west, south = self.whole(0, 2), self.whole(0, 2)
        inside = (self.x >= west) & (self.x < west + wide) & (self.y >= south) & (self.y < south + deep)
        return inside & (self.chance() < chance)

    def discs(self, chance: float, centre: float, least: float, most: float) -> Tensor:
        """Returns discs of radius ``least`` to ``most`` around a tile's ``centre``, one in so many tiles, bool."""
        radius = least + self.chance() * (most - least)
        shift = [(self.chance() - 0.5) * centre for _ in range(2)]
        away = (self.x - centre - shift[0]) ** 2 + (self.y - centre - shift[1]) ** 2
        return (away < radius * radius) & (self.chance() < chance)


def styles(count: int, side: int, generator: torch.Generator) -> list[Landscape]:
    """Makes maps of each style: buildings, pillars, forest, low walls, craters, ridges with lava, and few pillars."""

    def tiles_of(pitch: int) -> _Tiles:
        return _Tiles(count, side, pitch, generator)

    def pillars(chance: float) -> Tensor:
        tiles = tiles_of(7)
        return tiles.boxes(chance, 1, 2) * tiles.whole(3, 6)

    flat = torch.zeros(count, side, side)
    tiles = tiles_of(10)
    buildings = tiles.boxes(0.7, 4, 7) * tiles.whole(4, 8)
    many_pillars = pillars(0.6)
    trees = torch.rand(count, side, side, generator=generator) < 0.25
    tiles = tiles_of(9)
    lengthwise, row = tiles.chance() < 0.5, tiles.whole(1, 7)
    along, across = torch.where(lengthwise, tiles.x, tiles.y), torch.where(lengthwise, tiles.y, tiles.x)
    walls = (across == row) & (along >= 1) & (along < 8) & (tiles.chance() < 0.7)
    craters = tiles_of(14).discs(0.8, 6.5, 3.0, 6.0)
    tiles = tiles_of(12)
    ridges = tiles.boxes(0.6, 3, 8)
    lava = tiles_of(12).discs(0.7, 5.5, 2.0, 3.5) & ~ridges
    return [
        Landscape(buildings, flat),
        Landscape(many_pillars, flat),
        Landscape(flat, trees * float(FOLIAGE)),
        Landscape(flat, walls * float(LOW_WALL)),
        Landscape(flat, craters * float(WATER)),
        Landscape(ridges * tiles.whole(1, 3), lava * float(LAVA)),
        Landscape(pillars(0.1), flat),
    ]


def landscapes(count: int, side: int, generator: torch.Generator) -> Landscape:
    """Makes maps of four quarters with random styles that meet near the middle."""
    chosen = torch.randint(STYLES, (count, 4), generator=generator)
    split = side // 2 + torch.randint(-6, 7, (2, count, 1), generator=generator)
    cells = torch.arange(side)[None]
    east, north = (cells >= split[0]).long(), (cells >= split[1]).long()
    quarter = (east[:, None, :] + 2 * north[:, :, None]).view(count, -1)
    style = chosen.gather(1, quarter).view(count, side, side)
    height, kind = (torch.zeros(count, side, side) for _ in range(2))
    for index, ground in enumerate(styles(count, side, generator)):
        height = torch.where(style == index, ground.height, height)
        kind = torch.where(style == index, ground.kind, kind)
    return Landscape(height, kind)


# -- directions to the zone ----------------------------------------------------------------------------------------


# x and y of the directions 1 to 8; direction 0 means no movement.
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_COSTS = (2, 2, 2, 2, 3, 3, 3, 3)  # beats of a straight step, and of a diagonal one
_FAR = 20000
_LONGEST = 1200
_FRINGE = 12  # cells from the nearest free one


def flow_field(free: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """Finds shortest paths by a wave that takes two beats for a straight step and three for a diagonal one.

    A diagonal step requires that both adjacent cells are free. Blocked cells point to the nearest free one.

    Args:
        free, goal: ``[M, rows, columns]`` bool, row y and column x.

    Returns the index into :data:`DIRECTIONS` plus 1 (0: at the goal, or no path), uint8, and the beats, int16.
    """
    free = free | goal
    corners = {way: free & _from(free, (way[0], 0)) & _from(free, (0, way[1])) for way in DIRECTIONS[4:]}
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
    beats = torch.where(before[0], beats, _FAR).to(torch.int16)  # _FAR where the wave never came
    outside = beats.clone()
    for _ in range(_FRINGE):
        nearest = torch.stack([_from(outside, way, _FAR) + cost for way, cost in zip(DIRECTIONS, _COSTS)]).amin(0)
        outside = torch.where(free, beats, torch.minimum(outside, nearest))
    score = torch.stack([_from(outside, way, _FAR) + cost for way, cost in zip(DIRECTIONS, _COSTS)])
    for row, way in enumerate(DIRECTIONS):
        open_ = _from(free, way) & corners.get(way, free)
        score[row] = torch.where(free & ~open_, _FAR, score[row])
    best, index = score.min(0)
    return torch.where(goal | (best >= _FAR), 0, index + 1).to(torch.uint8), outside


def _from(field: Tensor, way: tuple[int, int], outside: int = 0) -> Tensor:
    """Returns the field's value one step in a direction from every cell."""
    x, y = way
    rows, columns = field.shape[1:]
    return pad(field, (1, 1, 1, 1), value=outside)[:, 1 + y : 1 + y + rows, 1 + x : 1 + x + columns]


# -- the bank ------------------------------------------------------------------------------------------------------


_LANE = 4.0  # half the width of a lane
_FLANK = 9.0  # distance of a flank's corner from the map's
_CELLS = 2**24  # limit on the cells of all maps, which must be exact integers in float32
_WALL, _LEAVES = 2.0, 2.0


class Maps(NamedTuple):
    """A bank of M maps; layers are ``[M * side * side]`` uint8 with cell ``y * side + x``.

    Attributes:
        height: height of the ground, 0 to 8, which stops shots and smoke.
        sight: height of obstacles to sight, including foliage.
        walk: height of obstacles to movement, including low walls.
        floors: ``[2 * M * side * side]``, the highest ``walk`` within 3 x 3, then within 5 x 5 cells.
        kind: kind of the ground, :data:`PLAIN` to :data:`LAVA`.
        flow: direction to the zone: 0 for none, or a row of :data:`DIRECTIONS` plus 1.
        zone: ``[3, M]`` centre x, y and radius.
        corner: ``[M]`` 0: teams start at the south-west and the north-east, 1: at the north-west and the south-east.
        beats: ``[M, side, side]`` int16, length of the path to the zone in halves of a cell.
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
        """Number of maps M."""
        return len(self.corner)

    @property
    def side(self) -> int:
        """Number of cells along a map's side."""
        return self.beats.shape[-1]

    def to(self, device: torch.device | None) -> Maps:
        """Returns the bank on a device."""
        return Maps(*(layer.to(device) for layer in self))


@lru_cache(maxsize=4, typed=True)
def make_maps(count: int, seed: int, symmetric: bool, side: int = MAP) -> Maps:
    """Makes a bank of maps.

    Args:
        count: M, 1 to 4096 of the usual size.
        symmetric: whether maps look the same from both starts, with the zone in the middle.
        side: cells along a map's side, an even number.

    Raises:
        ValueError: the size or number of maps is impossible.
    """
    if type(side) is not int or side % 2 or not SIDES[0] <= side <= SIDES[1]:
        raise ValueError(f"size: {side!r} is not an even number from {SIDES[0]} to {SIDES[1]}")
    most = _CELLS // side**2
    if not 1 <= count <= most:
        raise ValueError(f"maps: {count} is not possible, a bank has 1 to {most} of size {side}")
    generator = torch.Generator().manual_seed(seed)
    ground = landscapes(count, side, generator)
    corner = torch.randint(2, (count,), generator=generator)
    near, far = SPAWN_SQUARE / 2, side - SPAWN_SQUARE / 2
    first = torch.where(corner == 0, near, far)
    west, east = torch.full_like(first, near), torch.full_like(first, far)
    starts = torch.stack((torch.stack((west, east)), torch.stack((first, side - first))))  # [2 (x, y), 2, M] centres
    radius = (6.0 * (0.5 + torch.rand(count, generator=generator))).clamp_min(4.0)
    if symmetric:
        centre = torch.full((2, count), side / 2.0)
        ground = Landscape(*(_turned(layer) for layer in ground))
    else:
        tries = torch.rand(2, 16, count, generator=generator) * (side - 4 - 2 * radius) + radius + 2
        apart = (tries[:, None] - starts[:, :, None]).abs().amax(0).amin(0)  # from the nearer start, [16, M]
        fits = (apart > SPAWN_SQUARE / 2 + radius).float()
        centre = tries.gather(1, fits.argmax(0).expand(2, 1, count))[:, 0]

    # Starts, zone and lanes, which lead straight to the zone and around a flank, are clear.
    cells = torch.arange(side) + 0.5
    x, y = cells - centre[0, :, None], cells - centre[1, :, None]
    away = (x[:, None, :] ** 2 + y[:, :, None] ** 2).sqrt()
    clear = away < (radius + 1.5)[:, None, None]
    for start in starts.unbind(1):
        x, y = (cells - start[0, :, None]).abs(), (cells - start[1, :, None]).abs()
        clear |= (x[:, None, :] < SPAWN_SQUARE / 2) & (y[:, :, None] < SPAWN_SQUARE / 2)
        inwards = torch.stack((start[0], side - start[1]))  # the corner beside this start
        flank = inwards.clamp(_FLANK, side - _FLANK)
        for one, two in ((start, centre), (start, flank), (flank, centre)):
            way = (two - one)[..., None, None]
            x, y = (cells - one[0, :, None])[:, None, :], (cells - one[1, :, None])[:, :, None]
            share = ((x * way[0] + y * way[1]) / (way**2).sum(0).clamp_min(1e-6)).clamp(0, 1)
            clear |= ((x - share * way[0]) ** 2 + (y - share * way[1]) ** 2).sqrt() < _LANE
    height, kind = (torch.where(clear, 0.0, layer) for layer in ground)

    walk = height + _WALL * (kind == LOW_WALL)
    narrow, wide = (max_pool2d(walk[:, None], size, 1, size // 2)[:, 0] for size in (3, 5))
    near_lava = max_pool2d((kind == LAVA).float()[:, None], 3, 1, 1)[:, 0] > 0
    flow, beats = flow_field((wide <= 1) & ~near_lava, away < 1.0)
    if symmetric:
        opposite = torch.tensor([0, *(1 + DIRECTIONS.index((-x, -y)) for x, y in DIRECTIONS)], dtype=torch.uint8)
        half, back = _turned(flow).view(count, 2, -1).unbind(1)
        flow = torch.stack((half, opposite[back.long()]), 1).view_as(flow)

    def layer(values: Tensor) -> Tensor:
        return values.to(torch.uint8).reshape(-1)

    floors = torch.cat((layer(narrow), layer(wide)))
    sight = layer(height + _LEAVES * (kind == FOLIAGE))
    zone = torch.cat((centre, radius[None]))
    return Maps(layer(height), sight, layer(walk), floors, layer(kind), layer(flow), zone, corner, beats)


def _turned(layer: Tensor) -> Tensor:
    """Replaces the second half of a map by the first half turned by pi."""
    half = layer.reshape(len(layer), 2, -1)[:, 0]
    return torch.stack((half, half.flip(1)), 1).view_as(layer)


# -- reading layers ------------------------------------------------------------------------------------------------


_WITHIN = 1 - 2.0**-23  # the greatest place in a map, as a share of its side


def within(planar: Tensor, side: int) -> Tensor:
    """Moves places ``[2, ...]`` outside a map to its edge."""
    return planar.clamp(0.0, side * _WITHIN)


def cell(planar: Tensor | tuple[Tensor, Tensor], base: Tensor, side: int) -> Tensor:
    """Returns the index of a place within a map in a layer of the bank, int32.

    Args:
        planar: x and y.
        base: first cell of the world's map, ``[W]``; all shapes broadcast.
        side: side of a map.
    """
    x, y = planar
    return torch.add(base.int() + x.int(), y.int(), alpha=side)


def look_up(layer: Tensor, index: Tensor) -> Tensor:
    """Returns the layer's values at an index, in the layer's type."""
    return layer.index_select(0, index.flatten()).view(index.shape)
