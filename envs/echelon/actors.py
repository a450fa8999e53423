"""What moves in a picture of Echelon: mechs, shots, beams, smoke, and the zone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rendering.canvas import Canvas, Colour
from . import rules
from .board import PAPER, TEAM_COLOURS
from .moment import Moment
from .story import Mech

Array = NDArray[Any]

_WHITE: Colour = (255, 255, 255)
_BLACK: Colour = (0, 0, 0)
HEAT: Colour = (255, 168, 58)
PAINT: Colour = (255, 226, 90)
CONTESTED: Colour = (214, 140, 255)
_SMOKE: Colour = (176, 182, 190)
_FLAME: Colour = (255, 140, 40)
_SHELL: Colour = (255, 226, 150)
_LARGER, _MORE = 1.0, 0.6  # than life are mechs, to be seen from afar: so many times, and voxels
_SHAPES: dict[str, tuple[tuple[float, float], ...]] = {  # counter-clockwise with y up; x is ahead
    "heavy": (
        (0.5, -0.28),
        (0.5, 0.28),
        (0.28, 0.5),
        (-0.42, 0.5),
        (-0.5, 0.4),
        (-0.5, -0.4),
        (-0.42, -0.5),
        (0.28, -0.5),
    ),
    "medium": ((0.55, 0.0), (0.12, 0.5), (-0.48, 0.42), (-0.48, -0.42), (0.12, -0.5)),
    "light": ((0.62, 0.0), (-0.15, 0.52), (-0.5, 0.3), (-0.5, -0.3), (-0.15, -0.52)),
    "scout": ((0.7, 0.0), (-0.5, 0.5), (-0.5, -0.5)),
}


def flat(place: Any) -> Array:
    """A place ``[..., 2 or more]`` as drawn."""
    values = np.asarray(place, float)
    return np.stack((values[..., 0], -values[..., 1]), -1)


def width_of(mech: Mech) -> float:
    """How large a mech is drawn, voxels."""
    return _LARGER * mech.chassis.width + _MORE


def draw_zone(canvas: Canvas, now: Moment) -> None:
    """A ring in the colour of who holds it."""
    x, y, radius = now.zone
    blue, red = now.held
    colour = CONTESTED if blue and red else TEAM_COLOURS[0] if blue else TEAM_COLOURS[1] if red else PAPER
    at = flat((x, y))
    canvas.disc(at, radius, colour, 0.10 if blue or red else 0.05)
    canvas.ring(at, radius, 0.28, colour, 0.9)
    for mark in range(4):
        way = np.array([np.cos(mark * np.pi / 2), np.sin(mark * np.pi / 2)])
        line(canvas, at + (radius - 0.7) * way, at + (radius + 0.7) * way, 0.28, colour, 0.9)


def draw_wreck(canvas: Canvas, mech: Mech, place: Array) -> None:
    """A cross where a mech died."""
    at, size = flat(place), 0.42 * width_of(mech)
    colour = _mixed(_BLACK, TEAM_COLOURS[mech.team], 0.55)
    for way in (np.array([1.0, 1.0]), np.array([1.0, -1.0])):
        line(canvas, at - size * way * 0.7, at + size * way * 0.7, 0.34, colour, 0.75)


def draw_mech(canvas: Canvas, mech: Mech, now: Moment, place: int) -> None:
    """Its body with the nose ahead, and what is wrong with it."""
    x, y, z = now.position[place]
    yaw, size, colour = now.yaw[place], width_of(mech), TEAM_COLOURS[mech.team]
    lift = max(float(z - now.ground_at(x, y)), 0.0)
    at, clocks = flat((x, y)), now.clocks[place]
    hot = now.heat[place] > mech.chassis.heat_cap
    body = _mixed(_BLACK, colour, 0.30 if clocks[rules.FALLEN] > 0 else 0.62)
    shadow = np.array([0.25 + 0.3 * lift, 0.25 + 0.3 * lift])
    canvas.polygon(_body(mech, x, y, yaw, size) + shadow, _BLACK, 0.45)
    if now.ewar[place] > 0:
        ecm = now.ewar[place] == 1
        canvas.ring(at, 0.95 * size + 0.5, 0.12, CONTESTED if ecm else (120, 255, 200), 0.8)
    corners = _body(mech, x, y, yaw, size * (1 + 0.05 * lift))
    canvas.polygon(corners, body, glow=0.16, spread=0.7)
    canvas.polygon(corners, _mixed(colour, _WHITE, 0.25), line=0.16)
    ahead = flat((np.cos(yaw), np.sin(yaw)))
    if clocks[rules.FALLEN] > 0:
        line(canvas, at - 0.4 * size * ahead[::-1], at + 0.4 * size * ahead[::-1], 0.22, PAPER, 0.8)
    else:
        line(canvas, at, at + 0.72 * size * ahead, 0.22, PAPER, 0.95)
    if hot:
        canvas.ring(at, 0.62 * size, 0.2, HEAT, 0.9)
    if clocks[rules.PAINTED] > 0:
        _draw_paint(canvas, at, 0.75 * size + 0.3)


def _draw_paint(canvas: Canvas, at: Array, size: float) -> None:
    for right, up in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        corner = at + np.array([right, up]) * size
        line(canvas, corner, corner - np.array([right * 0.45 * size, 0.0]), 0.14, PAINT)
        line(canvas, corner, corner - np.array([0.0, up * 0.45 * size]), 0.14, PAINT)


def draw_bars(canvas: Canvas, mech: Mech, now: Moment, place: int) -> None:
    """Bars of hit points and of heat, above its body."""
    at = flat(now.position[place]) - np.array([0.0, 0.55 * width_of(mech) + 0.95])
    health = float(np.clip(now.hp[place] / mech.chassis.hp, 0, 1))
    heat = float(np.clip(now.heat[place] / mech.chassis.heat_cap, 0, 1))
    half = 1.25
    tone = (110, 230, 120) if health > 0.5 else (255, 210, 80) if health > 0.25 else (255, 90, 80)
    for row, (share, colour) in enumerate(((health, tone), (heat, HEAT))):
        left = at + np.array([-half, -0.28 + 0.42 * row])
        _bar(canvas, left, 2 * half, 0.34, _BLACK, 0.7)
        if share > 0:
            _bar(canvas, left, 2 * half * share, 0.34, colour, 0.95)


def _bar(canvas: Canvas, left: Array, width: float, height: float, colour: Colour, opacity: float) -> None:
    x, y = left
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    canvas.polygon(corners, colour, opacity)


def draw_aim(canvas: Canvas, mech: Mech, start: Array, end: Array) -> None:
    """A fine dotted line to the chosen target."""
    one, two = flat(start), flat(end)
    length = float(np.hypot(*(two - one)))
    for part in range(int(length / 1.2)):
        canvas.disc(one + (two - one) * (part * 1.2 / max(length, 1e-6)), 0.09, TEAM_COLOURS[mech.team], 0.55)


def draw_beam(canvas: Canvas, start: Array, end: Array, team: int, age: float, flame: bool) -> None:
    """A laser, or a flamer's breath; ``age`` from 0 to 1."""
    one, two, left = flat(start), flat(end), 1 - age
    if flame:
        canvas.streak(one, two, 0.9, _FLAME, 0.75 * left, glow=0.4 * left, spread=1.0)
        canvas.disc(two, 0.5, _FLAME, 0.7 * left)
        return
    line(canvas, one, two, 0.42, TEAM_COLOURS[team], 0.55 * left, glow=0.5 * left)
    line(canvas, one, two, 0.17, _WHITE, 0.95 * left)
    canvas.disc(two, 0.45, _WHITE, 0.9 * left)


def draw_flight(canvas: Canvas, weapon: str, trail: Array, team: int) -> None:
    """A shot, with the way it came in the latest moments ``[n, 3]``, oldest first."""
    points = flat(trail)
    head, tail = points[-1], points[0]
    colour = TEAM_COLOURS[team]
    if weapon == "missile":
        for one, two in pairwise(points):
            canvas.streak(two, one - (two - one), 0.34, _SMOKE, 0.45)
        canvas.disc(head, 0.42, _mixed(colour, _WHITE, 0.35), glow=0.5)
        canvas.disc(head, 0.2, _WHITE)
    elif weapon == "gauss":
        canvas.streak(head, tail, 0.4, _WHITE, 0.95, glow=0.5, spread=0.8)
        canvas.disc(head, 0.34, _WHITE)
    elif weapon == "autocannon":
        canvas.streak(head, (head + tail) / 2, 0.3, _SHELL, 0.95, glow=0.3, spread=0.5)
    else:
        canvas.disc(head, 0.34, _SMOKE, 0.95)


def draw_cloud(canvas: Canvas, place: Array, left: float) -> None:
    """Smoke that thins out in its last seconds; ``left`` in sub-steps."""
    opacity = 0.42 * float(np.clip(left / 60, 0.15, 1))
    at = flat(place)
    canvas.disc(at, rules.SMOKE_RADIUS, _SMOKE, 0.5 * opacity)
    for puff in range(7):
        away = np.array([np.cos(0.9 * puff), np.sin(0.9 * puff)]) * rules.SMOKE_RADIUS * (0.55 if puff else 0.0)
        canvas.disc(at + away, 0.42 * rules.SMOKE_RADIUS, _SMOKE, 0.5 * opacity)


def draw_burst(canvas: Canvas, place: Any, radius: float, age: float, colour: Colour) -> None:
    """An explosion; ``age`` from 0 to 1."""
    at, out = flat(place), 1 - (1 - age) ** 2
    if age < 0.5:
        canvas.disc(at, 0.35 * radius, (255, 214, 140), 0.9 * (1 - 2 * age), glow=0.45 * (1 - 2 * age))
    canvas.ring(at, max(radius * out, 0.1), 0.3 * (1 - age) + 0.08, colour, 0.95 * (1 - age))
    for spark in range(9):
        angle, speed = 2.4 * spark, 0.6 + 0.4 * np.sin(5.1 * spark) ** 2
        away = np.array([np.cos(angle), np.sin(angle)]) * radius * speed
        canvas.streak(at + out * away, at + 0.6 * out * away, 0.22, _mixed(_WHITE, colour, age), 1 - age)


def draw_way(canvas: Canvas, places: Array, team: int) -> None:
    """A way ``[n, 3]`` that brightens with time."""
    points = flat(places)
    for place, (start, end) in enumerate(pairwise(points), 1):
        share = place / len(points)
        if np.hypot(*(end - start)) > 1e-3:
            line(canvas, start, end, 0.26, TEAM_COLOURS[team], 0.15 + 0.6 * share)


def line(
    canvas: Canvas, start: Array, end: Array, width: float, colour: Colour, opacity: float = 1.0, glow: float = 0.0
) -> None:
    """A straight line of even colour."""
    along = end - start
    length = float(np.hypot(*along))
    if length < 1e-6:
        return
    across = np.array([-along[1], along[0]]) / length * width / 2
    corners = np.array([start - across, end - across, end + across, start + across])
    canvas.polygon(corners, colour, opacity, glow=glow, spread=2 * width if glow else 0.0)


def _body(mech: Mech, x: float, y: float, yaw: float, size: float) -> Array:
    """Corners as drawn, clockwise as seen with y down."""
    shape = np.array(_SHAPES[mech.kind]) * size
    cos, sin = np.cos(yaw), np.sin(yaw)
    turned = np.stack((x + cos * shape[:, 0] - sin * shape[:, 1], y + sin * shape[:, 0] + cos * shape[:, 1]), -1)
    drawn: Array = flat(turned)[::-1]
    return drawn


def _mixed(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(one + share * (other - one)) for one, other in zip(first, second))
    return red, green, blue
