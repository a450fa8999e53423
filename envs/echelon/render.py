"""Animations of Echelon: the map between panels of all mechs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..rendering.canvas import Canvas, Colour, Legend, Picture, banner, box, meter, shortened, write
from ..rendering.films import Animation
from . import drawing, rules
from .drawing import BAD, FAINT, HEAT, PAPER, PLATE, TEAM_COLOURS, EchelonLayout
from .events import Event, Flight
from .recording import EchelonRecording, Moment, deaths, moment
from .rules import TEAMS

SIZE, TILE = (1280, 720), (960, 540)
"""Width and height of pictures, and of overviews, in pixels."""
LEGEND: Legend = (
    *(("■", f"{team} mech and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(
        ("○", "zone", PAPER),
        ("✕", "wreck", FAINT),
        ("▬", "hit points, above heat", (110, 230, 120)),
        ("▬", "heat", HEAT),
    ),
)
_BALANCE: Colour = (150, 170, 255)
_TALL, _LOW = 116.0, 60.0  # height of a mech's plate in lines of 720, in teams of five and of ten


# -- panels --------------------------------------------------------------------------------------------------------


def draw_head(picture: Picture, layout: EchelonLayout, now: Moment, title: str) -> None:
    """Draws the clock, and scores as bars that grow towards it and are full at the winning score."""
    unit, middle = layout.unit, layout.size[0] / 2
    seconds = now.tick * rules.DT
    clock = f"{int(seconds // 60)}:{seconds % 60:04.1f}"
    write(picture, clock, middle, 22 * unit, layout.points(24), PAPER, 0.5, bold=True)
    write(picture, _holder(now), middle, 48 * unit, layout.points(12), drawing.zone_colour(now, FAINT), 0.5, bold=True)
    reach = 0.5 * layout.side * layout.scale - 78 * unit
    for team, colour in enumerate(TEAM_COLOURS):
        sign = -1 if team == 0 else 1
        near, far = middle + sign * 78 * unit, middle + sign * (78 * unit + reach)
        share = min(float(now.score[team]) / now.record.to_win, 1.0)
        left = min(near, far)
        box(picture, left, 36 * unit, reach, 14 * unit, FAINT, 0.22)
        start = far if team == 0 else far - reach * share
        box(picture, start, 36 * unit, reach * share, 14 * unit, colour)
        text = f"{now.score[team]:.1f} / {now.record.to_win:.0f}"
        write(picture, text, near, 20 * unit, layout.points(15), colour, 1.0 if team == 0 else 0.0, bold=True)
    if title:
        write(picture, title, layout.corner[0], 20 * unit, layout.points(12), FAINT)


def _holder(now: Moment) -> str:
    blue, red = now.held
    return "CONTESTED" if blue and red else "BLUE HOLDS" if blue else "RED HOLDS" if red else "ZONE EMPTY"


def draw_panels(picture: Picture, layout: EchelonLayout, now: Moment, players: Sequence[str]) -> None:
    """Draws a column for each team with its player and its mechs."""
    unit, width = layout.unit, min(layout.panel - 24 * layout.unit, 300 * layout.unit)
    for team, colour in enumerate(TEAM_COLOURS):
        left = 12 * unit if team == 0 else layout.size[0] - 12 * unit - width
        here = [place for place, mech in enumerate(now.record.mechs) if mech.team == team]
        box(picture, left, 10 * unit, width, 46 * unit, PLATE)
        box(picture, left, 10 * unit, width, 3 * unit, colour)
        name = shortened(players[team], layout.points(17), width - 110 * unit)
        write(picture, name, left + 10 * unit, 34 * unit, layout.points(17), PAPER, bold=True)
        kills, damage = int(now.kills[here].sum()), float(now.damage[here].sum())
        text = f"kills {kills}   damage {damage:.0f}"
        write(picture, text, left + width - 10 * unit, 34 * unit, layout.points(12), FAINT, 1.0)
        high = _TALL if len(here) <= 5 else _LOW
        for row, place in enumerate(here):
            _draw_mech(picture, layout, now, place, (left, (64 + row * (high + 6)) * unit, width, high * unit), team)


def _draw_mech(
    picture: Picture, layout: EchelonLayout, now: Moment, place: int, at: tuple[float, float, float, float], team: int
) -> None:
    (left, top, width, high), unit, mech = at, layout.unit, now.record.mechs[place]
    alive, small = now.alive(place), high < 80 * layout.unit
    colour = TEAM_COLOURS[team] if alive else FAINT
    box(picture, left, top, width, high, PLATE, 1.0 if alive else 0.55)
    box(picture, left, top, 3 * unit, high, colour, 0.9 if alive else 0.3)
    x, right = left + 12 * unit, left + width - 10 * unit
    size = layout.points(13)
    write(picture, f"{mech.kind.upper()} {mech.slot}", x, top + 14 * unit, size, colour, bold=True)
    text, tint = state_of(now, place)
    write(picture, text, right, top + 14 * unit, layout.points(12), tint, 1.0, bold=tint == BAD)
    health, heat = max(float(now.hp[place]), 0.0), float(now.heat[place]) if alive else 0.0
    chassis = mech.chassis
    tone = drawing.health_colour(health / chassis.hp)
    stability = float(now.stability[place]) if alive else 0.0
    rows = [("hp", health, chassis.hp, tone, f"{health:.0f}"), ("heat", heat, chassis.heat_cap, HEAT, f"{heat:.0f}")]
    rows.append(("bal", stability, rules.STABILITY, _BALANCE, f"{stability:.0f}"))
    step, first, thick = (14, 30, 8) if small else (20, 36, 11)
    for row, (name, value, most, shade, number) in enumerate(rows[: 2 if small else 3]):
        y = top + (first + step * row) * unit
        write(picture, name, x, y, layout.points(11), FAINT)
        begin, end = x + 34 * unit, right - 36 * unit
        meter(picture, (begin, end), y, thick * unit, value / most, shade, FAINT)
        write(picture, number, right, y, layout.points(12), PAPER if alive else FAINT, 1.0)
    if not small:
        counted = f"kills {int(now.kills[place])}   damage {now.damage[place]:.0f}"
        write(picture, counted, x, top + 100 * unit, layout.points(11), FAINT)
        target = int(now.target[place])
        if alive and target >= 0:
            foe = now.record.mechs[target]
            aim = f"aims at {foe.kind} {foe.slot}"
            write(picture, aim, right, top + 100 * unit, layout.points(11), TEAM_COLOURS[foe.team], 1.0)


def state_of(now: Moment, place: int) -> tuple[str, Colour]:
    """Returns the most important conditions of a mech in a word or two."""
    mech, clocks = now.record.mechs[place], now.clocks[place]
    if not now.alive(place):
        return "destroyed", FAINT
    if now.heat[place] > mech.chassis.heat_cap:
        return "SHUT DOWN", BAD
    if clocks[rules.FALLEN] > 0:
        return f"DOWN {clocks[rules.FALLEN] * rules.DT:.1f} s", BAD
    found = ["painted"] if clocks[rules.PAINTED] > 0 else []
    found += ["legged"] if now.legs[place] <= 0 else []
    found += ["suppressed"] if clocks[rules.SUPPRESSED] > 0 else []
    found += [("ECM", "ECCM")[int(now.ewar[place]) - 1]] if now.ewar[place] > 0 else []
    found += ["in zone"] if now.inside[place] else []
    return ", ".join(found[:2]) or "ok", drawing.PAINT if clocks[rules.PAINTED] > 0 else PAPER if found else FAINT


# -- the animation -------------------------------------------------------------------------------------------------


_LASTS = {
    **{"laser_hit": 4.0, "flamer_hit": 3.0, "paint": 6.0, "ams_intercept": 6.0},
    **{"explosion": 9.0, "projectile_hit": 0.6 * 9.0, "kill": 18.0},
}
"""Number of sub-steps for which an event is visible; other events are not drawn."""
_TRAILS = {"missile": 9.0, "gauss": 2.5, "autocannon": 1.5, "smoke": 1.0}  # ticks of its way that a shot shows
_WAY_POINTS = 120
_END_TICKS = 10.0


class EchelonAnimation(Animation):
    """Animation of a recording.

    Args:
        recording: recording of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.
        earlier: an animation of an earlier part of the episode, whose map is reused.

    Raises:
        ValueError: the size is too small.

    Attributes:
        per_second: sub-steps per second.
    """

    per_second, fps = 1.0 / rules.DT, 20.0

    def __init__(
        self, recording: EchelonRecording, size: tuple[int, int] = SIZE, earlier: EchelonAnimation | None = None
    ) -> None:
        self.recording, self.record, self.size = recording, recording.record, size
        self.layout = EchelonLayout(size, self.record.ground.side)
        self._empty: Picture = earlier._empty if earlier else drawing.background(self.layout, self.record.ground)
        self._places = {mech.name: place for place, mech in enumerate(self.record.mechs)}
        self._deaths = deaths(self.record)
        self._lasting = [(event, _LASTS[event.type]) for event in self.record.events if event.type in _LASTS]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last sub-step."""
        return float(self.record.frames.tick[0]), float(self.record.frames.tick[-1])

    def longer(self, recording: EchelonRecording) -> EchelonAnimation:
        """Returns the animation of a longer part of the same episode."""
        return EchelonAnimation(recording, self.layout.size, self)

    def draw(self, tick: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """Draws the match after ``tick`` sub-steps of 0.05 s, uint8 ``[H, W, 3]``.

        Args:
            tick: number of sub-steps; None: the end.
            pause: number of sub-steps since the end.
            ways: whether to draw the trails of all mechs from the beginning.
        """
        tick = float(self.record.frames.tick[-1]) if tick is None else tick
        now = moment(self.record, tick)
        picture: Picture = self._empty.copy()
        canvas = self.layout.canvas(picture)
        drawing.draw_zone(canvas, now)
        if ways:
            self._draw_ways(canvas, tick)
        self._draw_mechs(canvas, now, tick)
        self._draw_flights(canvas, tick)
        self._draw_events(canvas, tick + pause)
        for cloud in self.record.smoke[now.frame]:
            drawing.draw_cloud(canvas, cloud, float(cloud[3]) - (tick - float(self.record.frames.tick[now.frame])))
        self._write_names(picture, now)
        self._clear_margins(picture)
        draw_panels(picture, self.layout, now, self.recording.players)
        draw_head(picture, self.layout, now, self.recording.title)
        if pause > _END_TICKS:
            self._draw_end(picture, now.record.winner)
        return picture

    def _draw_end(self, picture: Picture, winner: int) -> None:
        layout, team = self.layout, int(winner < 0)
        text, colour = (f"{TEAMS[team].upper()} WINS", TEAM_COLOURS[team]) if winner else ("DRAW", PAPER)
        width, (left, bottom) = layout.side * layout.scale, layout.corner
        middle = left + width / 2, bottom - width / 2
        banner(picture, text, middle, width, 88 * layout.unit, layout.points(50), colour)

    def _clear_margins(self, picture: Picture) -> None:
        """Clips glows and projectiles at the edge of the map."""
        (left, bottom), side = self.layout.corner, self.layout.side * self.layout.scale
        inside = np.zeros(picture.shape[:2], bool)
        rows = slice(max(round(bottom - side) - 2, 0), round(bottom) + 2)
        inside[rows, max(round(left) - 2, 0) : round(left + side) + 2] = True
        picture[~inside] = self._empty[~inside]

    def _draw_ways(self, canvas: Canvas, tick: float) -> None:
        frames = self.record.frames
        until = int(np.searchsorted(frames.tick, tick, side="right"))
        every = max(1, until // _WAY_POINTS)
        for place, mech in enumerate(self.record.mechs):
            gone = self._deaths.get(place)
            last = until if gone is None else min(until, int(np.searchsorted(frames.tick, gone)) + 1)
            canvas.way(drawing.flat(frames.position[:last:every, place]), 0.3, TEAM_COLOURS[mech.team])

    def _draw_mechs(self, canvas: Canvas, now: Moment, tick: float) -> None:
        living = []
        for place, mech in enumerate(self.record.mechs):
            if self._lives(now, place, tick):
                living.append(place)
            else:
                drawing.draw_wreck(canvas, mech, now.position[place])
        for place in living:
            target = int(now.target[place])
            if target >= 0 and self._lives(now, target, tick):
                drawing.draw_aim(canvas, self.record.mechs[place], now.position[place], now.position[target])
        for place in sorted(living, key=lambda place: float(now.position[place, 2])):
            drawing.draw_mech(canvas, self.record.mechs[place], now, place)
        for place in living:
            drawing.draw_bars(canvas, self.record.mechs[place], now, place)

    def _lives(self, now: Moment, place: int, tick: float) -> bool:
        return now.alive(place) and tick < self._deaths.get(place, np.inf)

    def _draw_flights(self, canvas: Canvas, tick: float) -> None:
        for flight in self.record.flights:
            if flight.ticks[0] <= tick <= flight.ticks[-1] and len(flight.ticks) > 1:
                first = max(tick - _TRAILS[flight.weapon], float(flight.ticks[0]))
                times = np.linspace(first, tick, 6 if flight.weapon == "missile" else 2)
                drawing.draw_flight(canvas, flight.weapon, _way(flight, times), _team(flight.owner))

    def _draw_events(self, canvas: Canvas, tick: float) -> None:
        for event, ticks in self._lasting:
            # An event belongs to the sub-step that ends at its tick.
            age = (tick - event.tick + 1) / ticks
            if 0 < age < 1:
                self._draw_event(canvas, event, float(age), tick)

    def _draw_event(self, canvas: Canvas, event: Event, age: float, tick: float) -> None:
        told, kind = event.details, event.type

        def burst(reach: float, colour: Colour) -> None:
            canvas.burst(drawing.flat(told["pos"]), reach, age, colour, 9, 0.3, flash=drawing.FLASH)

        if kind in ("laser_hit", "flamer_hit"):
            drawing.draw_beam(canvas, told["start"], told["pos"], _team(told["shooter"]), age, kind == "flamer_hit")
        elif kind == "explosion":
            burst(1.2 * told["radius"], (255, 176, 90))
        elif kind == "projectile_hit":
            burst(0.9, (255, 240, 190))
        elif kind == "kill":
            burst(4.2, TEAM_COLOURS[_team(told["target"])])
        else:
            now = moment(self.record, tick)
            start = now.position[self._places[told["mech" if kind == "ams_intercept" else "shooter"]]]
            end = told["pos"] if kind == "ams_intercept" else now.position[self._places[told["target"]]]
            colour = (130, 240, 255) if kind == "ams_intercept" else drawing.PAINT
            canvas.line(drawing.flat(start), drawing.flat(end), 0.2, colour, 0.8 * (1 - age))
            if kind == "ams_intercept":
                burst(0.8, colour)

    def _write_names(self, picture: Picture, now: Moment) -> None:
        for place, mech in enumerate(self.record.mechs):
            if self._lives(now, place, now.tick):
                x, y = drawing.flat(now.position[place]) * self.layout.scale + np.array(self.layout.corner)
                y += (0.5 * drawing.drawn_width(mech) + 0.7) * self.layout.scale
                text, size = f"{mech.kind[0].upper()}{mech.slot}", self.layout.points(10)
                write(picture, text, x + 1, y + 1, size, (0, 0, 0), 0.5, bold=True)
                write(picture, text, x, y, size, drawing.TEAM_LIGHT[mech.team], 0.5, bold=True)


def _team(name: str) -> int:
    return TEAMS.index(name.partition("_")[0])


def _way(flight: Flight, times: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(times, flight.ticks, flight.places[:, axis]) for axis in range(3)], -1)
