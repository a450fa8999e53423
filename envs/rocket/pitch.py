"""Where everything is in a picture of Rocket, and what never moves: the field from above and from the side."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rendering.canvas import Canvas, Colour, Picture, PictureLayout, write
from . import rules

Array = NDArray[Any]

BLUE: Colour = (64, 150, 255)
ORANGE: Colour = (255, 138, 38)
TEAM_COLOURS = (BLUE, ORANGE)
PAPER: Colour = (235, 240, 248)
FAINT: Colour = (136, 150, 172)
NIGHT: Colour = (13, 16, 24)
_TURF, _LINE = (25, 38, 46), (190, 205, 220)
_LENGTH, _WIDTH = 2 * rules.GOAL_BACK, 2 * rules.HALF_WIDTH
_HEIGHTS = (500, 1000, 1500)
_CIRCLE = 915.0
_BOX = (1700.0, 3600.0)  # the areas before the goals: half width, and |y| where they begin


class Layout(PictureLayout):
    """Places in a picture, in pixels; see :class:`~envs.rendering.canvas.PictureLayout`."""

    @property
    def scale(self) -> float:
        """Pixels per uu."""
        high = (self.size[1] - 96 * self.unit) / (_WIDTH + rules.HEIGHT)
        return min(high, (self.size[0] - 2 * 232 * self.unit) / _LENGTH)

    @property
    def above(self) -> tuple[float, float]:
        """The centre of the field, seen from above; +y is to the right, +x up."""
        rest = self.size[1] - 96 * self.unit - (_WIDTH + rules.HEIGHT) * self.scale
        return self.size[0] / 2, 46 * self.unit + rest / 2 + _WIDTH / 2 * self.scale

    @property
    def beside(self) -> tuple[float, float]:
        """The centre of the floor, seen from the side; +y is to the right."""
        return self.size[0] / 2, self.above[1] + (_WIDTH / 2 + rules.HEIGHT) * self.scale + 26 * self.unit

    @property
    def panel(self) -> float:
        """Width of the panels at the left and at the right."""
        return self.size[0] / 2 - _LENGTH / 2 * self.scale

    def canvases(self, picture: Picture) -> tuple[Canvas, Canvas]:
        """To draw from above in (y, -x), and from the side in (y, -z), both in uu."""
        return Canvas(picture, self.scale, self.above), Canvas(picture, self.scale, self.beside)


@lru_cache(maxsize=4)
def background(layout: Layout) -> Picture:
    """The empty field; copy it before drawing on it."""
    width, height = layout.size
    light = np.empty((height, width, 3), np.float32)
    light[:] = NIGHT
    columns, rows = np.arange(width, dtype=np.float32) + 0.5, np.arange(height, dtype=np.float32) + 0.5
    along = ((columns - layout.above[0]) / layout.scale)[None]
    _lay_pitch(light, along, ((layout.above[1] - rows) / layout.scale)[:, None], layout.scale)
    _lay_side(light, along, ((layout.beside[1] - rows) / layout.scale)[:, None], layout.scale)
    picture: Picture = np.clip(light, 0, 255).astype(np.uint8)
    size, faint = layout.points(10), FAINT
    for level in _HEIGHTS:
        top = layout.beside[1] - level * layout.scale
        write(picture, f"{level}", layout.beside[0] - 5240 * layout.scale, top, size, faint, align=1.0)
    left, under = layout.beside[0] - rules.HALF_LENGTH * layout.scale, layout.beside[1] + 11 * layout.unit
    write(picture, "from the side, height in uu", left, under, size, faint)
    return picture


def _lay(light: Array, cover: Array, colour: Colour, opacity: float | Array = 1.0) -> None:
    light += (cover * opacity)[..., None] * (np.array(colour, np.float32) - light)


def _edge(distance: Array, scale: float) -> Array:
    """How much of a pixel is inside of a shape, by the signed distance of its middle, negative inside."""
    return np.clip(0.5 - distance * scale, 0, 1)


def _stroke(distance: Array, width: float, scale: float) -> Array:
    """A line of ``width`` uu, at least a pixel, where the distance is zero."""
    return _edge(np.abs(distance) - max(width, 1.0 / scale) / 2, scale)


def _lay_pitch(light: Array, y: Array, x: Array, scale: float) -> None:
    wide, long = np.abs(x), np.abs(y)
    corner = (wide + long - rules.CORNER) * np.sqrt(0.5)
    outside = np.maximum(np.maximum(wide - rules.HALF_WIDTH, long - rules.HALF_LENGTH), corner)
    beyond = np.maximum(wide - rules.GOAL_HALF_WIDTH, np.maximum(long - rules.GOAL_BACK, rules.HALF_LENGTH - long))
    field = _edge(outside, scale)
    _lay(light, np.clip(1 - outside / 420, 0, 1) ** 2 * (outside > 0), (70, 120, 170), 0.16)
    _lay(light, field, _TURF)
    _lay(light, field * ((np.floor(y / 1024) % 2) == 0), (255, 255, 255), 0.018)
    for side, colour in zip((-1, 1), TEAM_COLOURS):
        _lay(light, field * np.clip(side * y / rules.HALF_LENGTH, 0, 1) ** 1.5, colour, 0.17)
        goal = _edge(np.where(side * y > 0, beyond, 1e6), scale)
        _lay(light, goal, colour, 0.22)
        net = np.maximum(_stroke(_grid(y, 176), 0, scale), _stroke(_grid(x, 178), 0, scale))
        _lay(light, goal * net, colour, 0.25)
        _lay(light, _stroke(np.where(side * y > 0, beyond, 1e6), 34, scale), colour, 0.9)
    _lay(light, field * np.clip(1 + outside / rules.LOW_RAMP, 0, 1), (0, 0, 0), 0.28)  # the rise to the walls
    box = np.maximum(wide - _BOX[0], _BOX[1] - long)
    box = np.where(long < rules.HALF_LENGTH, box, 1e6)
    circle = np.hypot(x, y) - _CIRCLE
    for distance in (y + 0 * x, circle, box):
        _lay(light, field * _stroke(distance, 26, scale), _LINE, 0.32)
    _lay(light, _edge(np.hypot(x, y) - 70, scale), _LINE, 0.5)
    wall = np.where((wide < rules.GOAL_HALF_WIDTH) & (long > rules.HALF_LENGTH - 200), 1e6, outside)
    _lay(light, _stroke(wall, 40, scale), _LINE, 0.85)


def _lay_side(light: Array, y: Array, z: Array, scale: float) -> None:
    long = np.abs(y)
    hall = np.maximum(np.abs(z - rules.HEIGHT / 2) - rules.HEIGHT / 2, long - rules.HALF_LENGTH)
    lower = np.abs(z - rules.GOAL_HEIGHT / 2) - rules.GOAL_HEIGHT / 2
    goals = np.maximum(lower, np.maximum(long - rules.GOAL_BACK, rules.HALF_LENGTH - long))
    field = _edge(hall, scale)
    _lay(light, field, (20, 28, 36))
    for side, colour in zip((-1, 1), TEAM_COLOURS):
        _lay(light, field * np.clip(side * y / rules.HALF_LENGTH, 0, 1) ** 1.5, colour, 0.14)
        goal = np.where(side * y > 0, goals, 1e6)
        _lay(light, _edge(goal, scale), colour, 0.25)
        _lay(light, _stroke(goal, 34, scale), colour, 0.9)
    for level in _HEIGHTS:
        _lay(light, field * _stroke(z - level + 0 * y, 0, scale), _LINE, 0.14)
    _lay(light, field * _stroke(y + 0 * z, 0, scale), _LINE, 0.2)
    mouth = (z < rules.GOAL_HEIGHT) & (long > rules.HALF_LENGTH - 100)
    _lay(light, _stroke(np.where(mouth & (z > 60), 1e6, hall), 34, scale), _LINE, 0.8)
    _lay(light, _stroke(np.maximum(np.abs(z), long - rules.GOAL_BACK), 34, scale), _LINE, 0.8)


def _grid(where: Array, period: float) -> Array:
    return np.abs(np.remainder(where + period / 2, period) - period / 2)
