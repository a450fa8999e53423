"""Pictures of Rocket's episodes: the field from above, a strip from the side, and the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..rendering.canvas import Canvas, Colour, Legend, Picture, banner, box, meter, shortened, width_of, write
from ..rendering.films import Animation
from . import rules
from .match import TEAMS
from .pitch import (
    FAINT,
    PAPER,
    TEAM_COLOURS,
    RocketPictureLayout,
    above,
    background,
    beside,
    draw_ball,
    draw_cars,
    draw_flight,
    draw_pads,
    draw_shadows,
    team_colour,
)
from .prediction import forecast
from .recording import ABSENT, LEAP, RocketFrames, RocketRecording
from .state import Ball

SIZE = (1280, 720)
"""Width and height of pictures in pixels."""

_TILE = (640, 360)
_TRAIL_TICKS, _TRAIL_POINTS = 96, 9
_WAY_POINTS = 400
_RING_TICKS = 30  # ticks for which a touch is visible
_BURST_TICKS = 90
_LOW = rules.BALL_REST + 70.0  # height below which a ball rolls or hops, and no landing is shown
_LOWEST = 400.0  # above this the ball bounces off the ceiling or falls on
_DRAW: Colour = (225, 230, 240)
_BOOST: Colour = (255, 190, 70)
LEGEND: Legend = (
    *(("■", f"{team} car and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(("●", "ball and its way", PAPER), ("●", "boost pad", _BOOST)),
)
_FAST: Colour = (120, 255, 190)
_OUT: Colour = (255, 90, 90)
_PLATE: Colour = (24, 29, 41)
_ROW = 118  # of a car, in lines of 720

Array = NDArray[Any]


def overview(recording: RocketRecording) -> Picture:
    """Draws a small picture of the end, with trails of cars and ball that brighten with time."""
    return RocketAnimation(recording, _TILE).draw(ways=True)


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
        trail, ring = self._trail(clock), self._ring(clock)
        for canvas, from_side in ((top, False), (side, True)):
            draw_flight(canvas, path, landing, from_side)
            draw_ball(canvas, now, trail, from_side, ring)
            draw_cars(canvas, now, from_side)
        half = len(now.boost) // 2
        for car in now.there if half > 1 else ():
            x, y = above(now.position[car]) * layout.scale + np.array(layout.above)
            write(picture, f"{car % half + 1}", x, y - 15 * layout.unit, layout.points(11), PAPER, 0.5, bold=True)
        self._draw_bursts(top, side, clock + pause)
        goals = self.recording.goals if clock >= float(frames.clock[-1]) else (0, 0)
        t = int(np.searchsorted(frames.clock, clock, side="right")) - 1
        draw_panels(picture, layout, now, self.recording.players, goals, self._touches[max(t, 0)].tolist())
        draw_clock(picture, layout, now, self.recording.title)
        if pause > 0.3 * _BURST_TICKS:
            ends = zip(goals, ("BLUE SCORES", "ORANGE SCORES"), TEAM_COLOURS)
            text, colour = next(((text, colour) for goal, text, colour in ends if goal), ("NO GOAL", _DRAW))
            width = 2 * 5120 * layout.scale
            banner(picture, text, layout.above, width, 92 * layout.unit, layout.points(52), colour)
        return picture

    def _draw_ways(self, top: Canvas, side: Canvas, clock: float) -> None:
        frames = self.recording.frames
        until = frames.part(slice(0, int(np.searchsorted(frames.clock, clock, side="right"))))
        every = max(1, len(until) // _WAY_POINTS)
        for car in range(frames.cars):
            if frames.gone[0, car] == 0:
                top.way(above(until.position[::every, car]), 34.0, team_colour(car, frames.cars), LEAP)
        for canvas, project in ((top, above), (side, beside)):
            canvas.way(project(until.ball_position[::every]), 34.0, PAPER, LEAP)

    def _draw_bursts(self, top: Canvas, side: Canvas, clock: float) -> None:
        for begun, at, reach, colour in self._bursts:
            share = (clock - begun) / _BURST_TICKS
            if 0 <= share < 1:
                top.burst(above(at), reach, share, colour, 14, 60.0)
                side.burst(beside(at), 0.6 * reach, share, colour, 14, 60.0)

    @cached_property
    def _bursts(self) -> list[tuple[float, Array, float, Colour]]:
        """Returns explosions of demolished cars and the goal: time, place, reach in uu and colour."""
        frames, goals = self.recording.frames, self.recording.goals
        begun = (frames.gone[1:] > 0) & (frames.gone[:-1] == 0)
        bursts = [
            (float(frames.clock[t + 1]), frames.position[t, car], 420.0, team_colour(car, frames.cars))
            for t, car in zip(*np.nonzero(begun))
        ]
        last = (float(frames.clock[-1]), frames.ball_position[-1], 1500.0)
        return bursts + [(*last, colour) for goal, colour in zip(goals, TEAM_COLOURS) if goal]

    def _trail(self, clock: float) -> Array:
        first = max(float(self.recording.frames.clock[0]), clock - _TRAIL_TICKS)
        times = np.linspace(first, clock, _TRAIL_POINTS, endpoint=False)
        return np.stack([self.recording.at(time).ball_position for time in times])

    def _ring(self, clock: float) -> Colour | None:
        """Returns the colour of the ring around the ball shortly after a touch: that of the car's team."""
        for when, car in reversed(self._hits):
            if when <= clock:
                recent = clock - when <= _RING_TICKS
                return team_colour(car, self.recording.frames.cars) if recent else None
        return None

    @cached_property
    def _paths(self) -> Array:
        """Forecasts ``[T, 60, 3]`` from every state; see :mod:`rlstack.envs.rocket.prediction`."""
        frames = self.recording.frames
        rows = [frames.ball_position, frames.ball_velocity, frames.ball_spin]
        ball = Ball(*(torch.from_numpy(np.ascontiguousarray(row.T)) for row in rows))
        paths: Array = forecast(ball).path.permute(2, 1, 0).contiguous().numpy()
        return paths

    def _flight(self, now: RocketFrames) -> tuple[Array, Array | None]:
        """Returns the path of a flying ball up to its landing; empty for one on the ground."""
        climb = float(now.ball_velocity[2])
        if (now.ball_position[2] < _LOW and abs(climb) < 300) or now.goal:
            return np.zeros((0, 3)), None
        frames = self.recording.frames
        t = int(np.clip(np.searchsorted(frames.clock, now.clock, side="right") - 1, 0, len(frames) - 1))
        path = np.concatenate((frames.ball_position[t][None], self._paths[t]))
        falls = np.diff(path[:, 2]) < 0
        bounces = np.flatnonzero(falls[:-1] & ~falls[1:] & (path[1:-1, 2] < _LOWEST)) + 1
        if not len(bounces):
            return path[2::2], None
        last = max(int(bounces[0]) - 1, 1)  # the lowest point may already be after the bounce
        return path[2 : last + 1 : 2], _landing(path, last)


def _landing(path: Array, last: int) -> Array | None:
    """Returns where a falling ball meets the floor, from the path before ``last`` on; None in a goal."""
    fall = path[last] - path[last - 1]
    share = (rules.BALL_REST - path[last, 2]) / min(fall[2], -1.0)
    place: Array = path[last] + np.clip(share, 0.0, 2.0) * fall
    place[2] = rules.BALL_REST
    return place if abs(place[1]) < rules.HALF_LENGTH else None


def draw_clock(picture: Picture, layout: RocketPictureLayout, now: RocketFrames, title: str) -> None:
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
    now: RocketFrames,
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
    now: RocketFrames,
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
        ("boost", float(now.boost[car]), f"{now.boost[car]:.0f}", rules.BOOST_MOST, _BOOST),
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


def _state(now: RocketFrames, car: int) -> tuple[str, Colour]:
    fast = float(np.linalg.norm(now.velocity[car])) >= rules.SUPERSONIC
    if now.wheels[car] >= 3:
        on_wall = now.position[car, 2] > 60
        return ("on the wall" if on_wall else "supersonic" if fast else "on the ground"), _FAST if fast else FAINT
    return "in the air", PAPER
