"""Draws moments of MarineNav on a chart.

The world frame is North-East-Down; pictures have north (x) up and east (y) to the right, the view from above: a
positive yaw turns a vessel clockwise, to starboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..rendering.canvas import WHITE, Canvas, Colour, Legend, Picture, box, write
from .dynamics import current
from .rules import MAP_SIZE, MarineNavRules

Array = NDArray[Any]

COLOURS: tuple[Colour, ...] = (
    *((31, 111, 180), (224, 123, 18), (42, 157, 74), (142, 68, 173), (184, 134, 11)),
    *((214, 51, 138), (15, 154, 168), (122, 74, 33), (91, 103, 112), (58, 47, 191)),
)
"""Colours of robots."""
INK: Colour = (34, 49, 63)
WATER: Colour = (234, 243, 249)
CURRENT: Colour = (74, 144, 194)
ROCK: Colour = (154, 165, 173)
FAILURE: Colour = (192, 57, 43)
SUCCESS: Colour = (30, 132, 73)
_OUTSIDE, _SHORE, _ROCK_EDGE = (223, 234, 242), (159, 184, 200), (60, 64, 67)
LEGEND: Legend = (
    *(("★", "goal", INK), ("○", "start", INK), ("●", "obstacle", ROCK)),
    *(("✖", "collision", FAILURE), ("○", "vortex core", CURRENT)),
    *(("▶", "robot and its way, in its colour", COLOURS[0]), ("○", "perceived, in its colour", COLOURS[0])),
)
_MAX_MARGIN = 20.0
_WAY_POINTS = 100


def colour_of(robot: int) -> Colour:
    """Returns a robot's colour."""
    return COLOURS[robot % len(COLOURS)]


@dataclass(frozen=True)
class Chart:
    """A square of a picture that shows the map, in pixels, and the part of the world that it shows, in m."""

    left: int
    top: int
    side: int
    north: float
    west: float
    metres: float

    @property
    def scale(self) -> float:
        """Pixels per metre."""
        return self.side / self.metres

    def canvas(self, picture: Picture) -> Canvas:
        """Returns a canvas on the square of a picture, with coordinates (y, -x)."""
        part = picture[self.top : self.top + self.side, self.left : self.left + self.side]
        return Canvas(part, self.scale, (-self.west * self.scale, self.north * self.scale))

    def pixel(self, place: Array) -> tuple[float, float]:
        """Returns the pixel of a place on the picture."""
        return self.left + (place[1] - self.west) * self.scale, self.top + (self.north - place[0]) * self.scale

    def write_axes(self, picture: Picture) -> None:
        """Writes metres to the north and east beside the square."""
        bottom = self.top + self.side
        for metres in range(-20, 81, 10):
            x, y = self.pixel(np.array([metres, metres]))
            if self.left <= x <= self.left + self.side:
                write(picture, f"{metres}", x, bottom + 13, 13, INK, 0.5)
            if self.top <= y <= bottom:
                write(picture, f"{metres}", self.left - 8, y, 13, INK, 1.0)
        write(picture, "y, east [m]", self.left + self.side / 2, bottom + 33, 13, INK, 0.5)
        write(picture, "x, north [m]", self.left, self.top - 14, 13, INK, 0.5)


def view(paths: Array, room: float) -> tuple[float, float, float]:
    """Returns the northern and western edge and the side of a chart, m: the map, extended if robots leave it.

    Args:
        paths: places of robots, ``[n, 2]`` north and east.
        room: margin around them.
    """
    lower = np.clip(paths.min(axis=0, initial=MAP_SIZE) - room, -_MAX_MARGIN, -2.0)
    upper = np.clip(paths.max(axis=0, initial=0.0) + room, MAP_SIZE + 2.0, MAP_SIZE + _MAX_MARGIN)
    side, middle = (upper - lower).max(), (upper + lower) / 2
    return float(middle[0] + side / 2), float(middle[1] - side / 2), float(side)


def on_map(points: Array) -> Array:
    """Converts places ``[..., 2 or more]``, north and east, to (right, down) on a canvas."""
    return np.stack((points[..., 1], -points[..., 0]), -1)


def to_world(pose: Array, points: Array) -> Array:
    """Converts points ``[P, 2]`` in a robot's axes to places; ``pose`` is x, y and heading."""
    cos, sin = np.cos(pose[2]), np.sin(pose[2])
    x, y = points[..., 0], points[..., 1]
    return np.stack((cos * x - sin * y, sin * x + cos * y), axis=-1) + pose[:2]


def draw_water(canvas: Canvas, cores: Array, obstacles: Array) -> None:
    """Draws the map with its current, vortex cores ``[C, 4]`` and obstacles ``[K, 3]``."""
    pixel, side, (left, bottom) = 1 / canvas.scale, MAP_SIZE * canvas.scale, canvas.corner
    canvas.picture[:] = _OUTSIDE
    for margin, colour in ((1, _SHORE), (0, WATER)):
        box(canvas.picture, left - margin, bottom - side - margin, side + 2 * margin, side + 2 * margin, colour)
    if len(cores):
        _draw_current(canvas, cores)
    for core in cores:
        radius = float(MarineNavRules().core_radius)
        canvas.disc(on_map(core), radius, WHITE)
        canvas.ring(on_map(core), radius, 1.5 * pixel, CURRENT)
    for rock in obstacles:
        canvas.disc(on_map(rock), rock[2], ROCK)
        canvas.ring(on_map(rock), rock[2], 1.2 * pixel, _ROCK_EDGE)


def _draw_current(canvas: Canvas, cores: Array) -> None:
    """Draws faint arrows as long as the root of the speed, since the speed itself decreases too steeply."""
    places = np.linspace(1.0, MAP_SIZE - 1.0, 28)
    x, y = (grid.reshape(-1, 1) for grid in np.meshgrid(places, places))
    columns = torch.as_tensor(cores, dtype=torch.float64).T[..., None]
    radius = float(MarineNavRules().core_radius)
    flow = torch.cat(current(torch.as_tensor(x), torch.as_tensor(y), columns, radius), dim=1).numpy()
    flow = flow / np.sqrt(np.linalg.norm(flow, axis=1, keepdims=True) + 1e-9)
    for tail, way in zip(on_map(np.concatenate((x, y), 1)), on_map(flow / 0.75)):
        tip, ahead = tail + way, 0.45 * way / max(float(np.hypot(*way)), 1e-6)
        aside = 0.4 * np.array([-ahead[1], ahead[0]])
        canvas.line(tail, tip - ahead, 0.11, CURRENT, 0.45)
        canvas.polygon(np.array([tip, tip - ahead + aside, tip - ahead - aside]), CURRENT, 0.45)


def draw_task(canvas: Canvas, robot: int, start: Array, goal: Array) -> None:
    """Draws a robot's start and its goal, a star, in its colour."""
    pixel, colour = 1 / canvas.scale, colour_of(robot)
    canvas.ring(on_map(start), 4.5 * pixel, 1.4 * pixel, colour)
    for radius, tint in ((11.5 * pixel, WHITE), (10 * pixel, colour)):
        turns = np.arange(11) * np.pi / 5
        away = np.where(np.arange(11) % 2, 0.4, 1.0)[:, None] * np.stack((np.sin(turns), -np.cos(turns)), -1)
        corners = on_map(goal) + radius * away
        canvas.disc(on_map(goal), 0.4 * radius, tint)
        for tip in range(0, 10, 2):
            canvas.polygon(np.stack((corners[tip - 1 if tip else 9], *corners[tip : tip + 2], on_map(goal))), tint)


def draw_way(canvas: Canvas, robot: int, places: Array) -> None:
    """Draws a robot's way, which brightens with time."""
    every = max(1, len(places) // _WAY_POINTS)
    kept = np.concatenate((places[::every], places[-1:]))
    canvas.way(on_map(kept), 2 / canvas.scale, colour_of(robot))


def draw_vessel(canvas: Canvas, robot: int, pose: Array, size: tuple[float, float], opacity: float = 1.0) -> None:
    """Draws a hull: a square stern, and a bow pointed over the front half; ``size`` is its length and width."""
    length, width = size
    along = np.linspace(0.0, 1.0, 7)
    starboard = np.column_stack((0.5 * length * along, 0.5 * width * (1 - along**2)))
    stern = np.array([[-0.5, -0.5], [-0.5, 0.5]]) * (length, width)
    hull = np.concatenate((stern, starboard, starboard[-2::-1] * (1, -1)))
    outline = on_map(to_world(pose, hull))[::-1]
    canvas.polygon(outline, colour_of(robot), opacity)
    canvas.polygon(outline, INK, opacity, line=1.2 / canvas.scale)


def draw_perceived(canvas: Canvas, robot: int, pose: Array, objects: Array) -> None:
    """Draws what a robot perceives ``[n, 5]`` (position in its axes, velocity, radius) as rings in its colour."""
    for place, radius in zip(on_map(to_world(pose, objects[:, :2])), objects[:, 4]):
        canvas.ring(place, float(radius), 1.4 / canvas.scale, colour_of(robot), 0.5)


def draw_crash(canvas: Canvas, place: Array) -> None:
    """Draws a cross."""
    size, at = 7 / canvas.scale, on_map(place)
    for width, colour in ((6.5, WHITE), (4.0, FAILURE)):
        for way in (np.array([size, size]), np.array([size, -size])):
            canvas.line(at - way, at + way, width / canvas.scale, colour)
