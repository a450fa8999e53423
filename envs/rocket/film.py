"""Draws an episode of Rocket at any of its times: the field from above, a strip from the side, and the numbers."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..rendering.canvas import Canvas, Colour, Picture, write
from ..rendering.films import Animation
from . import rules
from .actors import above, beside, draw_ball, draw_burst, draw_cars, draw_flight, draw_pads, draw_shadows, draw_way
from .panels import draw_banner, draw_clock, draw_panels
from .pitch import PAPER, TEAM_COLOURS, Layout, background
from .prediction import forecast
from .recording import Recording, Snapshot
from .state import Ball

Array = NDArray[Any]

_TRAIL_TICKS, _TRAIL_POINTS = 96, 9
_WAY_POINTS = 400
_RING_TICKS = 30  # a touch is shown for so long
_BURST_TICKS = 90
_LOW = rules.BALL_REST + 70.0  # a ball below this rolls or hops: no landing is shown
_LOWEST = 400.0  # above this the ball bounces off the ceiling or falls on
_DRAW: Colour = (225, 230, 240)


class Film(Animation):
    """Pictures of a recording.

    Args:
        recording: of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.

    Raises:
        ValueError: a size that is too small.

    Attributes:
        per_second: ticks.
    """

    per_second = float(rules.TICKS_PER_SECOND)

    def __init__(self, recording: Recording, size: tuple[int, int]) -> None:
        self.recording, self.layout, self.size = recording, Layout(size), size
        frames = recording.frames
        self._touches = np.cumsum(frames.touches, 0)
        hits = [(t, car) for t, car in zip(*np.nonzero(frames.touches))]
        self._hits = [(float(frames.clock[t]), int(car)) for t, car in hits]
        self._crashes = self._found_crashes()

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last tick."""
        return float(self.recording.frames.clock[0]), float(self.recording.frames.clock[-1])

    def draw(self, clock: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """The picture after so many ticks, uint8 ``[H, W, 3]``.

        Args:
            clock: ticks since the kick-off; None: the end.
            pause: ticks for which the end has stood still.
            ways: show how everything came there from the beginning on.
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
        self._write_numbers(picture, now)
        self._draw_events(top, side, clock + pause)
        goals = self.recording.goals if clock >= float(frames.clock[-1]) else (0, 0)
        t = int(np.searchsorted(frames.clock, clock, side="right")) - 1
        draw_panels(picture, layout, now, self.recording.players, goals, self._touches[max(t, 0)].tolist())
        draw_clock(picture, layout, now, self.recording.title)
        if pause > 0.3 * _BURST_TICKS:
            self._draw_end(picture)
        return picture

    def _draw_ways(self, top: Canvas, side: Canvas, clock: float) -> None:
        frames = self.recording.frames
        until = frames.part(slice(0, int(np.searchsorted(frames.clock, clock, side="right"))))
        every = max(1, len(until) // _WAY_POINTS)
        for car in range(frames.cars):
            if frames.gone[0, car] == 0:
                colour = TEAM_COLOURS[int(car >= frames.cars // 2)]
                draw_way(top, until.position[::every, car], colour)
        for canvas, from_side in ((top, False), (side, True)):
            draw_way(canvas, until.ball_position[::every], PAPER, from_side)

    def _draw_end(self, picture: Picture) -> None:
        for goals, colour, name in zip(self.recording.goals, TEAM_COLOURS, ("BLUE", "ORANGE")):
            if goals:
                draw_banner(picture, self.layout, f"{name} SCORES", colour)
                return
        draw_banner(picture, self.layout, "NO GOAL", _DRAW)

    def _draw_events(self, top: Canvas, side: Canvas, clock: float) -> None:
        last = self.recording.frames
        bursts = [*self._crashes]
        if last.goal[-1]:
            colour = TEAM_COLOURS[0 if last.goal[-1] > 0 else 1]
            bursts.append((float(last.clock[-1]), last.ball_position[-1], 1500.0, colour))
        for begun, at, reach, colour in bursts:
            share = (clock - begun) / _BURST_TICKS
            if 0 <= share < 1:
                draw_burst(top, above(at), share, reach, colour)
                draw_burst(side, beside(at), share, 0.6 * reach, colour)

    def _found_crashes(self) -> list[tuple[float, Array, float, Colour]]:
        """When and where cars were demolished."""
        frames = self.recording.frames
        begun = (frames.gone[1:] > 0) & (frames.gone[:-1] == 0)
        half = frames.cars // 2
        return [
            (float(frames.clock[t + 1]), frames.position[t, car], 420.0, TEAM_COLOURS[int(car >= half)])
            for t, car in zip(*np.nonzero(begun))
        ]

    # -- the ball ------------------------------------------------------------------------------------------------

    def _trail(self, clock: float) -> Array:
        first = max(float(self.recording.frames.clock[0]), clock - _TRAIL_TICKS)
        times = np.linspace(first, clock, _TRAIL_POINTS, endpoint=False)
        return np.stack([self.recording.at(time).ball_position for time in times])

    def _ring(self, clock: float) -> Colour | None:
        """Whose colour the ball has round it, for a moment after a touch."""
        for when, car in reversed(self._hits):
            if when <= clock:
                team = int(car >= self.recording.frames.cars // 2)
                return TEAM_COLOURS[team] if clock - when <= _RING_TICKS else None
        return None

    @cached_property
    def _paths(self) -> Array:
        """``[T, 60, 3]``: the forecasts from every state, see :mod:`envs.rocket.prediction`."""
        frames = self.recording.frames
        rows = [frames.ball_position, frames.ball_velocity, frames.ball_spin]
        ball = Ball(*(torch.from_numpy(np.ascontiguousarray(row.T)) for row in rows))
        paths: Array = forecast(ball).path.permute(2, 1, 0).contiguous().numpy()
        return paths

    def _flight(self, now: Snapshot) -> tuple[Array, Array | None]:
        """The way of a ball in the air up to where it comes down; nothing for one on the ground."""
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

    # -- numbers on cars -----------------------------------------------------------------------------------------

    def _write_numbers(self, picture: Picture, now: Snapshot) -> None:
        half, layout = len(now.boost) // 2, self.layout
        if half == 1:
            return
        for car in now.there:
            x, y = above(now.position[car]) * layout.scale + np.array(layout.above)
            write(picture, f"{car % half + 1}", x, y - 15 * layout.unit, layout.points(11), PAPER, 0.5, bold=True)


def _landing(path: Array, last: int) -> Array | None:
    """Where a ball that falls meets the floor, by its way from the point before ``last`` on; None in a goal."""
    fall = path[last] - path[last - 1]
    share = (rules.BALL_REST - path[last, 2]) / min(fall[2], -1.0)
    place: Array = path[last] + np.clip(share, 0.0, 2.0) * fall
    place[2] = rules.BALL_REST
    return place if abs(place[1]) < rules.HALF_LENGTH else None
