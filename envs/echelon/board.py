"""Where everything is in a picture of Echelon, and what never moves: the map from above, y up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rendering.canvas import Canvas, Colour, Picture, PictureLayout
from .landscapes import FOLIAGE, LAVA, LOW_WALL, WATER
from .rules import MAP
from .story import Ground

Array = NDArray[Any]

BLUE: Colour = (74, 158, 255)
RED: Colour = (255, 92, 84)
TEAM_COLOURS = (BLUE, RED)
TEAM_LIGHT: tuple[Colour, Colour] = ((190, 222, 255), (255, 200, 196))
PAPER: Colour = (235, 240, 248)
FAINT: Colour = (140, 152, 172)
NIGHT: Colour = (12, 15, 21)
PLATE: Colour = (24, 29, 40)
_FLOOR: Colour = (34, 40, 48)
_TOP: Colour = (150, 156, 166)
_KINDS: dict[int, Colour] = {FOLIAGE: (36, 70, 46), WATER: (26, 62, 104), LAVA: (150, 58, 22), LOW_WALL: (108, 98, 74)}
_HIGHEST = 8.0
_HEAD, _FOOT = 66, 10


@dataclass(frozen=True)
class Layout(PictureLayout):
    """Places in a picture, in pixels; see :class:`~envs.rendering.canvas.PictureLayout`.

    Args:
        side: of the map, in voxels.
    """

    side: int = MAP

    @property
    def scale(self) -> float:
        """Pixels per voxel."""
        high = self.size[1] - (_HEAD + _FOOT) * self.unit
        return min(high, self.size[0] - 2 * 300 * self.unit) / self.side

    @property
    def corner(self) -> tuple[float, float]:
        """The map's lower left corner, (0, 0)."""
        rest = self.size[1] - (_HEAD + _FOOT) * self.unit - self.side * self.scale
        return (self.size[0] - self.side * self.scale) / 2, _HEAD * self.unit + rest / 2 + self.side * self.scale

    @property
    def panel(self) -> float:
        """Width of the panels at the left and at the right."""
        return self.corner[0]

    def canvas(self, picture: Picture) -> Canvas:
        """To draw in (x, -y), in voxels."""
        return Canvas(picture, self.scale, self.corner)


def background(layout: Layout, ground: Ground) -> Picture:
    """The empty map."""
    width, height = layout.size
    light = np.empty((height, width, 3), np.float32)
    light[:] = NIGHT
    x = (np.arange(width) + 0.5 - layout.corner[0]) / layout.scale
    y = (layout.corner[1] - np.arange(height) - 0.5) / layout.scale
    columns, rows = (np.flatnonzero((values >= 0) & (values < ground.side)) for values in (x, y))
    part = np.ix_(rows, columns)
    light[part] = _lit(ground, x[columns][None], y[rows][:, None], layout.scale)
    edge = np.maximum(np.maximum(-x, x - ground.side)[None], np.maximum(-y, y - ground.side)[:, None])
    _lay(light, np.clip(1.5 - np.abs(edge * layout.scale - 1), 0, 1), FAINT, 0.6)
    picture: Picture = np.clip(light, 0, 255).astype(np.uint8)
    return picture


def _lit(ground: Ground, x: Array, y: Array, scale: float) -> Array:
    """The colour of every pixel on the map."""
    column, row = x.astype(int) + 0 * y.astype(int), y.astype(int) + 0 * x.astype(int)
    tall = ground.height[row, column].astype(np.float32)
    share = (tall / _HIGHEST)[..., None]
    floor, top = np.array(_FLOOR, np.float32), np.array(_TOP, np.float32)
    light = np.where(share > 0, floor + (0.22 + 0.78 * share) * (top - floor), floor)
    kind = ground.kind[row, column]
    _lay(light, ((column // 8 + row // 8) % 2 == 0) & (tall == 0), (255, 255, 255), 0.016)
    inner = np.minimum(np.minimum(x % 1, 1 - x % 1), np.minimum(y % 1, 1 - y % 1))
    ripple = 0.5 + 0.5 * np.sin(2.1 * x + 1.3 * np.sin(1.7 * y)) * np.sin(1.9 * y)
    for name, colour in _KINDS.items():
        here = (kind == name) & (tall == 0)
        strength: Any = 0.95
        if name == FOLIAGE:
            away = np.hypot(x % 1 - 0.5, y % 1 - 0.5)
            strength = 0.5 + 0.5 * np.clip(1 - 1.6 * away, 0, 1)
            _lay(light, here * np.clip((0.42 - away) * scale, 0, 1), (62, 118, 70), 0.75)
            strength = strength * (away > 0.42)
        elif name in (WATER, LAVA):
            strength = 0.75 + 0.25 * ripple
        elif name == LOW_WALL:
            strength = 0.55 + 0.45 * (inner > 0.12)
        _lay(light, here * strength, colour)
    _lay(light, ((kind == LAVA) & (tall == 0)) * np.clip(ripple - 0.55, 0, 1) * 1.6, (255, 170, 60))
    return _with_edges(light, ground, x, y, scale)


def _with_edges(light: Array, ground: Ground, x: Array, y: Array, scale: float) -> Array:
    """What is higher throws a shadow to the lower right and has bright upper left edges."""
    column, row = x.astype(int) + 0 * y.astype(int), y.astype(int) + 0 * x.astype(int)
    tall = ground.height[row, column].astype(np.float32)
    for reach in (0.25, 0.5, 0.75, 1.0):
        other = _at(ground.height, x - reach, y + reach)
        _lay(light, (other > tall) * np.clip((other - tall) / 4, 0.25, 1) * (1.15 - reach), (0, 0, 0), 0.26)
    line = max(0.12, 1.0 / scale)
    for right, up, colour, most in ((-line, 0, (255,) * 3, 0.30), (0, line, (255,) * 3, 0.30),
                                    (line, 0, (0,) * 3, 0.35), (0, -line, (0,) * 3, 0.35)):  # fmt: skip
        lower = _at(ground.height, x + right, y + up) < tall
        _lay(light, lower, colour, most)
    return light


def _at(layer: Array, x: Array, y: Array) -> Array:
    edge = len(layer) - 1e-3
    column, row = np.clip(x, 0, edge).astype(int), np.clip(y, 0, edge).astype(int)
    found: Array = layer[row + 0 * column, column + 0 * row].astype(np.float32)
    return found


def _lay(light: Array, cover: Array, colour: Any, opacity: float = 1.0) -> None:
    light += (cover * opacity)[..., None] * (np.array(colour, np.float32) - light)
