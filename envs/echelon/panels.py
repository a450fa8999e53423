"""What is written around a picture of Echelon: score, clock, and of every mech its hit points, heat and balance."""

from __future__ import annotations

from collections.abc import Sequence

from ..rendering.canvas import Colour, Picture, box, width_of, write
from . import rules
from .actors import CONTESTED, HEAT, PAINT
from .board import FAINT, PAPER, PLATE, TEAM_COLOURS, Layout
from .moment import Moment
from .specs import TEAMS

_GOOD, _FAIR, _BAD = (110, 230, 120), (255, 210, 80), (255, 90, 80)
_BALANCE: Colour = (150, 170, 255)
_TALL, _LOW = 116.0, 60.0  # of a mech's plate, in lines of 720, in teams of five and of ten


def draw_head(picture: Picture, layout: Layout, now: Moment, players: Sequence[str], title: str) -> None:
    """The clock in the middle; scores as bars that grow towards it, full where they win."""
    unit, middle = layout.unit, layout.size[0] / 2
    seconds = now.tick * rules.DT
    clock = f"{int(seconds // 60)}:{seconds % 60:04.1f}"
    write(picture, clock, middle, 22 * unit, layout.points(24), PAPER, 0.5, bold=True)
    write(picture, _holder(now), middle, 48 * unit, layout.points(12), _holder_colour(now), 0.5, bold=True)
    reach = 0.5 * layout.side * layout.scale - 78 * unit
    for team, colour in enumerate(TEAM_COLOURS):
        sign = -1 if team == 0 else 1
        near, far = middle + sign * 78 * unit, middle + sign * (78 * unit + reach)
        share = min(float(now.score[team]) / now.story.to_win, 1.0)
        left = min(near, far)
        box(picture, left, 36 * unit, reach, 14 * unit, FAINT, 0.22)
        start = far if team == 0 else far - reach * share
        box(picture, start, 36 * unit, reach * share, 14 * unit, colour)
        text = f"{now.score[team]:.1f} / {now.story.to_win:.0f}"
        write(picture, text, near, 20 * unit, layout.points(15), colour, 1.0 if team == 0 else 0.0, bold=True)
    if title:
        write(picture, title, layout.corner[0], 20 * unit, layout.points(12), FAINT)


def _holder(now: Moment) -> str:
    blue, red = now.held
    return "CONTESTED" if blue and red else "BLUE HOLDS" if blue else "RED HOLDS" if red else "ZONE EMPTY"


def _holder_colour(now: Moment) -> Colour:
    blue, red = now.held
    return CONTESTED if blue and red else TEAM_COLOURS[0] if blue else TEAM_COLOURS[1] if red else FAINT


def draw_panels(picture: Picture, layout: Layout, now: Moment, players: Sequence[str]) -> None:
    """A column for each team: its player and its mechs."""
    unit, width = layout.unit, min(layout.panel - 24 * layout.unit, 300 * layout.unit)
    for team, colour in enumerate(TEAM_COLOURS):
        left = 12 * unit if team == 0 else layout.size[0] - 12 * unit - width
        here = [place for place, mech in enumerate(now.story.mechs) if mech.team == team]
        box(picture, left, 10 * unit, width, 46 * unit, PLATE)
        box(picture, left, 10 * unit, width, 3 * unit, colour)
        name = _cut(players[team], layout.points(17), width - 110 * unit)
        write(picture, name, left + 10 * unit, 34 * unit, layout.points(17), PAPER, bold=True)
        kills, damage = int(now.kills[here].sum()), float(now.damage[here].sum())
        text = f"kills {kills}   damage {damage:.0f}"
        write(picture, text, left + width - 10 * unit, 34 * unit, layout.points(12), FAINT, 1.0)
        high = _TALL if len(here) <= 5 else _LOW
        for row, place in enumerate(here):
            _draw_mech(picture, layout, now, place, (left, (64 + row * (high + 6)) * unit, width, high * unit), team)


def _draw_mech(
    picture: Picture, layout: Layout, now: Moment, place: int, at: tuple[float, float, float, float], team: int
) -> None:
    (left, top, width, high), unit, mech = at, layout.unit, now.story.mechs[place]
    alive, small = now.alive(place), high < 80 * layout.unit
    colour = TEAM_COLOURS[team] if alive else FAINT
    box(picture, left, top, width, high, PLATE, 1.0 if alive else 0.55)
    box(picture, left, top, 3 * unit, high, colour, 0.9 if alive else 0.3)
    x, right = left + 12 * unit, left + width - 10 * unit
    size = layout.points(13)
    write(picture, f"{mech.kind.upper()} {mech.slot}", x, top + 14 * unit, size, colour, bold=True)
    text, tint = state_of(now, place)
    write(picture, text, right, top + 14 * unit, layout.points(12), tint, 1.0, bold=tint == _BAD)
    health, heat = max(float(now.hp[place]), 0.0), float(now.heat[place]) if alive else 0.0
    chassis = mech.chassis
    tone = _GOOD if health > 0.5 * chassis.hp else _FAIR if health > 0.25 * chassis.hp else _BAD
    stability = float(now.stability[place]) if alive else 0.0
    rows = [("hp", health, chassis.hp, tone, f"{health:.0f}"), ("heat", heat, chassis.heat_cap, HEAT, f"{heat:.0f}")]
    rows.append(("bal", stability, rules.STABILITY, _BALANCE, f"{stability:.0f}"))
    step, first, thick = (14, 30, 8) if small else (20, 36, 11)
    for row, (name, value, most, shade, number) in enumerate(rows[: 2 if small else 3]):
        y = top + (first + step * row) * unit
        write(picture, name, x, y, layout.points(11), FAINT)
        begin, end = x + 34 * unit, right - 36 * unit
        box(picture, begin, y - thick / 2 * unit, end - begin, thick * unit, FAINT, 0.2)
        box(picture, begin, y - thick / 2 * unit, (end - begin) * min(value / most, 1.0), thick * unit, shade, 0.95)
        write(picture, number, right, y, layout.points(12), PAPER if alive else FAINT, 1.0)
    if not small:
        counted = f"kills {int(now.kills[place])}   damage {now.damage[place]:.0f}"
        write(picture, counted, x, top + 100 * unit, layout.points(11), FAINT)
        target = int(now.target[place])
        if alive and target >= 0:
            foe = now.story.mechs[target]
            aim = f"aims at {foe.kind} {foe.slot}"
            write(picture, aim, right, top + 100 * unit, layout.points(11), TEAM_COLOURS[foe.team], 1.0)


def state_of(now: Moment, place: int) -> tuple[str, Colour]:
    """What is most remarkable about a mech, in a word or two."""
    mech, clocks = now.story.mechs[place], now.clocks[place]
    if not now.alive(place):
        return "destroyed", FAINT
    if now.heat[place] > mech.chassis.heat_cap:
        return "SHUT DOWN", _BAD
    if clocks[rules.FALLEN] > 0:
        return f"DOWN {clocks[rules.FALLEN] * rules.DT:.1f} s", _BAD
    found = ["painted"] if clocks[rules.PAINTED] > 0 else []
    found += ["legged"] if now.legs[place] <= 0 else []
    found += ["suppressed"] if clocks[rules.SUPPRESSED] > 0 else []
    found += [("ECM", "ECCM")[int(now.ewar[place]) - 1]] if now.ewar[place] > 0 else []
    found += ["in zone"] if now.inside[place] else []
    return ", ".join(found[:2]) or "ok", PAINT if clocks[rules.PAINTED] > 0 else PAPER if found else FAINT


def draw_end(picture: Picture, layout: Layout, now: Moment) -> None:
    """Who has won, in large letters across the map."""
    unit, winner = layout.unit, now.story.winner
    text, colour = (f"{TEAMS[0 if winner > 0 else 1].upper()} WINS", TEAM_COLOURS[0 if winner > 0 else 1]) if winner \
        else ("DRAW", PAPER)  # fmt: skip
    middle = layout.corner[1] - 0.5 * layout.side * layout.scale
    left, width = layout.corner[0], layout.side * layout.scale
    box(picture, left, middle - 44 * unit, width, 88 * unit, (0, 0, 0), 0.6)
    for edge in (-44, 41):
        box(picture, left, middle + edge * unit, width, 3 * unit, colour)
    write(picture, text, left + width / 2, middle, layout.points(50), colour, 0.5, bold=True)


def _cut(name: str, size: int, width: float) -> str:
    """A name that is too long loses its end."""
    kept = len(name)
    while kept > 3 and width_of(name[:kept] + ("…" if kept < len(name) else ""), size, True) > width:
        kept -= 1
    return name[:kept] + ("…" if kept < len(name) else "")
