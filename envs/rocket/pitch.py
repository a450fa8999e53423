"""Draws a match: the pitch from above and from the side, with cars, ball and pads, and the numbers of both teams."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..recording import Frames
from ..rendering.canvas import (
    WHITE,
    Canvas,
    Colour,
    Picture,
    PictureLayout,
    box,
    meter,
    mixed,
    shortened,
    width_of,
    write,
)
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
_BOX = (1700.0, 3600.0)  # the areas before the goals: half width, and |y| at which they begin
_BALL: Colour = (238, 240, 244)
_BIG, _SMALL = (255, 205, 60), (235, 200, 110)
_BLACK: Colour = (0, 0, 0)
_LARGER = 2.9  # factor by which cars are enlarged for visibility
_BALL_LARGER = 1.8
_NEARER = 0.55  # relative enlargement of objects under the ceiling
_SHADOW = np.array([0.16, 0.30])  # per uu of height, to the right and down
ABSENT = -1
"""Value of ``gone`` for an absent car."""
BOOST: Colour = (255, 190, 70)
_FAST: Colour = (120, 255, 190)
_OUT: Colour = (255, 90, 90)
_PLATE: Colour = (24, 29, 41)
_ROW = 118  # of a car, in lines of 720
_CABIN = ((-38.0, 22.0), (-0.40, 0.40), (0.05, 0.62))  # in the hitbox: rear to front in uu, shares across and up


class RocketPictureLayout(PictureLayout):
    """The layout of a picture in pixels; see :class:`~rlstack.envs.rendering.canvas.PictureLayout`."""

    @property
    def scale(self) -> float:
        """Pixels per uu."""
        high = (self.size[1] - 96 * self.unit) / (_WIDTH + rules.HEIGHT)
        return min(high, (self.size[0] - 2 * 232 * self.unit) / _LENGTH)

    @property
    def above(self) -> tuple[float, float]:
        """Centre of the field, seen from above; +y is to the right, +x up."""
        rest = self.size[1] - 96 * self.unit - (_WIDTH + rules.HEIGHT) * self.scale
        return self.size[0] / 2, 46 * self.unit + rest / 2 + _WIDTH / 2 * self.scale

    @property
    def beside(self) -> tuple[float, float]:
        """Centre of the floor, seen from the side; +y is to the right."""
        return self.size[0] / 2, self.above[1] + (_WIDTH / 2 + rules.HEIGHT) * self.scale + 26 * self.unit

    @property
    def panel(self) -> float:
        """Width of the left and right panels."""
        return self.size[0] / 2 - _LENGTH / 2 * self.scale

    def canvases(self, picture: Picture) -> tuple[Canvas, Canvas]:
        """Returns canvases from above with coordinates (y, -x), and from the side with (y, -z), both in uu."""
        return Canvas(picture, self.scale, self.above), Canvas(picture, self.scale, self.beside)


@lru_cache(maxsize=4)
def background(layout: RocketPictureLayout) -> Picture:
    """Returns the empty field; copy it before drawing on it."""
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
    """Returns the share of a pixel inside a shape from the signed distance of its centre, negative inside."""
    return np.clip(0.5 - distance * scale, 0, 1)


def _stroke(distance: Array, width: float, scale: float) -> Array:
    """Returns a line of ``width`` uu, at least a pixel, along zero distance."""
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
    area = np.maximum(wide - _BOX[0], _BOX[1] - long)
    area = np.where(long < rules.HALF_LENGTH, area, 1e6)
    circle = np.hypot(x, y) - _CIRCLE
    for distance in (y + 0 * x, circle, area):
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


def team_colour(car: int, cars: int) -> Colour:
    """Returns the colour of a car's team; the first half of the cars is blue."""
    return TEAM_COLOURS[int(car >= cars // 2)]


def above(points: Array) -> Array:
    """Converts points ``[..., 3]`` to the view from above."""
    return np.stack((points[..., 1], -points[..., 0]), -1)


def beside(points: Array) -> Array:
    """Converts points ``[..., 3]`` to the view from the side."""
    return np.stack((points[..., 1], -points[..., 2]), -1)


def nearness(height: float) -> float:
    """Returns the factor by which an object at a height looks larger from above."""
    return 1.0 + _NEARER * float(np.clip(height / rules.HEIGHT, 0, 1))


def on_field(now: Frames) -> list[int]:
    """Returns the cars on the field in a single state."""
    return [int(car) for car in np.flatnonzero(now.gone == 0)]


def draw_pads(canvas: Canvas, now: Frames) -> None:
    """Draws pads: available ones shine, others fill up as their time passes."""
    for place, wait in zip(rules.PADS, now.pads):
        big = place in rules.BIG_PADS
        at = above(np.array([*place, 0.0]))
        radius, colour = (150.0, _BIG) if big else (62.0, _SMALL)
        if wait <= 0:
            canvas.disc(at, radius * (0.62 if big else 0.8), colour, 0.95, glow=0.22 if big else 0.08)
            if big:
                canvas.ring(at, radius, 26.0, colour, 0.9)
        else:
            share = 1.0 - float(wait) / (rules.BIG_TICKS if big else rules.SMALL_TICKS)
            canvas.ring(at, radius, 22.0, colour, 0.22)
            canvas.ring(at, radius, 22.0, colour, 0.5, share=share)


def draw_shadows(canvas: Canvas, now: Frames) -> None:
    """Draws shadows, which are farther away for higher objects and joined to them by fine lines."""
    for car in on_field(now):
        height = max(float(now.position[car, 2]) - rules.CAR_REST, 0.0)
        corners = _hull(above(_box(now, car, _LARGER)))
        canvas.polygon(corners + height * _SHADOW, _BLACK, 0.5 - 0.2 * min(height / 1500, 1.0))
        if height > 60:
            at = above(now.position[car])
            _stem(canvas, at, at + height * _SHADOW, team_colour(car, len(now.boost)))
    height = max(float(now.ball_position[2]) - rules.BALL_REST, 0.0)
    at = above(now.ball_position)
    canvas.disc(at + height * _SHADOW, rules.BALL_RADIUS * _BALL_LARGER, _BLACK, 0.5 - 0.2 * min(height / 1500, 1.0))
    if height > 60:
        _stem(canvas, at, at + height * _SHADOW, _BALL)


def _stem(canvas: Canvas, top: Array, foot: Array, colour: Colour) -> None:
    canvas.streak(foot, foot + 4 * (top - foot), 14.0, colour, 0.35)


def draw_cars(canvas: Canvas, now: Frames, from_side: bool = False) -> None:
    """Draws cars as oriented boxes with a cabin, the lowest first, with flames behind those that boost."""
    project, depth = (beside, 0) if from_side else (above, 2)
    for car in sorted(on_field(now), key=lambda car: float(now.position[car, depth])):
        size = _LARGER * (1.0 if from_side else nearness(float(now.position[car, 2])))
        colour = team_colour(car, len(now.boost))
        if now.boosting[car]:
            _draw_flame(canvas, now, car, size, project)
        corners = _hull(project(_box(now, car, size)))
        canvas.polygon(corners, mixed(_BLACK, colour, 0.8), glow=0.18, spread=70.0)
        canvas.polygon(corners, mixed(colour, WHITE, 0.25), line=18.0)
        canvas.polygon(_hull(project(_cabin(now, car, size))), mixed(colour, WHITE, 0.72), 0.95)


def _draw_flame(canvas: Canvas, now: Frames, car: int, size: float, project: Any) -> None:
    forward, up = now.rotation[car, 0], now.rotation[car, 2]
    stern = now.position[car] + up * 20.0 - forward * 42.0 * size
    flicker = 0.8 + 0.2 * np.sin(1.3 * now.clock + 2.0 * car)
    head, tail = project(stern), project(stern - forward * 105.0 * size * flicker)
    canvas.streak(head, tail, 34.0 * size, BOOST, 0.9, glow=0.5, spread=60.0)
    canvas.streak(head, (head + tail) / 2, 18.0 * size, WHITE, 0.9)


def draw_ball(canvas: Canvas, now: Frames, trail: Array, from_side: bool = False, ring: Colour | None = None) -> None:
    """Draws the ball and its trail.

    Args:
        trail: recent places ``[n, 3]``, oldest first.
        ring: colour of the team that has just touched it.
    """
    project = beside if from_side else above
    size = rules.BALL_RADIUS * _BALL_LARGER * (1.0 if from_side else nearness(float(now.ball_position[2])))
    at = project(now.ball_position)
    points = project(np.concatenate((trail, now.ball_position[None])))
    for place, (start, end) in enumerate(pairwise(points), 1):
        share = place / len(points)
        if np.hypot(*(end - start)) > 1:
            canvas.streak(end, 2 * start - end, 1.1 * size * share, _BALL, 0.32 * share)
    if ring is not None:
        canvas.ring(at, 1.45 * size, 34.0, ring, 0.95)
    canvas.disc(at, size, mixed(_BLACK, _BALL, 0.55), glow=0.10)
    canvas.disc(at - 0.10 * size, 0.86 * size, mixed(_BLACK, _BALL, 0.82))
    canvas.disc(at - 0.22 * size, 0.58 * size, _BALL)


def draw_flight(canvas: Canvas, path: Array, landing: Array | None, from_side: bool = False) -> None:
    """Draws the forecast path of the ball as dots, and a cross-hair at its landing.

    Args:
        path: places ``[n, 3]`` up to the landing.
    """
    project = beside if from_side else above
    for place, point in enumerate(path):
        canvas.disc(project(point), 22.0, _BALL, 0.55 * (1 - 0.6 * place / max(len(path), 1)))
    if landing is None:
        return
    at = project(landing)
    if from_side:
        canvas.disc(at, 46.0, _BALL, 0.9)
        return
    size = rules.BALL_RADIUS * _BALL_LARGER
    canvas.ring(at, size, 24.0, _BALL, 0.85)
    for axis in np.eye(2):
        for sign in (-1.0, 1.0):
            head = at + sign * 1.55 * size * axis
            canvas.streak(head, head - sign * 2.2 * size * axis, 24.0, _BALL, 0.85)


def _box(now: Frames, car: int, size: float) -> Array:
    """Returns the hitbox's corners ``[8, 3]``."""
    half = np.array(rules.HITBOX) / 2
    signs = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    return _placed(now, car, (np.array(rules.HITBOX_CENTRE) + signs * half) * size)


def _cabin(now: Frames, car: int, size: float) -> Array:
    """Returns the corners of the cabin, which indicates forward and up."""
    (rear, front), across, (low, high) = _CABIN
    _, width, height = rules.HITBOX
    middle = rules.HITBOX_CENTRE[2]
    corners = [
        [x * (1.0 if z == low else 0.8), y * width, middle + z * height]
        for x in (rear, front)
        for y in across
        for z in (low, high)
    ]
    return _placed(now, car, np.array(corners) * size)


def _placed(now: Frames, car: int, local: Array) -> Array:
    return now.position[car] + local @ now.rotation[car]


def _hull(points: Array) -> Array:
    """Returns the convex hull of points ``[n, 2]``, clockwise with y down (Andrew's monotone chain)."""
    ordered = sorted(map(tuple, points.tolist()))

    def chain(places: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        kept: list[tuple[float, ...]] = []
        for x, y in places:
            while len(kept) > 1 and _turn(kept[-2], kept[-1], (x, y)) <= 1e-6:
                kept.pop()
            kept.append((x, y))
        return kept[:-1]

    return np.array(chain(ordered) + chain(ordered[::-1]))


def _turn(a: tuple[float, ...], b: tuple[float, ...], c: tuple[float, ...]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


# -- numbers -----------------------------------------------------------------------------------------------------------


def draw_numbers(picture: Picture, layout: RocketPictureLayout, now: Frames) -> None:
    """Writes the number of every car above it if teams have several."""
    half = len(now.boost) // 2
    for car in on_field(now) if half > 1 else ():
        x, y = above(now.position[car]) * layout.scale + np.array(layout.above)
        write(picture, f"{car % half + 1}", x, y - 15 * layout.unit, layout.points(11), PAPER, 0.5, bold=True)


def draw_clock(picture: Picture, layout: RocketPictureLayout, now: Frames, title: str) -> None:
    """Draws minutes and seconds since the kick-off in the middle, with a title on the left."""
    seconds = now.clock / rules.TICKS_PER_SECOND
    text = f"{int(seconds // 60)}:{seconds % 60:04.1f}"
    y = 23 * layout.unit
    write(picture, text, layout.size[0] / 2, y, layout.points(26), PAPER, 0.5, bold=True)
    if title:
        left = layout.above[0] - 5900 * layout.scale
        write(picture, title, left, y, layout.points(13), FAINT)
    speed = float(np.linalg.norm(now.ball_velocity))
    right = layout.above[0] + 5900 * layout.scale
    write(picture, f"ball {speed:,.0f} uu/s", right, y, layout.points(13), FAINT, 1.0)


def draw_panels(
    picture: Picture,
    layout: RocketPictureLayout,
    now: Frames,
    players: Sequence[str],
    goals: Sequence[int],
    touches: Sequence[int],
) -> None:
    """Draws a column for each team with its player, its goals and its cars.

    Args:
        players: names of blue's and orange's players.
        goals: goals of blue and orange.
        touches: each car's touches of the ball so far.
    """
    unit, cars = layout.unit, len(now.boost)
    for team, colour in enumerate(TEAM_COLOURS):
        width = layout.panel - 24 * unit
        left = 12 * unit if team == 0 else layout.size[0] - 12 * unit - width
        box(picture, left, 12 * unit, width, 128 * unit, _PLATE)
        box(picture, left, 12 * unit, width, 4 * unit, colour)
        name, size = players[team], layout.points(18)
        while width_of(name, size, True) > width - 16 * unit and size > layout.points(10):
            size -= 1
        write(
            picture, shortened(name, size, width - 16 * unit), left + width / 2, 36 * unit, size, PAPER, 0.5, bold=True
        )
        write(picture, f"{goals[team]}", left + width / 2, 94 * unit, layout.points(70), colour, 0.5, bold=True)
        half = cars // 2
        there = [car for car in range(team * half, (team + 1) * half) if now.gone[car] != ABSENT]
        for row, car in enumerate(there):
            top = (152 + row * _ROW) * unit
            number = car % half + 1 if len(there) > 1 else 0
            _draw_car(picture, layout, now, car, (left, top, width), (number, touches[car]), colour)


def _draw_car(
    picture: Picture,
    layout: RocketPictureLayout,
    now: Frames,
    car: int,
    place: tuple[float, float, float],
    numbers: tuple[int, int],
    colour: Colour,
) -> None:
    """Draws a car's plate; ``numbers`` are its number in the team (0 for a single car) and its touches."""
    (left, top, width), unit, size = place, layout.unit, layout.points(13)
    box(picture, left, top, width, (_ROW - 10) * unit, _PLATE)
    gone = int(now.gone[car])
    text, tint = _state(now, car) if gone == 0 else (f"back in {gone / rules.TICKS_PER_SECOND:.1f} s", _OUT)
    x, right = left + 12 * unit, left + width - 12 * unit
    head = f"car {numbers[0]}" if numbers[0] else "car"
    write(picture, head, x, top + 15 * unit, size, colour, bold=True)
    write(picture, text, right, top + 15 * unit, size, tint, 1.0)
    speed = float(np.linalg.norm(now.velocity[car])) if gone == 0 else 0.0
    fast = speed >= rules.SUPERSONIC_KEPT
    bars = (
        ("speed", speed, f"{speed:,.0f}", rules.CAR_TOP_SPEED, _FAST if fast else PAPER),
        ("boost", float(now.boost[car]), f"{now.boost[car]:.0f}", rules.BOOST_MOST, BOOST),
    )
    for row, (name, value, number, most, shade) in enumerate(bars):
        y = top + (39 + 26 * row) * unit
        write(picture, name, x, y, size, FAINT)
        begin, end = x + 48 * unit, right - 44 * unit
        meter(picture, (begin, end), y, 12 * unit, value / most, shade, FAINT)
        write(picture, number, right, y, size, PAPER, 1.0)
    write(picture, f"touches {numbers[1]}", x, top + 92 * unit, size, FAINT)
    height = max(float(now.position[car, 2]) - rules.CAR_REST, 0.0)
    if gone == 0:
        write(picture, f"height {height:,.0f}", right, top + 92 * unit, size, FAINT, 1.0)


def _state(now: Frames, car: int) -> tuple[str, Colour]:
    fast = float(np.linalg.norm(now.velocity[car])) >= rules.SUPERSONIC
    if now.wheels[car] >= 3:
        on_wall = now.position[car, 2] > 60
        return ("on the wall" if on_wall else "supersonic" if fast else "on the ground"), _FAST if fast else FAINT
    return "in the air", PAPER
