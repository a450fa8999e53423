"""Draws an episode of Echelon at any of its times: the map from above, and what is known of every mech."""

from __future__ import annotations

import numpy as np

from ..rendering.canvas import Canvas, Picture, write
from ..rendering.films import Animation
from . import rules
from .actors import (
    PAINT,
    draw_aim,
    draw_bars,
    draw_beam,
    draw_burst,
    draw_cloud,
    draw_flight,
    draw_mech,
    draw_way,
    draw_wreck,
    draw_zone,
    line,
    width_of,
)
from .actors import flat as placed
from .board import TEAM_COLOURS, TEAM_LIGHT, Layout, background
from .moment import Moment, deaths, moment
from .panels import draw_end, draw_head, draw_panels
from .specs import TEAMS
from .story import Event, Flight, Recording

_BEAM_TICKS, _FLAME_TICKS, _PAINT_TICKS = 4.0, 3.0, 6.0
_BURST_TICKS, _KILL_TICKS = 9.0, 18.0
_TRAILS = {"missile": 9.0, "gauss": 2.5, "autocannon": 1.5, "smoke": 1.0}  # ticks of its way that a shot shows
_WAY_POINTS = 120
_END_TICKS = 10.0


class Film(Animation):
    """Pictures of a recording.

    Args:
        recording: of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.
        earlier: a film of less of the same episode, which has the map ready.

    Raises:
        ValueError: a size that is too small.

    Attributes:
        per_second: sub-steps.
    """

    per_second, fps = 1.0 / rules.DT, 20.0

    def __init__(self, recording: Recording, size: tuple[int, int], earlier: Film | None = None) -> None:
        self.recording, self.story, self.size = recording, recording.story, size
        self.layout = Layout(size, self.story.ground.side)
        self._empty: Picture = background(self.layout, self.story.ground) if earlier is None else earlier._empty
        self._places = {mech.name: place for place, mech in enumerate(self.story.mechs)}
        self._deaths = deaths(self.story)
        self._lasting = [(event, ticks) for event in self.story.events if (ticks := _lasts(event))]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last sub-step."""
        return float(self.story.frames.tick[0]), float(self.story.frames.tick[-1])

    def longer(self, recording: Recording) -> Film:
        """Of more of the same episode."""
        return Film(recording, self.layout.size, self)

    def draw(self, tick: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """The picture after so many sub-steps of 0.05 s, uint8 ``[H, W, 3]``.

        Args:
            tick: None: the end.
            pause: sub-steps for which the end has stood still.
            ways: show how everyone came there from the beginning on.
        """
        tick = float(self.story.frames.tick[-1]) if tick is None else tick
        now = moment(self.story, tick)
        picture: Picture = self._empty.copy()
        canvas = self.layout.canvas(picture)
        draw_zone(canvas, now)
        if ways:
            self._draw_ways(canvas, tick)
        self._draw_mechs(canvas, now, tick)
        self._draw_flights(canvas, tick)
        self._draw_events(canvas, tick + pause)
        for cloud in self.story.smoke[now.frame]:
            draw_cloud(canvas, cloud, float(cloud[3]) - (tick - float(self.story.frames.tick[now.frame])))
        self._write_names(picture, now)
        self._clear_margins(picture)
        draw_panels(picture, self.layout, now, self.recording.players)
        draw_head(picture, self.layout, now, self.recording.players, self.recording.title)
        if pause > _END_TICKS:
            draw_end(picture, self.layout, now)
        return picture

    def _clear_margins(self, picture: Picture) -> None:
        """What glows or flies over the edge of the map is cut off there."""
        (left, bottom), side = self.layout.corner, self.layout.side * self.layout.scale
        inside = np.zeros(picture.shape[:2], bool)
        rows = slice(max(round(bottom - side) - 2, 0), round(bottom) + 2)
        inside[rows, max(round(left) - 2, 0) : round(left + side) + 2] = True
        picture[~inside] = self._empty[~inside]

    def _draw_ways(self, canvas: Canvas, tick: float) -> None:
        frames = self.story.frames
        until = int(np.searchsorted(frames.tick, tick, side="right"))
        every = max(1, until // _WAY_POINTS)
        for place, mech in enumerate(self.story.mechs):
            gone = self._deaths.get(place)
            last = until if gone is None else min(until, int(np.searchsorted(frames.tick, gone)) + 1)
            draw_way(canvas, frames.position[:last:every, place], mech.team)

    def _draw_mechs(self, canvas: Canvas, now: Moment, tick: float) -> None:
        living = []
        for place, mech in enumerate(self.story.mechs):
            if self._lives(now, place, tick):
                living.append(place)
            else:
                draw_wreck(canvas, mech, now.position[place])
        for place in living:
            target = int(now.target[place])
            if target >= 0 and self._lives(now, target, tick):
                draw_aim(canvas, self.story.mechs[place], now.position[place], now.position[target])
        for place in sorted(living, key=lambda place: float(now.position[place, 2])):
            draw_mech(canvas, self.story.mechs[place], now, place)
        for place in living:
            draw_bars(canvas, self.story.mechs[place], now, place)

    def _lives(self, now: Moment, place: int, tick: float) -> bool:
        return now.alive(place) and tick < self._deaths.get(place, np.inf)

    def _draw_flights(self, canvas: Canvas, tick: float) -> None:
        for flight in self.story.flights:
            if flight.ticks[0] <= tick <= flight.ticks[-1] and len(flight.ticks) > 1:
                first = max(tick - _TRAILS[flight.weapon], float(flight.ticks[0]))
                times = np.linspace(first, tick, 6 if flight.weapon == "missile" else 2)
                draw_flight(canvas, flight.weapon, _way(flight, times), _team(flight.owner))

    def _draw_events(self, canvas: Canvas, tick: float) -> None:
        for event, ticks in self._lasting:
            # An event is of the sub-step that ends at its tick.
            age = (tick - event.tick + 1) / ticks
            if 0 < age < 1:
                self._draw_event(canvas, event, float(age), tick)

    def _draw_event(self, canvas: Canvas, event: Event, age: float, tick: float) -> None:
        told, kind = event.details, event.type
        if kind in ("laser_hit", "flamer_hit"):
            draw_beam(canvas, told["start"], told["pos"], _team(told["shooter"]), age, kind == "flamer_hit")
        elif kind == "explosion":
            draw_burst(canvas, told["pos"], 1.2 * told["radius"], age, (255, 176, 90))
        elif kind == "projectile_hit":
            draw_burst(canvas, told["pos"], 0.9, age, (255, 240, 190))
        elif kind == "kill":
            draw_burst(canvas, told["pos"], 4.2, age, TEAM_COLOURS[_team(told["target"])])
        else:
            now = moment(self.story, tick)
            start = now.position[self._places[told["mech" if kind == "ams_intercept" else "shooter"]]]
            end = told["pos"] if kind == "ams_intercept" else now.position[self._places[told["target"]]]
            colour = (130, 240, 255) if kind == "ams_intercept" else PAINT
            line(canvas, placed(start), placed(end), 0.2, colour, 0.8 * (1 - age))
            if kind == "ams_intercept":
                draw_burst(canvas, told["pos"], 0.8, age, colour)

    def _write_names(self, picture: Picture, now: Moment) -> None:
        for place, mech in enumerate(self.story.mechs):
            if self._lives(now, place, now.tick):
                x, y = placed(now.position[place]) * self.layout.scale + np.array(self.layout.corner)
                y += (0.5 * width_of(mech) + 0.7) * self.layout.scale
                text, size = f"{mech.kind[0].upper()}{mech.slot}", self.layout.points(10)
                write(picture, text, x + 1, y + 1, size, (0, 0, 0), 0.5, bold=True)
                write(picture, text, x, y, size, TEAM_LIGHT[mech.team], 0.5, bold=True)


def _lasts(event: Event) -> float:
    """For how many sub-steps an event is shown."""
    ticks = {
        **{"laser_hit": _BEAM_TICKS, "flamer_hit": _FLAME_TICKS, "paint": _PAINT_TICKS, "ams_intercept": _PAINT_TICKS},
        **{"explosion": _BURST_TICKS, "projectile_hit": 0.6 * _BURST_TICKS, "kill": _KILL_TICKS},
    }
    return ticks.get(event.type, 0.0)


def _team(name: str) -> int:
    return TEAMS.index(name.partition("_")[0])


def _way(flight: Flight, times: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(times, flight.ticks, flight.places[:, axis]) for axis in range(3)], -1)
