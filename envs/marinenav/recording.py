"""Recordings of episodes of MarineNav, their films, and how moments of them are drawn on a chart.

The world frame is North-East-Down; pictures have north (x) up and east (y) to the right, the view from above: a
positive yaw turns a vessel clockwise, to starboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..foundation.tensors import GROUP
from ..recording import EpisodeRecorder, EpisodeRecording, Row
from ..rendering.canvas import WHITE, Canvas, Colour, Legend, Picture, box, write
from ..rendering.films import Animation
from .dynamics import current
from .rules import LENGTH, MAP_SIZE, WIDTH, MarineNavRules
from .simulation import AFTER_COLLISION, AFTER_GOAL, COLLISION, GOAL, TIME_OUT

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


_STANDING = ("goal", "start", "obstacles", "obstacle_present", "cores")
_MOVING = ("pose", "active", "reached", "time")
_SHOWN = ("pose", "active", "reached", "status", "perceived", "perceived_mask")
COLLIDED, ARRIVED = (COLLISION, AFTER_COLLISION), (GOAL, AFTER_GOAL)
"""Status codes of robots that ended this way."""
_STATUS = {TIME_OUT: "time-out"} | dict.fromkeys(COLLIDED, "collision") | dict.fromkeys(ARRIVED, "goal reached")
SIZE, _TILE = (960, 720), (240, 270)
"""Width and height of pictures, and of overviews, in pixels, multiples of the video encoder's macroblocks."""
_SQUARE = (62, 32, 634)  # of the chart: left, top, side
_SPEED = 10.0  # seconds of an episode in a second of film


@dataclass
class MarineNavRecording(EpisodeRecording):
    """One episode: T steps, A robots, K obstacles, C vortex cores.

    Frame 0 is the state after reset. Metres, radians, m/s; world frame x north, y east.

    Args:
        dt: seconds between frames.
        pose: [T+1, A, 3] x, y, heading.
        active: [T+1, A] bool; a robot that is never active is padding and not drawn.
        goal: [A, 2].
        start: [A, 2].
        obstacles: [K, 3] x, y, radius.
        cores: [C, 4] x, y, rotation flag, circulation in m^2/s.
        status: [T+1, A] int: 0 normal, 1 time-out, 2 collision, 3 goal, 4 and 5 inactive after these two.
        reached: [T+1, A] bool, robots that have reached their goal; the status lacks this for a robot that collides or
            runs out of time in the same step.
        perceived: [T+1, A, 5, 5] px, py, vx, vy, r of perceived objects in the robot's body frame.
        perceived_mask: [T+1, A, 5] bool, marks existing objects.
        title: title above the map.
    """

    shown = LEGEND

    dt: float
    pose: Array
    active: Array
    goal: Array
    start: Array
    obstacles: Array
    cores: Array
    status: Array
    reached: Array
    perceived: Array
    perceived_mask: Array
    title: str = ""

    def animation(self) -> Animation:
        """Returns the episode as a film at ten times its speed."""
        return MarineNavAnimation(self)

    def overview(self) -> Picture:
        """Draws whole paths, final hulls and the outcome, which is green after a success."""
        picture = np.full((_TILE[1], _TILE[0], 3), 255, np.uint8)
        chart = self.chart(6, 36, _TILE[0] - 12)
        self.draw_still(chart.canvas(picture))
        self.draw_robots(chart.canvas(picture), len(self.pose) - 1)
        outcome = "success" if self.success else "collision" if self.collision else "not reached"
        colour = SUCCESS if self.success else FAILURE
        end = f"{outcome}, {(len(self.pose) - 1) * self.dt:.1f} s"
        for row, text in enumerate([self.title, end] if self.title else [end]):
            write(picture, text, _TILE[0] / 2, 11 + 15 * row, 12, colour, 0.5)
        return picture

    def chart(self, left: int, top: int, side: int) -> Chart:
        """Returns the chart on a square of a picture that shows all of its paths."""
        return Chart(left, top, side, *view(self.pose[:, self.robots, :2].reshape(-1, 2), LENGTH / 2 + 0.5))

    def draw_still(self, canvas: Canvas) -> None:
        """Draws what does not move: the map, its current and obstacles, the robots' starts and goals."""
        pixel, side, (left, bottom) = 1 / canvas.scale, MAP_SIZE * canvas.scale, canvas.corner
        canvas.picture[:] = _OUTSIDE
        for margin, colour in ((1, _SHORE), (0, WATER)):
            box(canvas.picture, left - margin, bottom - side - margin, side + 2 * margin, side + 2 * margin, colour)
        radius = float(MarineNavRules().core_radius)
        if len(self.cores):
            # The current as faint arrows as long as the root of its speed, which itself decreases too steeply.
            places = np.linspace(1.0, MAP_SIZE - 1.0, 28)
            x, y = (grid.reshape(-1, 1) for grid in np.meshgrid(places, places))
            columns = torch.as_tensor(self.cores, dtype=torch.float64).T[..., None]
            flow = torch.cat(current(torch.as_tensor(x), torch.as_tensor(y), columns, radius), dim=1).numpy()
            flow = flow / np.sqrt(np.linalg.norm(flow, axis=1, keepdims=True) + 1e-9)
            for tail, way in zip(on_map(np.concatenate((x, y), 1)), on_map(flow / 0.75)):
                tip, ahead = tail + way, 0.45 * way / max(float(np.hypot(*way)), 1e-6)
                aside = 0.4 * np.array([-ahead[1], ahead[0]])
                canvas.line(tail, tip - ahead, 0.11, CURRENT, 0.45)
                canvas.polygon(np.array([tip, tip - ahead + aside, tip - ahead - aside]), CURRENT, 0.45)
        for core in self.cores:
            canvas.disc(on_map(core), radius, WHITE)
            canvas.ring(on_map(core), radius, 1.5 * pixel, CURRENT)
        for rock in self.obstacles:
            canvas.disc(on_map(rock), rock[2], ROCK)
            canvas.ring(on_map(rock), rock[2], 1.2 * pixel, _ROCK_EDGE)
        turns = np.arange(11) * np.pi / 5
        star = np.where(np.arange(11) % 2, 0.4, 1.0)[:, None] * np.stack((np.sin(turns), -np.cos(turns)), -1)
        for robot in self.robots:
            goal, colour = on_map(self.goal[robot]), colour_of(robot)
            canvas.ring(on_map(self.start[robot]), 4.5 * pixel, 1.4 * pixel, colour)
            for radius, tint in ((11.5 * pixel, WHITE), (10 * pixel, colour)):
                corners = goal + radius * star
                canvas.disc(goal, 0.4 * radius, tint)
                for tip in range(0, 10, 2):
                    canvas.polygon(np.stack((corners[tip - 1 if tip else 9], *corners[tip : tip + 2], goal)), tint)
        canvas.picture[[0, -1]] = canvas.picture[:, [0, -1]] = INK

    def draw_robots(self, canvas: Canvas, t: int) -> None:
        """Draws the robots of a frame, with their ways, which brighten with time, and what they perceive as rings."""
        for robot in self.robots:
            places = self.pose[: t + 1, robot, :2]
            kept = np.concatenate((places[:: max(1, len(places) // _WAY_POINTS)], places[-1:]))
            canvas.way(on_map(kept), 2 / canvas.scale, colour_of(robot))
        # A square stern, and a bow pointed over the front half.
        along = np.linspace(0.0, 1.0, 7)
        starboard = np.column_stack((0.5 * LENGTH * along, 0.5 * WIDTH * (1 - along**2)))
        stern = np.array([[-0.5, -0.5], [-0.5, 0.5]]) * (LENGTH, WIDTH)
        hull = np.concatenate((stern, starboard, starboard[-2::-1] * (1, -1)))
        for robot in self.robots:
            pose, there = self.pose[t, robot], bool(self.active[t, robot])
            outline, opacity = on_map(to_world(pose, hull))[::-1], 1.0 if there else 0.35
            canvas.polygon(outline, colour_of(robot), opacity)
            canvas.polygon(outline, INK, opacity, line=1.2 / canvas.scale)
            if there:
                objects = self.perceived[t, robot][self.perceived_mask[t, robot]]
                for place, radius in zip(on_map(to_world(pose, objects[:, :2])), objects[:, 4]):
                    canvas.ring(place, float(radius), 1.4 / canvas.scale, colour_of(robot), 0.5)
        for robot in self.robots:
            if self.collided[t, robot]:
                size, at = 7 / canvas.scale, on_map(self.pose[t, robot])
                for width, colour in ((6.5, WHITE), (4.0, FAILURE)):
                    for way in (np.array([size, size]), np.array([size, -size])):
                        canvas.line(at - way, at + way, width / canvas.scale, colour)

    @property
    def robots(self) -> Array:
        """Returns the indices of the robots that are not padding."""
        return np.flatnonzero(self.active.any(axis=0))

    @property
    def success(self) -> bool:
        """Returns whether every robot has reached its goal, as published, regardless of other events in that step.

        A world without robots has no success.
        """
        return len(self.robots) > 0 and bool(self.reached[-1, self.robots].all())

    @property
    def collision(self) -> bool:
        """Returns whether any robot has collided."""
        return bool(self.collided[:, self.robots].any())

    @property
    def collided(self) -> Array:
        """Returns which robots have collided so far, ``[T+1, A]`` bool; in a time-out's step the status hides it."""
        return np.isin(self.status, COLLIDED) | ~(self.active | self.reached)


class MarineNavAnimation(Animation):
    """The animation of an episode by frames. Still objects are drawn once; a picture adds the others to a copy."""

    size, fps = SIZE, 20.0

    def __init__(self, recording: MarineNavRecording) -> None:
        self._recording, self.per_second = recording, _SPEED / recording.dt
        self._still = np.full((SIZE[1], SIZE[0], 3), 255, np.uint8)
        self._chart = recording.chart(*_SQUARE)
        recording.draw_still(self._chart.canvas(self._still))

    def longer(self, recording: MarineNavRecording) -> Animation:
        """Returns this animation itself unless robots have left its chart."""
        if recording.chart(*_SQUARE) != self._chart:
            return recording.animation()
        self._recording, self.per_second = recording, _SPEED / recording.dt
        return self

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last frame."""
        return 0.0, len(self._recording.pose) - 1.0

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """Draws the frame at a time; after the end, the last one."""
        t, record, picture = int(time), self._recording, self._still.copy()
        record.draw_robots(self._chart.canvas(picture), t)
        self._chart.write_axes(picture)
        write(picture, record.title, self._chart.left + self._chart.side / 2, 16, 15, INK, 0.5)
        left, apart = self._chart.left + self._chart.side + 19, min(40.0, 432 / max(len(record.robots), 1))
        write(picture, f"t = {t * record.dt:.1f} s", left, 45, 18, INK, bold=True)
        for row, robot in enumerate(record.robots):
            if not record.collided[t, robot]:
                write(picture, f"{robot}", *self._chart.pixel(record.pose[t, robot]), 11, WHITE, 0.5, bold=True)
            write(picture, f"{robot}", left, 93 + row * apart, 15, colour_of(robot), bold=True)
            status = int(record.status[t, robot])
            here, before = record.pose[t, robot, :2], record.pose[max(t - 1, 0), robot, :2]
            distance, speed = np.linalg.norm(record.goal[robot] - here), np.linalg.norm(here - before) / record.dt
            words = _STATUS.get(status, f"{distance:4.1f} m to goal, {speed:.1f} m/s")
            colour = INK if status not in _STATUS else SUCCESS if status in ARRIVED else FAILURE
            write(picture, words, left + 24, 93 + row * apart, 13, colour)
        for row, (sign, words, colour) in enumerate(LEGEND):
            write(picture, sign, left, 530 + 20 * row, 14, colour)
            write(picture, words, left + 24, 530 + 20 * row, 13, INK)
        return picture


class MarineNavRecorder(EpisodeRecorder[MarineNavRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        state, shown = self._env.worlds, self._env._current()[GROUP]
        values = {name: getattr(state, name) for name in (*_MOVING, *_STANDING)}
        values |= {"clock": state.steps, "status": shown["info"].T}
        for name, seen in (("perceived", "objects"), ("perceived_mask", "mask")):
            values[name] = shown["observation", seen].movedim(0, -1)
        values = {name: value.index_select(-1, worlds) for name, value in values.items()}
        status = values["status"]
        over = ~values["active"].any(0) | (status == TIME_OUT).any(0)
        if self._env.options.end_on_collision:
            over = over | torch.isin(status, torch.tensor(COLLIDED, device=status.device)).any(0)
        return {**values, "over": over}

    def _recording(self, frames: list[Row], title: str) -> MarineNavRecording:
        first, steps = frames[0], len(frames) - 1
        time = (frames[-1]["time"] - first["time"]).max()
        dt = time / steps if steps else MarineNavRules().dt * MarineNavRules().substeps
        columns: dict[str, Any] = {name: np.stack([frame[name] for frame in frames]) for name in _SHOWN}
        columns["pose"] = columns["pose"].transpose(0, 2, 1).astype(np.float64)
        return MarineNavRecording(
            dt=float(dt),
            goal=first["goal"].T,
            start=first["start"].T,
            obstacles=first["obstacles"][:, first["obstacle_present"]].T,
            cores=first["cores"][:, first["cores"][3] != 0].T,
            title=title,
            **columns,
        )
