"""Recordings of Rocket's episodes: their states, films and files, and how a match is drawn, from above and beside."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..foundation.files import check_archive, replacing
from ..recording import Columns, EpisodeRecorder, EpisodeRecording, Frames, Row, find_time
from ..rendering.canvas import (
    BLACK,
    FAINT,
    NIGHT,
    PAPER,
    PLATE,
    WHITE,
    Canvas,
    Colour,
    Legend,
    Picture,
    PictureLayout,
    banner,
    box,
    lay,
    meter,
    mixed,
    shortened,
    width_of,
    write,
)
from ..rendering.films import Animation
from . import rules
from .match import TEAMS
from .prediction import forecast
from .state import Ball

Array = NDArray[Any]

BLUE: Colour = (64, 150, 255)
ORANGE: Colour = (255, 138, 38)
TEAM_COLOURS = (BLUE, ORANGE)
_TURF, _LINE = (25, 38, 46), (190, 205, 220)
_LENGTH, _WIDTH = 2 * rules.GOAL_BACK, 2 * rules.HALF_WIDTH
_HEIGHTS = (500, 1000, 1500)
_CIRCLE = 915.0
_BOX = (1700.0, 3600.0)  # the areas before the goals: half width, and |y| at which they begin
_BALL: Colour = (238, 240, 244)
_BIG, _SMALL = (255, 205, 60), (235, 200, 110)
_LARGER = 2.9  # factor by which cars are enlarged for visibility
_BALL_LARGER = 1.8
_NEARER = 0.55  # relative enlargement of objects under the ceiling
_SHADOW = np.array([0.16, 0.30])  # per uu of height, to the right and down
ABSENT = -1
"""Value of ``gone`` for an absent car."""
BOOST: Colour = (255, 190, 70)
_FAST: Colour = (120, 255, 190)
_OUT: Colour = (255, 90, 90)
_ROW = 118  # of a car, in lines of 720
_CABIN = np.array(
    [
        [x * roof, y * rules.HITBOX[1], rules.HITBOX_CENTRE[2] + z * rules.HITBOX[2]]
        for x in (-38.0, 22.0)
        for y in (-0.40, 0.40)
        for z, roof in ((0.05, 1.0), (0.62, 0.8))
    ]
)
"""Corners of the cabin, which indicates forward and up, in the car's axes."""

FORMAT, VERSION, WORLD = "rlstack-replay", 1, "rocket"
_META = "meta"
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)

COLUMNS: Columns = {
    "clock": ("float32", ()),  # ticks since the kick-off
    "ball_position": ("float32", (3,)),  # uu
    "ball_velocity": ("float32", (3,)),  # uu/s
    "ball_spin": ("float32", (3,)),  # rad/s
    **dict.fromkeys(("position", "velocity", "spin"), ("float32", ("C", 3))),
    "rotation": ("float32", ("C", 3, 3)),  # axis (forward, right, up), component
    "boost": ("float32", ("C",)),  # 0 to 100
    "boosting": ("bool", ("C",)),
    "wheels": ("int8", ("C",)),  # on the ground, 0 to 4
    "gone": ("int16", ("C",)),  # ticks until a demolished car is back, ABSENT for an absent one
    "controls": ("float32", ("C", 8)),  # throttle, steer, pitch, yaw, roll, jump, boost, brake of the step before
    "touches": ("bool", ("C",)),  # of the ball in the step before
    "pads": ("int16", (len(rules.PADS),)),  # ticks until each is back, 0: available
    "goal": ("int8", ()),  # 1: blue has scored, -1: orange has, 0: none yet
}
"""The states of a recording, ``C`` cars."""
_MOVING = ("ball_position", "ball_velocity", "ball_spin", "position", "velocity", "spin", "rotation", "boost", "clock")

SIZE = (1280, 720)
"""Width and height of pictures in pixels."""
_TILE = (640, 360)
_LEAP = 1500.0  # uu within a step; a longer move is a car's return after a demolition
_TRAIL_TICKS, _TRAIL_POINTS = 96, 9
_WAY_POINTS = 400
_RING_TICKS = 30  # ticks for which a touch is visible
_BURST_TICKS = 90
_LOW = rules.BALL_REST + 70.0  # height below which a ball rolls or hops, and no landing is shown
_LOWEST = 400.0  # above this the ball bounces off the ceiling or falls on
_DRAW: Colour = (225, 230, 240)
LEGEND: Legend = (
    *(("■", f"{team} car and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(("●", "ball and its way", PAPER), ("●", "boost pad", BOOST)),
)


@dataclass(frozen=True, eq=False)
class RocketRecording(EpisodeRecording):
    """An episode: its states, options and players.

    Args:
        frames: the states, at least one; see :data:`COLUMNS`.
        options: options of the world.
        players: players of blue and orange.
        title: title of the pictures.
    """

    frames: Frames = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""
    overview_columns, shown = 3, LEGEND

    @property
    def goals(self) -> tuple[int, int]:
        """Returns the goals of blue and of orange."""
        last = int(self.frames.goal[-1])
        return int(last > 0), int(last < 0)

    def named(self, players: tuple[str, str], title: str = "") -> RocketRecording:
        """Returns the same recording with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Returns the animation by ticks of the match."""
        return RocketAnimation(self)

    def overview(self) -> Picture:
        """Draws the end, with trails of cars and ball that brighten with time."""
        return RocketAnimation(self, _TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """Writes the recording atomically; makes missing folders. See :func:`load_replay`.

        Raises:
            ValueError: the suffix is not ``.npz``.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"cannot write {path.name}: the ending of a replay is .npz")
        meta = {
            **{"format": FORMAT, "version": VERSION, "world": WORLD, "players": list(self.players)},
            **{"goals": list(self.goals), "options": dict(self.options), "title": self.title},
        }
        with replacing(path) as (partial,), partial.open("wb") as stream:
            np.savez_compressed(stream, **{_META: np.array(json.dumps(meta)), **vars(self.frames)})

    def at(self, clock: float) -> Frames:
        """Returns the match after a number of ticks, interpolated between two states."""
        frames = self.frames
        t, share = find_time(frames.clock, clock)
        now = vars(frames.part(t))
        if share > 0:
            mixed = frames.blend(t, share, _MOVING)
            leaps = np.linalg.norm(frames.position[t + 1] - frames.position[t], axis=-1) > _LEAP
            for name in ("position", "velocity", "spin", "rotation", "boost"):
                mixed[name][leaps] = now[name][leaps]
            # The axes become orthogonal again, with the same forward direction.
            forward, up = (mixed["rotation"][:, axis] for axis in (0, 2))
            forward = forward / np.maximum(np.linalg.norm(forward, axis=-1, keepdims=True), 1e-6)
            up = up - (up * forward).sum(-1, keepdims=True) * forward
            up = up / np.maximum(np.linalg.norm(up, axis=-1, keepdims=True), 1e-6)
            now = now | mixed | {"rotation": np.stack((forward, np.cross(up, forward), up), 1)}
        return Frames(**now | {"clock": float(now["clock"]), "goal": int(now["goal"])})


class RocketRecorder(EpisodeRecorder[RocketRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        match, controls = self._env.worlds, self._env.controls
        state, cars, ball = match.world, match.world.cars, match.world.ball
        if controls is None:
            controls = cars.boost.new_zeros(8, *cars.boost.shape)
        values = {
            **{"clock": state.clock, "over": state.goal != 0},
            **{"ball_position": ball.position, "ball_velocity": ball.velocity, "ball_spin": ball.spin},
            **{name: getattr(cars, name).transpose(0, 1) for name in ("position", "velocity", "spin")},
            "rotation": cars.rotation.permute(2, 0, 1, 3),
            "boost": cars.boost,
            "boosting": (cars.boosting > 0) & (cars.boost > 0),
            "wheels": cars.wheels.sum(0),
            "gone": torch.where(cars.gone.isinf(), float(ABSENT), cars.gone),
            "controls": controls.transpose(0, 1),
            "touches": match.touches,  # so far
            "pads": state.pads.clamp_min(0.0),
            "goal": state.goal,
        }
        return {name: value.index_select(-1, worlds) for name, value in values.items()}

    def _recording(self, frames: list[Row], title: str) -> RocketRecording:
        columns = {name: np.stack([row[name] for row in frames]) for name in COLUMNS}
        columns["touches"] = np.diff(columns["touches"], axis=0, prepend=columns["touches"][:1]) > 0
        columns["controls"][0] = 0.0  # removes those of the previous episode
        states = Frames(**{name: columns[name].astype(kind) for name, (kind, _) in COLUMNS.items()})
        return RocketRecording(states, dict(self._env.options), title=title)


# -- pictures: the pitch from above and from the side, with cars, ball and pads, and both teams' numbers ---------------


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
    y, scale = ((columns - layout.above[0]) / layout.scale)[None], layout.scale

    # From above.
    x = ((layout.above[1] - rows) / scale)[:, None]
    wide, long = np.abs(x), np.abs(y)
    corner = (wide + long - rules.CORNER) * np.sqrt(0.5)
    outside = np.maximum(np.maximum(wide - rules.HALF_WIDTH, long - rules.HALF_LENGTH), corner)
    beyond = np.maximum(wide - rules.GOAL_HALF_WIDTH, np.maximum(long - rules.GOAL_BACK, rules.HALF_LENGTH - long))
    field = _edge(outside, scale)
    lay(light, np.clip(1 - outside / 420, 0, 1) ** 2 * (outside > 0), (70, 120, 170), 0.16)
    lay(light, field, _TURF)
    lay(light, field * ((np.floor(y / 1024) % 2) == 0), (255, 255, 255), 0.018)
    for side, colour in zip((-1, 1), TEAM_COLOURS):
        lay(light, field * np.clip(side * y / rules.HALF_LENGTH, 0, 1) ** 1.5, colour, 0.17)
        goal = _edge(np.where(side * y > 0, beyond, 1e6), scale)
        lay(light, goal, colour, 0.22)
        net = np.maximum(_stroke(_grid(y, 176), 0, scale), _stroke(_grid(x, 178), 0, scale))
        lay(light, goal * net, colour, 0.25)
        lay(light, _stroke(np.where(side * y > 0, beyond, 1e6), 34, scale), colour, 0.9)
    lay(light, field * np.clip(1 + outside / rules.LOW_RAMP, 0, 1), (0, 0, 0), 0.28)  # the rise to the walls
    area = np.maximum(wide - _BOX[0], _BOX[1] - long)
    area = np.where(long < rules.HALF_LENGTH, area, 1e6)
    circle = np.hypot(x, y) - _CIRCLE
    for distance in (y + 0 * x, circle, area):
        lay(light, field * _stroke(distance, 26, scale), _LINE, 0.32)
    lay(light, _edge(np.hypot(x, y) - 70, scale), _LINE, 0.5)
    wall = np.where((wide < rules.GOAL_HALF_WIDTH) & (long > rules.HALF_LENGTH - 200), 1e6, outside)
    lay(light, _stroke(wall, 40, scale), _LINE, 0.85)

    # From the side.
    z = ((layout.beside[1] - rows) / scale)[:, None]
    hall = np.maximum(np.abs(z - rules.HEIGHT / 2) - rules.HEIGHT / 2, long - rules.HALF_LENGTH)
    lower = np.abs(z - rules.GOAL_HEIGHT / 2) - rules.GOAL_HEIGHT / 2
    goals = np.maximum(lower, np.maximum(long - rules.GOAL_BACK, rules.HALF_LENGTH - long))
    field = _edge(hall, scale)
    lay(light, field, (20, 28, 36))
    for side, colour in zip((-1, 1), TEAM_COLOURS):
        lay(light, field * np.clip(side * y / rules.HALF_LENGTH, 0, 1) ** 1.5, colour, 0.14)
        goal = np.where(side * y > 0, goals, 1e6)
        lay(light, _edge(goal, scale), colour, 0.25)
        lay(light, _stroke(goal, 34, scale), colour, 0.9)
    for level in _HEIGHTS:
        lay(light, field * _stroke(z - level + 0 * y, 0, scale), _LINE, 0.14)
    lay(light, field * _stroke(y + 0 * z, 0, scale), _LINE, 0.2)
    mouth = (z < rules.GOAL_HEIGHT) & (long > rules.HALF_LENGTH - 100)
    lay(light, _stroke(np.where(mouth & (z > 60), 1e6, hall), 34, scale), _LINE, 0.8)
    lay(light, _stroke(np.maximum(np.abs(z), long - rules.GOAL_BACK), 34, scale), _LINE, 0.8)

    picture: Picture = np.clip(light, 0, 255).astype(np.uint8)
    size, faint = layout.points(10), FAINT
    for level in _HEIGHTS:
        top = layout.beside[1] - level * layout.scale
        write(picture, f"{level}", layout.beside[0] - 5240 * layout.scale, top, size, faint, align=1.0)
    left, under = layout.beside[0] - rules.HALF_LENGTH * layout.scale, layout.beside[1] + 11 * layout.unit
    write(picture, "from the side, height in uu", left, under, size, faint)
    return picture


def _edge(distance: Array, scale: float) -> Array:
    """Returns the share of a pixel inside a shape from the signed distance of its centre, negative inside."""
    return np.clip(0.5 - distance * scale, 0, 1)


def _stroke(distance: Array, width: float, scale: float) -> Array:
    """Returns a line of ``width`` uu, at least a pixel, along zero distance."""
    return _edge(np.abs(distance) - max(width, 1.0 / scale) / 2, scale)


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
        canvas.polygon(corners + height * _SHADOW, BLACK, 0.5 - 0.2 * min(height / 1500, 1.0))
        if height > 60:
            at = above(now.position[car])
            _stem(canvas, at, at + height * _SHADOW, team_colour(car, len(now.boost)))
    height = max(float(now.ball_position[2]) - rules.BALL_REST, 0.0)
    at = above(now.ball_position)
    canvas.disc(at + height * _SHADOW, rules.BALL_RADIUS * _BALL_LARGER, BLACK, 0.5 - 0.2 * min(height / 1500, 1.0))
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
            forward, up = now.rotation[car, 0], now.rotation[car, 2]
            stern = now.position[car] + up * 20.0 - forward * 42.0 * size
            flicker = 0.8 + 0.2 * np.sin(1.3 * now.clock + 2.0 * car)
            head, tail = project(stern), project(stern - forward * 105.0 * size * flicker)
            canvas.streak(head, tail, 34.0 * size, BOOST, 0.9, glow=0.5, spread=60.0)
            canvas.streak(head, (head + tail) / 2, 18.0 * size, WHITE, 0.9)
        corners = _hull(project(_box(now, car, size)))
        canvas.polygon(corners, mixed(BLACK, colour, 0.8), glow=0.18, spread=70.0)
        canvas.polygon(corners, mixed(colour, WHITE, 0.25), line=18.0)
        cabin = now.position[car] + (_CABIN * size) @ now.rotation[car]
        canvas.polygon(_hull(project(cabin)), mixed(colour, WHITE, 0.72), 0.95)


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
    canvas.disc(at, size, mixed(BLACK, _BALL, 0.55), glow=0.10)
    canvas.disc(at - 0.10 * size, 0.86 * size, mixed(BLACK, _BALL, 0.82))
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
    return now.position[car] + ((np.array(rules.HITBOX_CENTRE) + signs * half) * size) @ now.rotation[car]


def _hull(points: Array) -> Array:
    """Returns the convex hull of points ``[n, 2]``, clockwise with y down (Andrew's monotone chain).

    SciPy's takes ten times as long for so few, and refuses points on a line.
    """
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


# -- films -------------------------------------------------------------------------------------------------------------


class RocketAnimation(Animation):
    """The animation of a recording.

    Args:
        recording: recording of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.

    Raises:
        ValueError: the size is too small.

    Attributes:
        per_second: ticks per second.
    """

    per_second = float(rules.TICKS_PER_SECOND)

    def __init__(self, recording: RocketRecording, size: tuple[int, int] = SIZE) -> None:
        self.recording, self.layout, self.size = recording, RocketPictureLayout(size), size
        frames = recording.frames
        self._cars = frames.boost.shape[1]
        self._touches = np.cumsum(frames.touches, 0)
        self._hits = [(float(frames.clock[t]), int(car)) for t, car in zip(*np.nonzero(frames.touches))]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last tick."""
        return float(self.recording.frames.clock[0]), float(self.recording.frames.clock[-1])

    def draw(self, clock: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """Draws the match after ``clock`` ticks, uint8 ``[H, W, 3]``.

        Args:
            clock: ticks since the kick-off; None: the end.
            pause: number of ticks since the end.
            ways: whether to draw all trails from the beginning.
        """
        frames, layout = self.recording.frames, self.layout
        clock = float(frames.clock[-1]) if clock is None else clock
        now = self.recording.at(clock)
        picture = background(layout).copy()
        top, side = layout.canvases(picture)
        draw_pads(top, now)
        if ways:
            self._draw_ways(top, side, clock)
        draw_shadows(top, now)
        path, landing = self._flight(now)
        times = np.linspace(max(self.span[0], clock - _TRAIL_TICKS), clock, _TRAIL_POINTS, endpoint=False)
        trail = np.stack([self.recording.at(time).ball_position for time in times])
        # For a while after a touch the ball has a ring of that team's colour.
        touched = [car for when, car in self._hits if clock - _RING_TICKS <= when <= clock]
        ring = team_colour(touched[-1], self._cars) if touched else None
        for canvas, from_side in ((top, False), (side, True)):
            draw_flight(canvas, path, landing, from_side)
            draw_ball(canvas, now, trail, from_side, ring)
            draw_cars(canvas, now, from_side)
        self._draw_numbers(picture, now)
        for begun, at, reach, colour in self._bursts:
            share = (clock + pause - begun) / _BURST_TICKS
            if 0 <= share < 1:
                top.burst(above(at), reach, share, colour, 14, 60.0)
                side.burst(beside(at), 0.6 * reach, share, colour, 14, 60.0)
        goals = self.recording.goals if clock >= float(frames.clock[-1]) else (0, 0)
        t = int(np.searchsorted(frames.clock, clock, side="right")) - 1
        self._draw_panels(picture, now, goals, self._touches[max(t, 0)])
        self._draw_clock(picture, now)
        if pause > 0.3 * _BURST_TICKS:
            ends = zip(goals, ("BLUE SCORES", "ORANGE SCORES"), TEAM_COLOURS)
            text, colour = next(((text, colour) for goal, text, colour in ends if goal), ("NO GOAL", _DRAW))
            width = 2 * 5120 * layout.scale
            banner(picture, text, layout.above, width, 92 * layout.unit, layout.points(52), colour)
        return picture

    def _draw_numbers(self, picture: Picture, now: Frames) -> None:
        """Writes the number of every car above it if teams have several."""
        layout, half = self.layout, self._cars // 2
        for car in on_field(now) if half > 1 else ():
            x, y = above(now.position[car]) * layout.scale + np.array(layout.above)
            write(picture, f"{car % half + 1}", x, y - 15 * layout.unit, layout.points(11), PAPER, 0.5, bold=True)

    def _draw_clock(self, picture: Picture, now: Frames) -> None:
        """Draws minutes and seconds since the kick-off in the middle, with a title on the left."""
        layout, title = self.layout, self.recording.title
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

    def _draw_panels(self, picture: Picture, now: Frames, goals: tuple[int, int], touches: Array) -> None:
        """Draws a column for each team with its player, its goals and its cars, with their ``touches`` so far."""
        layout, unit, half = self.layout, self.layout.unit, self._cars // 2
        for team, colour in enumerate(TEAM_COLOURS):
            width = layout.panel - 24 * unit
            left = 12 * unit if team == 0 else layout.size[0] - 12 * unit - width
            box(picture, left, 12 * unit, width, 128 * unit, PLATE)
            box(picture, left, 12 * unit, width, 4 * unit, colour)
            name, size = self.recording.players[team], layout.points(18)
            while width_of(name, size, True) > width - 16 * unit and size > layout.points(10):
                size -= 1
            name = shortened(name, size, width - 16 * unit)
            write(picture, name, left + width / 2, 36 * unit, size, PAPER, 0.5, bold=True)
            write(picture, f"{goals[team]}", left + width / 2, 94 * unit, layout.points(70), colour, 0.5, bold=True)
            there = [car for car in range(team * half, (team + 1) * half) if now.gone[car] != ABSENT]
            for row, car in enumerate(there):
                top, size = (152 + row * _ROW) * unit, layout.points(13)
                x, right = left + 12 * unit, left + width - 12 * unit
                box(picture, left, top, width, (_ROW - 10) * unit, PLATE)
                head = f"car {car % half + 1}" if len(there) > 1 else "car"
                write(picture, head, x, top + 15 * unit, size, colour, bold=True)
                gone = int(now.gone[car])
                speed = float(np.linalg.norm(now.velocity[car])) if gone == 0 else 0.0
                text, tint = f"back in {gone / rules.TICKS_PER_SECOND:.1f} s", _OUT
                if gone == 0 and now.wheels[car] >= 3:
                    fast = speed >= rules.SUPERSONIC
                    on_wall = now.position[car, 2] > 60
                    text = "on the wall" if on_wall else "supersonic" if fast else "on the ground"
                    tint = _FAST if fast else FAINT
                elif gone == 0:
                    text, tint = "in the air", PAPER
                write(picture, text, right, top + 15 * unit, size, tint, 1.0)
                shade = _FAST if speed >= rules.SUPERSONIC_KEPT else PAPER
                bars = (
                    ("speed", speed, f"{speed:,.0f}", rules.CAR_TOP_SPEED, shade),
                    ("boost", float(now.boost[car]), f"{now.boost[car]:.0f}", rules.BOOST_MOST, BOOST),
                )
                for line, (name, value, number, most, shade) in enumerate(bars):
                    y = top + (39 + 26 * line) * unit
                    write(picture, name, x, y, size, FAINT)
                    meter(picture, (x + 48 * unit, right - 44 * unit), y, 12 * unit, value / most, shade, FAINT)
                    write(picture, number, right, y, size, PAPER, 1.0)
                write(picture, f"touches {touches[car]}", x, top + 92 * unit, size, FAINT)
                if gone == 0:
                    height = max(float(now.position[car, 2]) - rules.CAR_REST, 0.0)
                    write(picture, f"height {height:,.0f}", right, top + 92 * unit, size, FAINT, 1.0)

    def _draw_ways(self, top: Canvas, side: Canvas, clock: float) -> None:
        frames = self.recording.frames
        until = frames.part(slice(0, int(np.searchsorted(frames.clock, clock, side="right"))))
        every = max(1, len(until) // _WAY_POINTS)
        for car in range(self._cars):
            if frames.gone[0, car] == 0:
                top.way(above(until.position[::every, car]), 34.0, team_colour(car, self._cars), _LEAP)
        for canvas, project in ((top, above), (side, beside)):
            canvas.way(project(until.ball_position[::every]), 34.0, PAPER, _LEAP)

    @cached_property
    def _bursts(self) -> list[tuple[float, Array, float, Colour]]:
        """Returns explosions of demolished cars and the goal: time, place, reach in uu and colour."""
        frames, goals = self.recording.frames, self.recording.goals
        begun = (frames.gone[1:] > 0) & (frames.gone[:-1] == 0)
        bursts = [
            (float(frames.clock[t + 1]), frames.position[t, car], 420.0, team_colour(car, self._cars))
            for t, car in zip(*np.nonzero(begun))
        ]
        last = (float(frames.clock[-1]), frames.ball_position[-1], 1500.0)
        return bursts + [(*last, colour) for goal, colour in zip(goals, TEAM_COLOURS) if goal]

    @cached_property
    def _paths(self) -> Array:
        """Forecasts ``[T, 60, 3]`` from every state; see :mod:`rlstack.envs.rocket.prediction`."""
        frames = self.recording.frames
        rows = [frames.ball_position, frames.ball_velocity, frames.ball_spin]
        ball = Ball(*(torch.from_numpy(np.ascontiguousarray(row.T)) for row in rows))
        paths: Array = forecast(ball).path.permute(2, 1, 0).contiguous().numpy()
        return paths

    def _flight(self, now: Frames) -> tuple[Array, Array | None]:
        """Returns the path of a flying ball up to its landing, and where it lands; empty for one on the ground."""
        climb = float(now.ball_velocity[2])
        if (now.ball_position[2] < _LOW and abs(climb) < 300) or now.goal:
            return np.zeros((0, 3)), None
        frames = self.recording.frames
        t, _ = find_time(frames.clock, now.clock)
        path = np.concatenate((frames.ball_position[t][None], self._paths[t]))
        falls = np.diff(path[:, 2]) < 0
        bounces = np.flatnonzero(falls[:-1] & ~falls[1:] & (path[1:-1, 2] < _LOWEST)) + 1
        if not len(bounces):
            return path[2::2], None
        last = max(int(bounces[0]) - 1, 1)  # the lowest point may already be after the bounce
        fall = path[last] - path[last - 1]
        share = (rules.BALL_REST - path[last, 2]) / min(fall[2], -1.0)
        place: Array = path[last] + np.clip(share, 0.0, 2.0) * fall
        place[2] = rules.BALL_REST
        return path[2 : last + 1 : 2], place if abs(place[1]) < rules.HALF_LENGTH else None  # None in a goal


# -- files -------------------------------------------------------------------------------------------------------------


def load_replay(path: str | Path) -> RocketRecording:
    """Reads a file of :meth:`RocketRecording.save_replay`.

    A file is a ``.npz`` without pickles: every entry of :data:`COLUMNS` under its name, ``[T, ...]``, and ``meta``, a
    JSON text: ``format`` (``rlstack-replay``), ``version`` (1), ``world`` (``rocket``), ``players`` (who drove blue and
    orange), ``goals`` (of both), ``options`` (of the world), ``title``.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its arrays do not fit each other.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            entries = {name: np.asarray(archive[name]) for name in archive.files if name in (_META, *COLUMNS)}
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged, or no .npz"
        raise ValueError(f"{path}: cannot be read as a replay ({reason})") from None
    try:
        meta = json.loads(str(entries.pop(_META)[()]))
    except (ValueError, KeyError, IndexError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or (meta.get("format"), meta.get("world")) != (FORMAT, WORLD):
        raise ValueError(f"{path}: not a replay of {WORLD} (no such entry {_META!r})")
    if meta.get("version") != VERSION:
        raise ValueError(f"{path}: version {meta.get('version')!r}, this program reads version {VERSION}")
    if missing := [name for name in COLUMNS if name not in entries]:
        raise ValueError(f"{path}: not a whole replay, {missing[0]!r} is missing")
    clock, boost = entries["clock"], entries["boost"]
    count, cars = len(clock) if clock.ndim == 1 else 0, boost.shape[1] if boost.ndim == 2 else 0
    if not count or cars not in (2, 4, 6):
        shapes = f"clock has shape {clock.shape}, boost {boost.shape}"
        raise ValueError(f"{path}: {shapes}, expected [T] and [T, C] with C of 2, 4 or 6")
    for name, (kind, rest) in COLUMNS.items():
        value, shape = entries[name], (count, *(cars if size == "C" else size for size in rest))
        if value.shape != shape or value.dtype != np.dtype(kind):
            got = f"{value.dtype} {list(value.shape)}"
            raise ValueError(f"{path}: {name} is {got}, expected {kind} {list(shape)}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"{path}: {name} holds numbers that are not finite")
    if not (np.diff(clock) > 0).all():
        raise ValueError(f"{path}: clock does not ascend")
    if (entries["gone"] < ABSENT).any():
        raise ValueError(f"{path}: gone holds numbers below {ABSENT}")
    players, options = meta.get("players"), meta.get("options")
    if not isinstance(players, list) or len(players) != 2 or not all(isinstance(name, str) for name in players):
        raise ValueError(f"{path}: players {players!r} are not two names")
    frames = Frames(**{name: entries[name] for name in COLUMNS})
    named = (players[0], players[1])
    return RocketRecording(frames, options if isinstance(options, dict) else {}, named, str(meta.get("title", "")))
