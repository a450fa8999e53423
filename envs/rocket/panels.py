"""What is written around a picture of Rocket: score, clock, and of every car its speed, boost and height."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..rendering.canvas import Colour, Picture, box, width_of, write
from . import rules
from .pitch import FAINT, PAPER, TEAM_COLOURS, Layout
from .recording import ABSENT, Snapshot

_BOOST: Colour = (255, 190, 70)
_FAST: Colour = (120, 255, 190)
_OUT: Colour = (255, 90, 90)
_PLATE: Colour = (24, 29, 41)
_ROW = 118  # of a car, in lines of 720


def draw_clock(picture: Picture, layout: Layout, now: Snapshot, title: str) -> None:
    """Minutes and seconds since the kick-off in the middle, a title at its left."""
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
    layout: Layout,
    now: Snapshot,
    players: Sequence[str],
    goals: Sequence[int],
    touches: Sequence[int],
) -> None:
    """A column for each team: its player, its goals and its cars.

    Args:
        players: names of blue's and orange's.
        goals: of blue and orange.
        touches: of the ball so far, a car each.
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
        write(picture, _cut(name, size, width - 16 * unit), left + width / 2, 36 * unit, size, PAPER, 0.5, bold=True)
        write(picture, f"{goals[team]}", left + width / 2, 94 * unit, layout.points(70), colour, 0.5, bold=True)
        half = cars // 2
        there = [car for car in range(team * half, (team + 1) * half) if now.gone[car] != ABSENT]
        for row, car in enumerate(there):
            top = (152 + row * _ROW) * unit
            number = car % half + 1 if len(there) > 1 else 0
            _draw_car(picture, layout, now, car, (left, top, width), (number, touches[car]), colour)


def _draw_car(
    picture: Picture,
    layout: Layout,
    now: Snapshot,
    car: int,
    place: tuple[float, float, float],
    numbers: tuple[int, int],
    colour: Colour,
) -> None:
    """One car's plate; ``numbers`` are which one of the team it is (0: the only one) and its touches."""
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
        box(picture, begin, y - 6 * unit, end - begin, 12 * unit, FAINT, 0.22)
        box(picture, begin, y - 6 * unit, (end - begin) * min(value / most, 1.0), 12 * unit, shade, 0.95)
        write(picture, number, right, y, size, PAPER, 1.0)
    write(picture, f"touches {numbers[1]}", x, top + 92 * unit, size, FAINT)
    height = max(float(now.position[car, 2]) - rules.CAR_REST, 0.0)
    if gone == 0:
        write(picture, f"height {height:,.0f}", right, top + 92 * unit, size, FAINT, 1.0)


def _state(now: Snapshot, car: int) -> tuple[str, Colour]:
    fast = float(np.linalg.norm(now.velocity[car])) >= rules.SUPERSONIC
    if now.wheels[car] >= 3:
        on_wall = now.position[car, 2] > 60
        return ("on the wall" if on_wall else "supersonic" if fast else "on the ground"), _FAST if fast else FAINT
    return "in the air", PAPER


def draw_banner(picture: Picture, layout: Layout, text: str, colour: Colour) -> None:
    """Large letters across the field."""
    unit = layout.unit
    middle, width = layout.above[1], 2 * 5120 * layout.scale
    left = layout.above[0] - width / 2
    box(picture, left, middle - 46 * unit, width, 92 * unit, (0, 0, 0), 0.55)
    for edge in (-46, 43):
        box(picture, left, middle + edge * unit, width, 3 * unit, colour)
    write(picture, text, layout.above[0], middle, layout.points(52), colour, 0.5, bold=True)


def _cut(name: str, size: int, width: float) -> str:
    """A name that is too long even in small letters loses its middle."""
    if width_of(name, size, True) <= width:
        return name
    kept = len(name)
    while kept > 4 and width_of(f"{name[: kept // 2]}…{name[-(kept // 2) :]}", size, True) > width:
        kept -= 1
    return f"{name[: kept // 2]}…{name[-(kept // 2) :]}"
