"""What an Arena world looks like: a neon arcade screen, drawn shape by shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..drawing.canvas import Canvas, Colour, Picture
from .effects import DURATION, Effects, Event
from .hud import draw_hud
from .recording import Snapshot
from .rules import Rules

Array = NDArray[Any]

SHIP: Colour = (120, 230, 255)
FLAME: Colour = (255, 170, 60)
SHOT: Colour = (130, 255, 190)
ENEMY: Colour = (255, 70, 130)
BULLET: Colour = (255, 150, 50)
SPAWNER: Colour = (180, 100, 255)
WHITE: Colour = (255, 255, 255)
RED: Colour = (255, 50, 50)
GREEN: Colour = (90, 255, 130)
NIGHTS: tuple[Colour, ...] = ((16, 28, 70), (10, 44, 54), (42, 20, 64), (56, 32, 18), (60, 14, 28))
"""The colour of the background, phase by phase."""

_DART = np.array([[1.5, 0.0], [-1.0, 0.95], [-0.55, 0.0]])  # the right half of the ship, in radii
_KITE = np.array([[1.25, 0.0], [0.0, 0.85], [-0.85, 0.0], [0.0, -0.85]])
_HEXAGON = np.stack([f(np.arange(6) * np.pi / 3) for f in (np.cos, np.sin)], 1)
_STARS, _GRID = 90, 80.0
_WAY_STEPS = 6


class Scene:
    """Draws the snapshots of an episode, one after the other; effects need those before.

    Args:
        rules: of the game.
        size: width and height of the pictures in pixels, at least 320 by 256.

    Raises:
        ValueError: a size that is too small.
    """

    def __init__(self, rules: Rules, size: tuple[int, int]) -> None:
        width, height = size
        if width < 320 or height < 256:
            raise ValueError(f"size: {width} x {height} is too small, at least 320 x 256 pixels are needed")
        self._rules, self._size = rules, size
        self._effects = Effects(rules)
        self._scale = min(width / rules.width, height / rules.height)
        self._corner = (width - rules.width * self._scale) / 2, (height - rules.height * self._scale) / 2

    def watch(self, now: Snapshot) -> None:
        """Takes in a snapshot without drawing it."""
        self._effects.watch(now)

    def draw(self, now: Snapshot, pause: int = 0, title: str = "") -> Picture:
        """The picture of a snapshot, uint8 ``[H, W, 3]``.

        Args:
            pause: steps for which the game has stood still after its end, while explosions go on.
            title: shown in a corner.
        """
        self._effects.watch(now, pause)
        ground = background(self._size, self._scale, self._corner, _night(now, self._rules), self._rules)
        canvas = Canvas(ground.copy(), self._scale, self._corner)
        events, clock = self._effects.events, now.step + pause
        self._draw_spawners(canvas, now, events)
        self._draw_projectiles(canvas, now)
        self._draw_enemies(canvas, now)
        if now.health > 0:
            self._draw_ship(canvas, now, _share(events, "hurt", clock))
        for event in events:
            _draw_event(canvas, event, clock - event.step, self._rules)
        if danger := _share(events, "hurt", clock) or _share(events, "death", clock):
            _draw_alarm(canvas.picture, danger)
        draw_hud(canvas, now, self._rules, title)
        return canvas.picture

    def draw_way(self, picture: Picture, positions: Sequence[Array]) -> None:
        """Draws the way of the ship on a picture of this scene."""
        canvas, way = Canvas(picture, self._scale, self._corner), np.stack(positions[::_WAY_STEPS])
        for place, (start, end) in enumerate(pairwise(way), 1):
            canvas.streak(end, 2 * start - end, 4.0, SHIP, 0.3 + 0.7 * place / len(way))

    def _draw_spawners(self, canvas: Canvas, now: Snapshot, events: Sequence[Event]) -> None:
        rules, flashing = self._rules, {event.slot for event in events if event.kind == "spawner hit"}
        for slot in np.flatnonzero(now.spawner_health > 0):
            at, radius = now.spawners[slot], rules.spawner_radius
            wait = (now.spawner_ready[slot] - now.step) / max(now.spawner_period[slot], 1)
            charge = float(np.clip(1 - wait, 0, 1))
            colour = WHITE if slot in flashing else SPAWNER
            turned = at + radius * _turn(_HEXAGON, 0.02 * now.step + slot)
            canvas.polygon(turned, _dim(colour, 0.3), 0.9, glow=0.6, spread=1.5 * radius)
            canvas.polygon(turned, colour, line=3.0)
            canvas.disc(at, radius * (0.2 + 0.3 * charge), colour, glow=0.4 * charge)
            share = float(now.spawner_health[slot]) / rules.new_spawner_health
            canvas.ring(at, radius + 10, 4, SPAWNER, 0.25)
            canvas.ring(at, radius + 10, 4, GREEN if share > 0.5 else FLAME if share > 0.25 else RED, share=share)

    def _draw_projectiles(self, canvas: Canvas, now: Snapshot) -> None:
        radius = self._rules.shot_radius
        for at, velocity in zip(now.shots, now.shot_velocity):
            canvas.streak(at, at - 4 * velocity, 2 * radius, SHOT, glow=0.5, spread=8)
            canvas.disc(at, radius, WHITE)
        for at, velocity, age in zip(now.bullets, now.bullet_velocity, now.bullet_age):
            canvas.streak(at, at - min(4.0, float(age)) * velocity, 1.6 * radius, BULLET, glow=0.4, spread=8)
            canvas.disc(at, 1.5 * radius, BULLET, glow=0.6)

    def _draw_enemies(self, canvas: Canvas, now: Snapshot) -> None:
        radius = self._rules.enemy_radius
        for at, ready in zip(now.enemies, now.enemy_ready):
            toward = now.position - at
            corners = at + radius * _turn(_KITE, float(np.arctan2(toward[1], toward[0])))
            canvas.polygon(corners, _dim(ENEMY, 0.55), glow=0.5, spread=1.2 * radius)
            canvas.polygon(corners, ENEMY, line=3.0)
            charge = float(np.clip(1 - (ready - now.step) / self._rules.fire_cooldown, 0, 1))
            canvas.disc(at, 0.3 * radius, _mixed(ENEMY, BULLET, charge), glow=0.8 * charge**4)

    def _draw_ship(self, canvas: Canvas, now: Snapshot, hurt: float) -> None:
        at, radius, angle = now.position, self._rules.player_radius, now.rotation
        colour = _mixed(SHIP, RED, hurt)
        nose = _turn(np.array([[1.0, 0.0]]), angle)[0]
        if self._rules.style == 1:
            self._draw_flame(canvas, now, nose)
            for side in (_DART, (_DART * (1, -1))[::-1]):
                canvas.polygon(at + radius * _turn(side, angle), colour, glow=0.22, spread=radius)
            canvas.disc(at + 0.15 * radius * nose, 0.28 * radius, WHITE)
        else:
            canvas.disc(at, radius, _dim(colour, 0.45), glow=0.3)
            canvas.ring(at, 0.9 * radius, 0.25 * radius, colour)
            canvas.streak(at + 1.6 * radius * nose, at - 0.8 * radius * nose, 0.5 * radius, colour)
            canvas.disc(at, 0.4 * radius, WHITE)
        if now.shot_ready - now.step >= self._rules.shot_cooldown - 2:
            canvas.disc(at + 1.7 * radius * nose, 0.3 * radius, SHOT, glow=0.9)

    def _draw_flame(self, canvas: Canvas, now: Snapshot, nose: Array) -> None:
        stern = now.position - 0.6 * self._rules.player_radius * nose
        flicker = 0.75 + 0.25 * np.sin(2.1 * now.step)
        length = 38.0 * flicker if self._effects.thrusting else 7.0
        canvas.streak(stern, stern - length * nose, 13.0, FLAME, glow=0.7, spread=12)
        canvas.streak(stern, stern - 0.5 * length * nose, 6.0, WHITE)


def _draw_event(canvas: Canvas, event: Event, age: int, rules: Rules) -> None:
    share, at = age / DURATION[event.kind], np.array(event.at)
    if event.kind == "kill":
        _burst(canvas, at, share, 45, ENEMY, 8)
    elif event.kind == "vanish":
        canvas.ring(at, rules.enemy_radius * (1 + share), 3, ENEMY, 1 - share)
    elif event.kind == "birth":
        canvas.ring(at, rules.enemy_radius + 30 * (1 - share), 3, SPAWNER, share)
    elif event.kind == "destroyed":
        _burst(canvas, at, share, 130, SPAWNER, 14)
    elif event.kind == "death":
        _burst(canvas, at, share, 170, SHIP, 18)
    elif event.kind == "heal":
        canvas.ring(at, rules.player_radius + 40 * share, 4, GREEN, 1 - share)


def _burst(canvas: Canvas, at: Array, share: float, reach: float, colour: Colour, sparks: int) -> None:
    """An explosion, ``share`` of which has passed: a flash, a ring that grows, sparks that fly and fade."""
    out = 1 - (1 - share) ** 2
    if share < 0.4:
        canvas.disc(at, reach * 0.25 * (1 - share), WHITE, 0.0, glow=1 - 2.5 * share)
    canvas.ring(at, reach * out, 4, colour, 0.8 * (1 - share))
    first = float(at[0] + at[1])  # explosions differ, and are the same whenever drawn
    for spark in range(sparks):
        angle, speed = first + 2.4 * spark, 0.55 + 0.45 * np.sin(first + 5.1 * spark) ** 2
        away = np.array([np.cos(angle), np.sin(angle)]) * reach * speed
        light = _mixed(WHITE, colour, min(1.0, 2 * share))
        canvas.streak(at + out * away, at + 0.7 * out * away, 5.0, light, 1 - share, 0.3 * (1 - share), 6)


def _draw_alarm(picture: Picture, strength: float) -> None:
    """A red glow along the edges of the picture."""
    glow = (strength * _edges(picture.shape[:2])).astype(np.uint8)
    picture[..., 0] = np.maximum(picture[..., 0], glow)


@lru_cache(maxsize=4)
def _edges(shape: tuple[int, int]) -> Array:
    rows, columns = (np.minimum(np.arange(length), np.arange(length)[::-1]) for length in shape)
    inwards = np.minimum(rows[:, None], columns) / (shape[0] / 14)
    return (255 * np.clip(1 - inwards, 0, 1) ** 1.5).astype(np.float32)


@lru_cache(maxsize=16)
def background(
    size: tuple[int, int], scale: float, corner: tuple[float, float], night: Colour, rules: Rules
) -> Picture:
    """Night sky with stars, a faint grid, a bright frame and dark corners."""
    width, height = size
    x = ((np.arange(width) + 0.5 - corner[0]) / scale)[None]
    y = ((np.arange(height) + 0.5 - corner[1]) / scale)[:, None]
    light = np.ones((height, width, 1)) * np.array(night, float)
    line = np.maximum(_line(x, _GRID, scale), _line(y, _GRID, scale))
    light += line[..., None] * np.array(night) * 0.75
    away = np.hypot(x / rules.width - 0.5, y / rules.height - 0.5)
    light *= np.clip(1.15 - 1.1 * away**1.5, 0.25, 1.15)[..., None]
    _add_stars(light)
    inside = (x >= 0) & (x <= rules.width) & (y >= 0) & (y <= rules.height)
    rim = np.minimum(np.minimum(x, rules.width - x), np.minimum(y, rules.height - y))
    light += (np.clip(1 - rim / 28, 0, 1) ** 3 * inside)[..., None] * np.array((70, 150, 220)) * 0.6
    return np.clip(np.where(inside[..., None], light, 0.35 * light), 0, 255).astype(np.uint8)


def _line(where: Array, period: float, scale: float) -> Array:
    """How much of a pixel-wide line every ``period`` px covers a pixel."""
    away = np.abs(np.remainder(where + period / 2, period) - period / 2)
    return np.clip(1 - away * scale, 0, 1)


def _add_stars(light: Array) -> None:
    random = np.random.default_rng(7)
    rows, columns = (random.integers(0, limit, _STARS) for limit in light.shape[:2])
    light[rows, columns] += random.uniform(30, 150, (_STARS, 1))


def _night(now: Snapshot, rules: Rules) -> Colour:
    return NIGHTS[min(now.phase, len(NIGHTS) - 1)]


def _share(events: Sequence[Event], kind: str, clock: int) -> float:
    """How much of the latest event of a kind is still to come, 0 to 1."""
    return max((1 - (clock - event.step) / DURATION[event.kind] for event in events if event.kind == kind), default=0.0)


def _turn(points: Array, angle: float) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    return points @ np.array([[cos, sin], [-sin, cos]])


def _dim(colour: Colour, share: float) -> Colour:
    return _mixed((0, 0, 0), colour, share)


def _mixed(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(one + share * (other - one)) for one, other in zip(first, second))
    return red, green, blue
