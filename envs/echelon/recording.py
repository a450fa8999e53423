"""Recordings of episodes of Echelon, and how they are drawn.

A picture shows the map from above, y up, with its zone, mechs, shots and smoke, between panels of the mechs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..foundation.files import write_text
from ..recording import EpisodeRecorder, EpisodeRecording, Frames, Row
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
    write,
)
from ..rendering.films import Animation
from . import rules
from .events import Event, EventFinder, Flight, unfold
from .maps import FOLIAGE, LAVA, LOW_WALL, WATER
from .match import EchelonOptions, ends
from .replay import COLUMNS, MatchRecord, Mech, RecordedMap, Replay, as_json, moment, read_replay, save_page
from .rewards import hold
from .rules import MAP, SUB_STEPS, TEAMS
from .state import State
from .tables import Tables

Array = NDArray[Any]

BLUE: Colour = (74, 158, 255)
RED: Colour = (255, 92, 84)
TEAM_COLOURS = (BLUE, RED)
TEAM_LIGHT: tuple[Colour, Colour] = ((190, 222, 255), (255, 200, 196))
_FLOOR: Colour = (34, 40, 48)
_TOP: Colour = (150, 156, 166)
_KINDS: dict[int, Colour] = {FOLIAGE: (36, 70, 46), WATER: (26, 62, 104), LAVA: (150, 58, 22), LOW_WALL: (108, 98, 74)}
_HIGHEST = 8.0
_HEAD, _FOOT = 66, 10


# -- the map -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EchelonLayout(PictureLayout):
    """The layout of a picture in pixels; see :class:`~rlstack.envs.rendering.canvas.PictureLayout`.

    Args:
        side: side of the map in voxels.
    """

    side: int = MAP

    @property
    def scale(self) -> float:
        """Pixels per voxel."""
        high = self.size[1] - (_HEAD + _FOOT) * self.unit
        return min(high, self.size[0] - 2 * 300 * self.unit) / self.side

    @property
    def corner(self) -> tuple[float, float]:
        """Lower left corner of the map, (0, 0)."""
        rest = self.size[1] - (_HEAD + _FOOT) * self.unit - self.side * self.scale
        return (self.size[0] - self.side * self.scale) / 2, _HEAD * self.unit + rest / 2 + self.side * self.scale

    @property
    def panel(self) -> float:
        """Width of the left and right panels."""
        return self.corner[0]

    def canvas(self, picture: Picture) -> Canvas:
        """Returns a canvas with coordinates (x, -y) in voxels."""
        return Canvas(picture, self.scale, self.corner)


def background(layout: EchelonLayout, ground: RecordedMap) -> Picture:
    """Draws the empty map."""
    width, height = layout.size
    light = np.empty((height, width, 3), np.float32)
    light[:] = NIGHT
    x = (np.arange(width) + 0.5 - layout.corner[0]) / layout.scale
    y = (layout.corner[1] - np.arange(height) - 0.5) / layout.scale
    columns, rows = (np.flatnonzero((values >= 0) & (values < ground.side)) for values in (x, y))
    edge = np.maximum(np.maximum(-x, x - ground.side)[None], np.maximum(-y, y - ground.side)[:, None])
    part, x, y = np.ix_(rows, columns), x[columns][None], y[rows][:, None]
    column, row = x.astype(int) + 0 * y.astype(int), y.astype(int) + 0 * x.astype(int)
    tall = ground.height[row, column].astype(np.float32)
    share = (tall / _HIGHEST)[..., None]
    floor, top = np.array(_FLOOR, np.float32), np.array(_TOP, np.float32)
    lit = np.where(share > 0, floor + (0.22 + 0.78 * share) * (top - floor), floor)
    kind = ground.kind[row, column]
    lay(lit, ((column // 8 + row // 8) % 2 == 0) & (tall == 0), (255, 255, 255), 0.016)
    inner = np.minimum(np.minimum(x % 1, 1 - x % 1), np.minimum(y % 1, 1 - y % 1))
    ripple = 0.5 + 0.5 * np.sin(2.1 * x + 1.3 * np.sin(1.7 * y)) * np.sin(1.9 * y)
    for name, colour in _KINDS.items():
        here = (kind == name) & (tall == 0)
        strength: Any = 0.95
        if name == FOLIAGE:
            away = np.hypot(x % 1 - 0.5, y % 1 - 0.5)
            strength = 0.5 + 0.5 * np.clip(1 - 1.6 * away, 0, 1)
            lay(lit, here * np.clip((0.42 - away) * layout.scale, 0, 1), (62, 118, 70), 0.75)
            strength = strength * (away > 0.42)
        elif name in (WATER, LAVA):
            strength = 0.75 + 0.25 * ripple
        elif name == LOW_WALL:
            strength = 0.55 + 0.45 * (inner > 0.12)
        lay(lit, here * strength, colour)
    lay(lit, ((kind == LAVA) & (tall == 0)) * np.clip(ripple - 0.55, 0, 1) * 1.6, (255, 170, 60))
    # The shadows of higher ground to the lower right, and its bright upper left edges.
    for reach in (0.25, 0.5, 0.75, 1.0):
        other = _at(ground.height, x - reach, y + reach)
        lay(lit, (other > tall) * np.clip((other - tall) / 4, 0.25, 1) * (1.15 - reach), (0, 0, 0), 0.26)
    line = max(0.12, 1.0 / layout.scale)
    for right, up, colour, most in ((-line, 0, (255,) * 3, 0.30), (0, line, (255,) * 3, 0.30),
                                    (line, 0, (0,) * 3, 0.35), (0, -line, (0,) * 3, 0.35)):  # fmt: skip
        lower = _at(ground.height, x + right, y + up) < tall
        lay(lit, lower, colour, most)
    light[part] = lit
    lay(light, np.clip(1.5 - np.abs(edge * layout.scale - 1), 0, 1), FAINT, 0.6)
    picture: Picture = np.clip(light, 0, 255).astype(np.uint8)
    return picture


def _at(layer: Array, x: Array, y: Array) -> Array:
    edge = len(layer) - 1e-3
    column, row = np.clip(x, 0, edge).astype(int), np.clip(y, 0, edge).astype(int)
    values: Array = layer[row + 0 * column, column + 0 * row].astype(np.float32)
    return values


# -- objects on the map --------------------------------------------------------------------------------------------


BAD: Colour = (255, 90, 80)
HEAT: Colour = (255, 168, 58)
PAINT: Colour = (255, 226, 90)
CONTESTED: Colour = (214, 140, 255)
_SMOKE: Colour = (176, 182, 190)
_FLAME: Colour = (255, 140, 40)
_BALANCE: Colour = (150, 170, 255)
_TALL, _LOW = 116.0, 60.0  # height of a mech's plate in lines of 720, in teams of five and of ten
FLASH: Colour = (255, 214, 140)
_SHELL: Colour = (255, 226, 150)
_MORE = 0.6  # voxels by which mechs are enlarged for visibility
_SHAPES: dict[str, tuple[tuple[float, float], ...]] = {  # counter-clockwise with y up; x is ahead
    "heavy": (
        *((0.5, -0.28), (0.5, 0.28), (0.28, 0.5), (-0.42, 0.5)),
        *((-0.5, 0.4), (-0.5, -0.4), (-0.42, -0.5), (0.28, -0.5)),
    ),
    "medium": ((0.55, 0.0), (0.12, 0.5), (-0.48, 0.42), (-0.48, -0.42), (0.12, -0.5)),
    "light": ((0.62, 0.0), (-0.15, 0.52), (-0.5, 0.3), (-0.5, -0.3), (-0.15, -0.52)),
    "scout": ((0.7, 0.0), (-0.5, 0.5), (-0.5, -0.5)),
}


def flat(place: Any) -> Array:
    """Converts a place ``[..., 2 or more]`` to drawing coordinates."""
    values = np.asarray(place, float)
    return np.stack((values[..., 0], -values[..., 1]), -1)


def drawn_width(mech: Mech) -> float:
    """Returns the width at which a mech is drawn, in voxels."""
    return mech.chassis.width + _MORE


def held(now: Frames) -> tuple[bool, bool]:
    """Returns whether blue, and red, have a mech in the zone."""
    teams = np.array([mech.team for mech in now.record.mechs])
    return bool(now.inside[teams == 0].any()), bool(now.inside[teams == 1].any())


def zone_colour(now: Frames, empty: Colour) -> Colour:
    """Returns the colour of the team that holds the zone."""
    blue, red = held(now)
    return CONTESTED if blue and red else BLUE if blue else RED if red else empty


def health_colour(share: float) -> Colour:
    """Returns green above half of the hit points, yellow above a quarter, otherwise red."""
    return (110, 230, 120) if share > 0.5 else (255, 210, 80) if share > 0.25 else BAD


def draw_zone(canvas: Canvas, now: Frames) -> None:
    """Draws the zone as a ring in the colour of the team that holds it."""
    x, y, radius = now.record.ground.zone
    colour, at = zone_colour(now, PAPER), flat((x, y))
    canvas.disc(at, radius, colour, 0.10 if any(held(now)) else 0.05)
    canvas.ring(at, radius, 0.28, colour, 0.9)
    for mark in range(4):
        way = np.array([np.cos(mark * np.pi / 2), np.sin(mark * np.pi / 2)])
        canvas.line(at + (radius - 0.7) * way, at + (radius + 0.7) * way, 0.28, colour, 0.9)


def draw_wreck(canvas: Canvas, mech: Mech, place: Array) -> None:
    """Draws a cross at the place where a mech died."""
    at, size = flat(place), 0.42 * drawn_width(mech)
    colour = mixed(BLACK, TEAM_COLOURS[mech.team], 0.55)
    for way in (np.array([1.0, 1.0]), np.array([1.0, -1.0])):
        canvas.line(at - size * way * 0.7, at + size * way * 0.7, 0.34, colour, 0.75)


def draw_mech(canvas: Canvas, mech: Mech, now: Frames, place: int) -> None:
    """Draws a mech's body with its nose ahead, and marks for its conditions."""
    x, y, z = now.position[place]
    yaw, size, colour = now.yaw[place], drawn_width(mech), TEAM_COLOURS[mech.team]
    ground = now.record.ground
    column, row = (int(np.clip(value, 0, ground.side - 1)) for value in (x, y))
    lift = max(float(z - float(ground.height[row, column])), 0.0)
    at, clocks = flat((x, y)), now.clocks[place]
    body = mixed(BLACK, colour, 0.30 if clocks[rules.FALLEN] > 0 else 0.62)
    canvas.polygon(_body(mech, x, y, yaw, size) + 0.25 + 0.3 * lift, BLACK, 0.45)
    if now.ewar[place] > 0:
        ecm = now.ewar[place] == 1
        canvas.ring(at, 0.95 * size + 0.5, 0.12, CONTESTED if ecm else (120, 255, 200), 0.8)
    corners = _body(mech, x, y, yaw, size * (1 + 0.05 * lift))
    canvas.polygon(corners, body, glow=0.16, spread=0.7)
    canvas.polygon(corners, mixed(colour, WHITE, 0.25), line=0.16)
    ahead = flat((np.cos(yaw), np.sin(yaw)))
    if clocks[rules.FALLEN] > 0:
        canvas.line(at - 0.4 * size * ahead[::-1], at + 0.4 * size * ahead[::-1], 0.22, PAPER, 0.8)
    else:
        canvas.line(at, at + 0.72 * size * ahead, 0.22, PAPER, 0.95)
    if now.heat[place] > mech.chassis.heat_cap:
        canvas.ring(at, 0.62 * size, 0.2, HEAT, 0.9)
    if clocks[rules.PAINTED] > 0:
        reach = 0.75 * size + 0.3
        for right, up in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            corner = at + np.array([right, up]) * reach
            canvas.line(corner, corner - np.array([right * 0.45 * reach, 0.0]), 0.14, PAINT)
            canvas.line(corner, corner - np.array([0.0, up * 0.45 * reach]), 0.14, PAINT)


def draw_bars(canvas: Canvas, mech: Mech, now: Frames, place: int) -> None:
    """Draws bars of hit points and heat above its body."""
    at = flat(now.position[place]) - np.array([0.0, 0.55 * drawn_width(mech) + 0.95])
    health = float(np.clip(now.hp[place] / mech.chassis.hp, 0, 1))
    heat = float(np.clip(now.heat[place] / mech.chassis.heat_cap, 0, 1))
    half = 1.25
    for row, (share, colour) in enumerate(((health, health_colour(health)), (heat, HEAT))):
        left = at + np.array([-half, -0.28 + 0.42 * row])
        _bar(canvas, left, 2 * half, 0.34, BLACK, 0.7)
        if share > 0:
            _bar(canvas, left, 2 * half * share, 0.34, colour, 0.95)


def _bar(canvas: Canvas, left: Array, width: float, height: float, colour: Colour, opacity: float) -> None:
    x, y = left
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    canvas.polygon(corners, colour, opacity)


def draw_aim(canvas: Canvas, mech: Mech, start: Array, end: Array) -> None:
    """Draws a fine dotted line to the chosen target."""
    one, two = flat(start), flat(end)
    length = float(np.hypot(*(two - one)))
    for part in range(int(length / 1.2)):
        canvas.disc(one + (two - one) * (part * 1.2 / max(length, 1e-6)), 0.09, TEAM_COLOURS[mech.team], 0.55)


def draw_beam(canvas: Canvas, start: Array, end: Array, team: int, age: float, flame: bool) -> None:
    """Draws a laser or a flame; ``age`` is from 0 to 1."""
    one, two, left = flat(start), flat(end), 1 - age
    if flame:
        canvas.streak(one, two, 0.9, _FLAME, 0.75 * left, glow=0.4 * left, spread=1.0)
        canvas.disc(two, 0.5, _FLAME, 0.7 * left)
        return
    canvas.line(one, two, 0.42, TEAM_COLOURS[team], 0.55 * left, glow=0.5 * left)
    canvas.line(one, two, 0.17, WHITE, 0.95 * left)
    canvas.disc(two, 0.45, WHITE, 0.9 * left)


def draw_flight(canvas: Canvas, weapon: str, trail: Array, team: int) -> None:
    """Draws a shot with its recent trail ``[n, 3]``, oldest first."""
    points = flat(trail)
    head, tail = points[-1], points[0]
    colour = TEAM_COLOURS[team]
    if weapon == "missile":
        for one, two in pairwise(points):
            canvas.streak(two, one - (two - one), 0.34, _SMOKE, 0.45)
        canvas.disc(head, 0.42, mixed(colour, WHITE, 0.35), glow=0.5)
        canvas.disc(head, 0.2, WHITE)
    elif weapon == "gauss":
        canvas.streak(head, tail, 0.4, WHITE, 0.95, glow=0.5, spread=0.8)
        canvas.disc(head, 0.34, WHITE)
    elif weapon == "autocannon":
        canvas.streak(head, (head + tail) / 2, 0.3, _SHELL, 0.95, glow=0.3, spread=0.5)
    else:
        canvas.disc(head, 0.34, _SMOKE, 0.95)


def draw_cloud(canvas: Canvas, place: Array, left: float) -> None:
    """Draws smoke that fades in its last seconds; ``left`` is in sub-steps."""
    opacity = 0.42 * float(np.clip(left / 60, 0.15, 1))
    at = flat(place)
    canvas.disc(at, rules.SMOKE_RADIUS, _SMOKE, 0.5 * opacity)
    for puff in range(7):
        away = np.array([np.cos(0.9 * puff), np.sin(0.9 * puff)]) * rules.SMOKE_RADIUS * (0.55 if puff else 0.0)
        canvas.disc(at + away, 0.42 * rules.SMOKE_RADIUS, _SMOKE, 0.5 * opacity)


def _body(mech: Mech, x: float, y: float, yaw: float, size: float) -> Array:
    """Converts corners to drawing coordinates, clockwise with y down."""
    shape = np.array(_SHAPES[mech.kind]) * size
    cos, sin = np.cos(yaw), np.sin(yaw)
    turned = np.stack((x + cos * shape[:, 0] - sin * shape[:, 1], y + sin * shape[:, 0] + cos * shape[:, 1]), -1)
    drawn: Array = flat(turned)[::-1]
    return drawn


# -- panels --------------------------------------------------------------------------------------------------------


def draw_head(picture: Picture, layout: EchelonLayout, now: Frames, title: str) -> None:
    """Draws the clock, and scores as bars that grow towards it and are full at the winning score."""
    unit, middle = layout.unit, layout.size[0] / 2
    seconds = now.tick * rules.DT
    clock = f"{int(seconds // 60)}:{seconds % 60:04.1f}"
    write(picture, clock, middle, 22 * unit, layout.points(24), PAPER, 0.5, bold=True)
    blue, red = held(now)
    holder = "CONTESTED" if blue and red else "BLUE HOLDS" if blue else "RED HOLDS" if red else "ZONE EMPTY"
    write(picture, holder, middle, 48 * unit, layout.points(12), zone_colour(now, FAINT), 0.5, bold=True)
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


def draw_panels(picture: Picture, layout: EchelonLayout, now: Frames, players: Sequence[str]) -> None:
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
    picture: Picture, layout: EchelonLayout, now: Frames, place: int, at: tuple[float, float, float, float], team: int
) -> None:
    (left, top, width, high), unit, mech = at, layout.unit, now.record.mechs[place]
    alive, small = bool(now.hp[place] > 0), high < 80 * layout.unit
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
    tone = health_colour(health / chassis.hp)
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


def state_of(now: Frames, place: int) -> tuple[str, Colour]:
    """Returns the most important conditions of a mech in a word or two."""
    mech, clocks = now.record.mechs[place], now.clocks[place]
    if now.hp[place] <= 0:
        return "destroyed", FAINT
    if now.heat[place] > mech.chassis.heat_cap:
        return "SHUT DOWN", BAD
    if clocks[rules.FALLEN] > 0:
        return f"DOWN {clocks[rules.FALLEN] * rules.DT:.1f} s", BAD
    conditions = ["painted"] if clocks[rules.PAINTED] > 0 else []
    conditions += ["legged"] if now.legs[place] <= 0 else []
    conditions += ["suppressed"] if clocks[rules.SUPPRESSED] > 0 else []
    conditions += [("ECM", "ECCM")[int(now.ewar[place]) - 1]] if now.ewar[place] > 0 else []
    conditions += ["in zone"] if now.inside[place] else []
    return ", ".join(conditions[:2]) or "ok", PAINT if clocks[rules.PAINTED] > 0 else PAPER if conditions else FAINT


# -- films -------------------------------------------------------------------------------------------------------------


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
        replay: one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.
        earlier: an animation of an earlier part of the episode, whose map is reused.

    Raises:
        ValueError: the size is too small.

    Attributes:
        per_second: sub-steps per second.
    """

    per_second, fps = 1.0 / rules.DT, 20.0

    def __init__(
        self, replay: Replay, size: tuple[int, int] = (1280, 720), earlier: EchelonAnimation | None = None
    ) -> None:
        self.replay, self.record, self.size = replay, replay.record, size
        self.layout = EchelonLayout(size, self.record.ground.side)
        self._empty: Picture = earlier._empty if earlier else background(self.layout, self.record.ground)
        self._places = {mech.name: place for place, mech in enumerate(self.record.mechs)}
        self._deaths = {self._places[e.details["target"]]: e.tick for e in self.record.events if e.type == "kill"}
        self._lasting = [(event, _LASTS[event.type]) for event in self.record.events if event.type in _LASTS]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last sub-step."""
        return float(self.record.frames.tick[0]), float(self.record.frames.tick[-1])

    def longer(self, recording: Any) -> EchelonAnimation:
        """Returns the animation of a longer part of the same episode."""
        return EchelonAnimation(recording.replay, self.layout.size, self)

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
        draw_zone(canvas, now)
        if ways:
            until = int(np.searchsorted(self.record.frames.tick, tick, side="right"))
            every = max(1, until // _WAY_POINTS)
            for place, mech in enumerate(self.record.mechs):
                gone = self._deaths.get(place)
                last = until if gone is None else min(until, int(np.searchsorted(self.record.frames.tick, gone)) + 1)
                points = self.record.frames.position[:last:every, place]
                canvas.way(flat(points), 0.3, TEAM_COLOURS[mech.team])
        mechs = self.record.mechs
        living = [place for place in range(len(mechs)) if now.hp[place] > 0 and tick < self._deaths.get(place, np.inf)]
        for place, mech in enumerate(mechs):
            if place not in living:
                draw_wreck(canvas, mech, now.position[place])
        for place in living:
            if (target := int(now.target[place])) in living:
                draw_aim(canvas, mechs[place], now.position[place], now.position[target])
        for place in sorted(living, key=lambda place: float(now.position[place, 2])):
            draw_mech(canvas, mechs[place], now, place)
        for place in living:
            draw_bars(canvas, mechs[place], now, place)
        for flight in self.record.flights:
            if flight.ticks[0] <= tick <= flight.ticks[-1] and len(flight.ticks) > 1:
                first = max(tick - _TRAILS[flight.weapon], float(flight.ticks[0]))
                times = np.linspace(first, tick, 6 if flight.weapon == "missile" else 2)
                trail = [np.interp(times, flight.ticks, flight.places[:, axis]) for axis in range(3)]
                draw_flight(canvas, flight.weapon, np.stack(trail, -1), _team(flight.owner))
        for event, ticks in self._lasting:
            # An event belongs to the sub-step that ends at its tick.
            age = (tick + pause - event.tick + 1) / ticks
            if 0 < age < 1:
                self._draw_event(canvas, event, float(age), tick + pause)
        for cloud in self.record.smoke[now.frame]:
            draw_cloud(canvas, cloud, float(cloud[3]) - (tick - float(self.record.frames.tick[now.frame])))
        for place in living:
            mech = mechs[place]
            x, y = flat(now.position[place]) * self.layout.scale + np.array(self.layout.corner)
            y += (0.5 * drawn_width(mech) + 0.7) * self.layout.scale
            text, size = f"{mech.kind[0].upper()}{mech.slot}", self.layout.points(10)
            write(picture, text, x + 1, y + 1, size, (0, 0, 0), 0.5, bold=True)
            write(picture, text, x, y, size, TEAM_LIGHT[mech.team], 0.5, bold=True)

        # Glows and projectiles end at the edge of the map.
        (left, bottom), side = self.layout.corner, self.layout.side * self.layout.scale
        rows = slice(max(round(bottom - side) - 2, 0), round(bottom) + 2)
        part = rows, slice(max(round(left) - 2, 0), round(left + side) + 2)
        inside = picture[part].copy()
        picture[:] = self._empty
        picture[part] = inside
        draw_panels(picture, self.layout, now, self.replay.players)
        draw_head(picture, self.layout, now, self.replay.title)
        if pause > _END_TICKS:
            winner = self.record.winner
            team = int(winner < 0)
            text, colour = (f"{TEAMS[team].upper()} WINS", TEAM_COLOURS[team]) if winner else ("DRAW", PAPER)
            middle = left + side / 2, bottom - side / 2
            banner(picture, text, middle, side, 88 * self.layout.unit, self.layout.points(50), colour)
        return picture

    def _draw_event(self, canvas: Canvas, event: Event, age: float, tick: float) -> None:
        details, kind = event.details, event.type

        def burst(reach: float, colour: Colour) -> None:
            canvas.burst(flat(details["pos"]), reach, age, colour, 9, 0.3, flash=FLASH)

        if kind in ("laser_hit", "flamer_hit"):
            team, flame = _team(details["shooter"]), kind == "flamer_hit"
            draw_beam(canvas, details["start"], details["pos"], team, age, flame)
        elif kind == "explosion":
            burst(1.2 * details["radius"], (255, 176, 90))
        elif kind == "projectile_hit":
            burst(0.9, (255, 240, 190))
        elif kind == "kill":
            burst(4.2, TEAM_COLOURS[_team(details["target"])])
        else:
            now = moment(self.record, tick)
            start = now.position[self._places[details["mech" if kind == "ams_intercept" else "shooter"]]]
            end = details["pos"] if kind == "ams_intercept" else now.position[self._places[details["target"]]]
            colour = (130, 240, 255) if kind == "ams_intercept" else PAINT
            canvas.line(flat(start), flat(end), 0.2, colour, 0.8 * (1 - age))
            if kind == "ams_intercept":
                burst(0.8, colour)


def _team(name: str) -> int:
    return TEAMS.index(name.partition("_")[0])


# -- recordings ----------------------------------------------------------------------------------------------------


TILE = (960, 540)
"""Width and height of overviews in pixels."""
LEGEND: Legend = (
    *(("■", f"{team} mech and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(("○", "zone", PAPER), ("✕", "wreck", FAINT)),
    *(("▬", "hit points, above heat", (110, 230, 120)), ("▬", "heat", HEAT)),
)


@dataclass(frozen=True, eq=False)
class EchelonRecording(EpisodeRecording):
    """One episode.

    Args:
        source: function that makes the record, called once on first use.
        options: options of the world.
        players: players of blue and red.
        title: title of the pictures.
    """

    overview_columns, has_page, shown = 2, True, LEGEND

    source: Callable[[], MatchRecord] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""

    @cached_property
    def record(self) -> MatchRecord:
        """The episode, computed on first use."""
        return self.source()

    @property
    def frames(self) -> Frames:
        """The states."""
        return self.record.frames

    @property
    def replay(self) -> Replay:
        """The content of its file."""
        return Replay(self.record, self.options, self.players, self.title)

    def named(self, players: tuple[str, str], title: str = "") -> EchelonRecording:
        """Returns the same recording with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Returns an animation with sub-steps as time."""
        return EchelonAnimation(self.replay)

    def overview(self) -> Picture:
        """Draws the end, with trails of all mechs that brighten with time."""
        return EchelonAnimation(self.replay, TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """Writes a file atomically; makes missing folders. See :mod:`rlstack.envs.echelon.replay`.

        Raises:
            ValueError: the suffix is not ``.json``.
        """
        path = Path(path)
        if path.suffix != ".json":
            raise ValueError(f"cannot write {path.name}: the ending of a replay is .json")
        write_text(path, as_json(self.replay))

    def save_page(self, path: str | Path) -> None:
        """See :func:`rlstack.envs.echelon.replay.save_page`."""
        save_page(self.replay, path)


def load_replay(path: str | Path) -> EchelonRecording:
    """Reads a file of :meth:`EchelonRecording.save_replay`.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its parts do not fit each other.
    """
    replay = read_replay(path)
    return EchelonRecording(lambda: replay.record, replay.options, replay.players, replay.title)


# -- the recorder --------------------------------------------------------------------------------------------------


class EchelonRecorder(EpisodeRecorder[EchelonRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        match, orders = self._env.worlds, self._env.orders
        values = {"kills": match.events[0], "damage": match.damage, "winner": match.winner}
        if orders is not None:
            values["orders"] = orders  # [teams, 10, n, W] that led here
        state = match.state.map(lambda value: value.index_select(-1, worlds))
        state = state.replace(memory=state.memory[:0])  # the mechs' memory does not influence recorded values
        terminated, truncated, _ = ends(state, self._env.match_options)
        picked = {name: value.index_select(-1, worlds) for name, value in values.items()}
        return {**dict(state.items()), **picked, "clock": state.steps, "over": terminated | truncated}

    def _recording(self, frames: list[Row], title: str) -> EchelonRecording:
        source = cache(partial(_match_record, frames, self._env.tables, self._env.match_options))
        return EchelonRecording(source, dict(self._env.options), title=title)


@torch.no_grad()
def _match_record(rows: list[Row], tables: Tables, options: EchelonOptions) -> MatchRecord:
    """Makes the record of a match from the recorder's states."""

    def column(name: str) -> Tensor:
        """Returns ``[..., T]``; orders of the first state are missing if it is the first of the env."""
        values = [row.get(name, rows[-1][name]) for row in rows]
        return torch.from_numpy(np.stack(values, -1)).to(tables.present.device)

    state = State(**{entry.name: column(entry.name) for entry in fields(State)})
    mechs = tuple(Mech(team, slot) for team, slot in np.argwhere(tables.present[..., 0].cpu().numpy() > 0).tolist())
    first, side = int(state.base[0]), tables.side
    layers = (tables.maps.height, tables.maps.kind)
    height, kind = (layer[first : first + side**2].view(side, side).cpu().numpy().copy() for layer in layers)
    x, y, radius = (float(value) for value in state.zone[:, 0].float())
    ground = RecordedMap(height, kind, (x, y, radius), first // side**2)
    events: list[Event] = []
    flights: list[Flight] = []
    if len(rows) > 1 and "orders" in rows[-1]:
        report = EventFinder(unfold(state, column("orders"), tables, options), ground.height)
        events, flights = report.events, report.flights
    held = hold(state, tables)
    places = torch.tensor([mech.team * tables.mechs + mech.slot for mech in mechs])

    def of_mechs(value: Tensor, dim: int = 0) -> Array:
        """Returns ``[T, M, ...]`` from ``[..., 2, n, T]``, with the teams in dimension ``dim``."""
        picked = value.cpu().flatten(dim, dim + 1).index_select(dim, places)
        return picked.movedim(-1, 0).movedim(dim + 1, 1).numpy()

    # Chosen slots as places among the mechs; -1 for missing ones.
    numbers, slots = {(mech.team, mech.slot): index for index, mech in enumerate(mechs)}, of_mechs(state.focus)
    target = [[numbers.get((1 - mech.team, int(slot)), -1) for mech, slot in zip(mechs, row)] for row in slots]
    values = {
        "tick": (state.steps * SUB_STEPS).round().cpu().numpy(),
        "score": state.score.T.cpu().numpy(),
        "control": held.control[0].cpu().numpy(),
        "position": of_mechs(state.position, 1),
        "velocity": of_mechs(state.velocity, 1),
        "clocks": of_mechs(state.clocks.transpose(0, 1), 1),
        "target": np.array(target),
        "inside": of_mechs(held.inside),
        **{name: of_mechs(column(name)) for name in ("kills", "damage")},
        **{
            name: of_mechs(getattr(state, name))
            for name in ("yaw", "hp", "legs", "heat", "stability", "quality", "jam", "ewar")
        },
    }
    clouds = state.clouds.flatten(1, -2).permute(2, 1, 0).cpu().numpy().astype(np.float32)
    return MatchRecord(
        ground,
        mechs,
        Frames(**{name: values[name].astype(kind) for name, (kind, _) in COLUMNS.items()}),
        tuple(row[row[:, 3] > 0] for row in clouds),
        tuple(events),
        tuple(flights),
        int(rows[-1]["winner"]),
        options.to_win,
    )
