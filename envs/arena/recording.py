"""Recordings of episodes of Arena, and how they are drawn: as a neon arcade screen; y points down, as in the game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..recording import EpisodeRecorder, EpisodeRecording, Row
from ..rendering.canvas import WHITE, Canvas, Colour, Legend, Picture, box, mixed, write
from ..rendering.films import Animation
from .rules import NEVER, ArenaRules
from .state import ArenaState

Array = NDArray[Any]

SIZE = (800, 640)
"""Width and height of pictures in pixels: half the arena, in multiples of the video encoder's macroblocks."""
STEPS_PER_SECOND = 60

SHIP: Colour = (120, 230, 255)
FLAME: Colour = (255, 170, 60)
SHOT: Colour = (130, 255, 190)
ENEMY: Colour = (255, 70, 130)
BULLET: Colour = (255, 150, 50)
SPAWNER: Colour = (180, 100, 255)
RED: Colour = (255, 50, 50)
GREEN: Colour = (90, 255, 130)
PAPER: Colour = (225, 240, 255)
_FAINT: Colour = (130, 150, 190)
WIN, LOSS, LATE = (90, 255, 130), (255, 60, 80), (255, 190, 70)
NIGHTS: tuple[Colour, ...] = ((16, 28, 70), (10, 44, 54), (42, 20, 64), (56, 32, 18), (60, 14, 28))
"""Colours of the background by phase."""

LEGEND: Legend = (
    *(("▲", "ship and its way", SHIP), ("◆", "enemy", ENEMY), ("⬢", "spawner", SPAWNER)),
    *(("●", "shot", SHOT), ("●", "enemy's shot", BULLET)),
)

_DART = np.array([[1.5, 0.0], [-1.0, 0.95], [-0.55, 0.0]])  # the right half of the ship, in radii
_KITE = np.array([[1.25, 0.0], [0.0, 0.85], [-0.85, 0.0], [0.0, -0.85]])
_HEXAGON = np.stack([f(np.arange(6) * np.pi / 3) for f in (np.cos, np.sin)], 1)
_STARS, _GRID = 90, 80.0
_WAY_STEPS, _INTRO_STEPS = 6, 90
_BURSTS = {"kill": (45, ENEMY, 8), "destroyed": (130, SPAWNER, 14), "death": (170, SHIP, 18)}
"""Explosions by kind of event: reach in px, colour and number of sparks."""


@dataclass(frozen=True)
class ArenaSnapshot:
    """One world at one time, in px, px per step and radians; times are steps of the episode."""

    position: Array  # [2] of the player
    velocity: Array  # [2]
    rotation: float
    health: float
    shot_ready: float
    enemies: Array  # [E, 2] those alive, in the order in which they were made
    enemy_speed: Array  # [E]
    enemy_ready: Array  # [E] time at which each may fire
    spawners: Array  # [S, 2] all slots
    spawner_health: Array  # [S] 0 for an empty slot
    spawner_ready: Array  # [S]
    spawner_period: Array  # [S]
    shots: Array  # [N, 2] the player's
    shot_velocity: Array  # [N, 2]
    bullets: Array  # [K, 2] the enemies'
    bullet_velocity: Array  # [K, 2]
    bullet_age: Array  # [K]
    step: int
    phase: int
    phase_start: int
    score: float  # sum of rewards
    kills: int
    spawner_kills: int

    def won(self, rules: ArenaRules) -> bool:
        """Returns whether all phases are cleared, even if the player died in the same step."""
        return self.phase >= len(rules.phases)

    def over(self, rules: ArenaRules) -> bool:
        """Returns whether the episode has ended."""
        return self.won(rules) or self.health <= 0 or self.step >= rules.max_steps


_SHOWN = (
    *("position", "velocity", "rotation", "health", "shot_ready", "targets", "target_health", "speed", "ready"),
    *("period", "shots", "shot_velocity", "shot_ends", "bullets", "bullet_velocity", "bullet_born", "bullet_ends"),
    *("step", "phase", "phase_start", "returns", "kills", "spawner_kills"),
)
"""Fields of the state that pictures show."""
_TILE = (400, 320)
_LOOK_BACK = 80  # frames; no effect is visible for longer


def snapshot(state: ArenaState, world: int, rules: ArenaRules) -> ArenaSnapshot:
    """Takes a snapshot of one world of a batch."""
    part = state.part(torch.tensor([world], device=state.step.device))
    return _snapshot({name: getattr(part, name)[..., 0].cpu().numpy() for name in _SHOWN}, rules)


def _snapshot(row: Row, rules: ArenaRules) -> ArenaSnapshot:
    enemies = rules.max_enemies
    numbers: dict[str, Any] = {
        **{name: float(row[name]) for name in ("rotation", "health", "shot_ready")},
        **{name: int(row[name]) for name in ("step", "phase", "phase_start", "kills", "spawner_kills")},
    }
    alive = row["target_health"][:enemies] > 0
    x, y = row["shots"]
    flying = (row["shot_ends"] > row["step"]) & (x >= 0) & (x <= rules.width) & (y >= 0) & (y <= rules.height)
    taken = row["bullet_ends"] < NEVER
    return ArenaSnapshot(
        position=row["position"],
        velocity=row["velocity"],
        enemies=row["targets"][:, :enemies].T[alive],
        enemy_speed=row["speed"][:enemies][alive],
        enemy_ready=row["ready"][:enemies][alive],
        spawners=row["targets"][:, enemies:].T,
        spawner_health=row["target_health"][enemies:],
        spawner_ready=row["ready"][enemies:],
        spawner_period=row["period"],
        shots=row["shots"].T[flying],
        shot_velocity=row["shot_velocity"].T[flying],
        bullets=row["bullets"].T[taken],
        bullet_velocity=row["bullet_velocity"].T[taken],
        bullet_age=(row["step"] - row["bullet_born"])[taken],
        score=float(row["returns"]),
        **numbers,
    )


class ArenaRenderer:
    """Draws the snapshots of an episode in order, since effects depend on earlier ones.

    Args:
        rules: rules of the game.
        size: width and height of the pictures in pixels, at least 320 by 256.

    Raises:
        ValueError: the size is too small.
    """

    def __init__(self, rules: ArenaRules, size: tuple[int, int]) -> None:
        width, height = size
        if width < 320 or height < 256:
            raise ValueError(f"size: {width} x {height} is too small, at least 320 x 256 pixels are needed")
        self._rules, self._size = rules, size
        self.effects = Effects(rules)
        self._scale = min(width / rules.width, height / rules.height)
        self._corner = (width - rules.width * self._scale) / 2, (height - rules.height * self._scale) / 2

    def draw(self, now: ArenaSnapshot, pause: int = 0, title: str = "", banner: bool = True) -> Picture:
        """Draws a snapshot, uint8 ``[H, W, 3]``.

        Args:
            pause: steps since the end of the game, during which explosions continue.
            title: title in a corner.
            banner: whether to announce phases and the end across the picture.
        """
        self.effects.watch(now, pause)
        ground = background(self._size, self._scale, self._corner, NIGHTS[min(now.phase, len(NIGHTS) - 1)], self._rules)
        canvas, rules = Canvas(ground.copy(), self._scale, self._corner), self._rules
        events, clock = self.effects.events, now.step + pause
        flashing = {event.slot for event in events if event.kind == "spawner hit"}
        for slot in np.flatnonzero(now.spawner_health > 0):
            at, radius = now.spawners[slot], rules.spawner_radius
            wait = (now.spawner_ready[slot] - now.step) / max(now.spawner_period[slot], 1)
            charge = float(np.clip(1 - wait, 0, 1))
            colour = WHITE if slot in flashing else SPAWNER
            corners = at + radius * _turn(_HEXAGON, 0.02 * now.step + slot)
            canvas.polygon(corners, _dim(colour, 0.3), 0.9, glow=0.6, spread=1.5 * radius)
            canvas.polygon(corners, colour, line=3.0)
            canvas.disc(at, radius * (0.2 + 0.3 * charge), colour, glow=0.4 * charge)
            share = float(now.spawner_health[slot]) / rules.new_spawner_health
            canvas.ring(at, radius + 10, 4, SPAWNER, 0.25)
            canvas.ring(at, radius + 10, 4, GREEN if share > 0.5 else FLAME if share > 0.25 else RED, share=share)

        radius = rules.shot_radius
        for at, velocity in zip(now.shots, now.shot_velocity):
            canvas.streak(at, at - 4 * velocity, 2 * radius, SHOT, glow=0.5, spread=8)
            canvas.disc(at, radius, WHITE)
        for at, velocity, age in zip(now.bullets, now.bullet_velocity, now.bullet_age):
            canvas.streak(at, at - min(4.0, float(age)) * velocity, 1.6 * radius, BULLET, glow=0.4, spread=8)
            canvas.disc(at, 1.5 * radius, BULLET, glow=0.6)

        radius = rules.enemy_radius
        for at, ready in zip(now.enemies, now.enemy_ready):
            toward = now.position - at
            corners = at + radius * _turn(_KITE, float(np.arctan2(toward[1], toward[0])))
            canvas.polygon(corners, _dim(ENEMY, 0.55), glow=0.5, spread=1.2 * radius)
            canvas.polygon(corners, ENEMY, line=3.0)
            charge = float(np.clip(1 - (ready - now.step) / rules.fire_cooldown, 0, 1))
            canvas.disc(at, 0.3 * radius, mixed(ENEMY, BULLET, charge), glow=0.8 * charge**4)

        if now.health > 0:
            self._draw_ship(canvas, now, _share(events, "hurt", clock))
        for event in events:
            share, at = (clock - event.step) / DURATION[event.kind], np.array(event.at)
            if event.kind in _BURSTS:
                reach, colour, sparks = _BURSTS[event.kind]
                canvas.burst(at, reach, share, colour, sparks, 5, float(at.sum()))
            elif event.kind == "vanish":
                canvas.ring(at, rules.enemy_radius * (1 + share), 3, ENEMY, 1 - share)
            elif event.kind == "birth":
                canvas.ring(at, rules.enemy_radius + 30 * (1 - share), 3, SPAWNER, share)
            elif event.kind == "heal":
                canvas.ring(at, rules.player_radius + 40 * share, 4, GREEN, 1 - share)
        if danger := _share(events, "hurt", clock) or _share(events, "death", clock):
            height, width = canvas.picture.shape[:2]
            rows, columns = (np.minimum(np.arange(size), np.arange(size)[::-1]) for size in (height, width))
            inwards = np.minimum(rows[:, None], columns) / (height / 14)
            glow = (255 * np.clip(1 - inwards, 0, 1) ** 1.5).astype(np.float32)
            canvas.picture[..., 0] = np.maximum(canvas.picture[..., 0], (danger * glow).astype(np.uint8))
        _draw_hud(canvas.picture, now, rules, title)
        if banner:
            _draw_banner(canvas.picture, now, rules)
        return canvas.picture

    def draw_way(self, picture: Picture, positions: Sequence[Array]) -> None:
        """Draws the ship's trail on a picture of this renderer."""
        Canvas(picture, self._scale, self._corner).way(np.stack(positions[::_WAY_STEPS]), 4.0, SHIP)

    def _draw_ship(self, canvas: Canvas, now: ArenaSnapshot, hurt: float) -> None:
        at, radius, angle = now.position, self._rules.player_radius, now.rotation
        colour = mixed(SHIP, RED, hurt)
        nose = _turn(np.array([[1.0, 0.0]]), angle)[0]
        if self._rules.style == 1:
            stern = at - 0.6 * radius * nose
            flame = 38.0 * (0.75 + 0.25 * np.sin(2.1 * now.step)) if self.effects.thrusting else 7.0
            canvas.streak(stern, stern - flame * nose, 13.0, FLAME, glow=0.7, spread=12)
            canvas.streak(stern, stern - 0.5 * flame * nose, 6.0, WHITE)
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


@lru_cache(maxsize=16)
def background(
    size: tuple[int, int], scale: float, corner: tuple[float, float], night: Colour, rules: ArenaRules
) -> Picture:
    """Draws a night sky with stars, a faint grid, a bright frame and dark corners."""
    width, height = size
    x = ((np.arange(width) + 0.5 - corner[0]) / scale)[None]
    y = ((np.arange(height) + 0.5 - corner[1]) / scale)[:, None]
    light = np.ones((height, width, 1)) * np.array(night, float)
    line = np.maximum(_line(x, _GRID, scale), _line(y, _GRID, scale))
    light += line[..., None] * np.array(night) * 0.75
    away = np.hypot(x / rules.width - 0.5, y / rules.height - 0.5)
    light *= np.clip(1.15 - 1.1 * away**1.5, 0.25, 1.15)[..., None]
    random = np.random.default_rng(7)
    rows, columns = (random.integers(0, limit, _STARS) for limit in light.shape[:2])
    light[rows, columns] += random.uniform(30, 150, (_STARS, 1))
    inside = (x >= 0) & (x <= rules.width) & (y >= 0) & (y <= rules.height)
    rim = np.minimum(np.minimum(x, rules.width - x), np.minimum(y, rules.height - y))
    light += (np.clip(1 - rim / 28, 0, 1) ** 3 * inside)[..., None] * np.array((70, 150, 220)) * 0.6
    return np.clip(np.where(inside[..., None], light, 0.35 * light), 0, 255).astype(np.uint8)


def _line(where: Array, period: float, scale: float) -> Array:
    """Returns the share of a pixel covered by pixel-wide lines, one every ``period`` px."""
    away = np.abs(np.remainder(where + period / 2, period) - period / 2)
    return np.clip(1 - away * scale, 0, 1)


def _share(events: Sequence[VisualEvent], kind: str, clock: int) -> float:
    """Returns the remaining part of the latest event of a kind, 0 to 1."""
    return max((1 - (clock - event.step) / DURATION[event.kind] for event in events if event.kind == kind), default=0.0)


def _turn(points: Array, angle: float) -> Array:
    cos, sin = np.cos(angle), np.sin(angle)
    return points @ np.array([[cos, sin], [-sin, cos]])


def _dim(colour: Colour, share: float) -> Colour:
    return mixed((0, 0, 0), colour, share)


# -- texts -------------------------------------------------------------------------------------------------------------


def _draw_hud(picture: Picture, now: ArenaSnapshot, rules: ArenaRules, title: str) -> None:
    """Draws health, phase, score and time, as large as the picture allows."""
    height, width = picture.shape[:2]
    block = max(1, round(height / 300))
    margin, row, points = 6 * block, 11 * block, 9 * block
    line, middle, right = margin + 3.5 * block, width // 2, width - margin

    # The health, one cell per hit that the player can take.
    share = max(0.0, now.health) / rules.max_health
    colour = WIN if share > 0.5 else LATE if share > 0.25 else LOSS
    cells = round(rules.max_health / rules.shot_damage)
    full = int(np.ceil(share * cells))
    for cell in range(cells):
        tint, opacity = (colour, 0.95) if cell < full else (_FAINT, 0.2)
        box(picture, margin + cell * 6 * block, margin, 5 * block, 7 * block, tint, opacity)
    write(picture, f"{max(0.0, now.health):.0f}", margin + (6 * cells + 3) * block, line, points, PAPER)

    # The phase, and below it one pip per spawner, bright for existing ones.
    phases = len(rules.phases)
    phase = min(now.phase, phases - 1)
    write(picture, f"PHASE {phase + 1}/{phases}", middle, line, points, PAPER, 0.5, True)
    pips, standing = len(rules.phases[phase].anchors), int((now.spawner_health > 0).sum())
    left = middle - (9 * pips - 3) * block // 2
    for pip in range(pips):
        opacity = 1.0 if pip < standing else 0.2
        box(picture, left + 9 * pip * block, margin + 11 * block, 6 * block, 4 * block, SPAWNER, opacity)

    seconds = max(0, rules.max_steps - now.step) // STEPS_PER_SECOND
    colour = LOSS if seconds < 5 else PAPER
    write(picture, f"SCORE {now.score:.0f}", right, line, points, PAPER, 1, True)
    write(picture, f"TIME {seconds // 60}:{seconds % 60:02}", right, line + row, points, colour, 1)
    share = max(0.0, 1 - now.step / rules.max_steps)
    box(picture, 0, height - block, round(width * share), block, _FAINT, 0.8)
    write(picture, f"{now.kills} KILLS", margin, line + row, points, _FAINT)
    write(picture, title, margin, height - 7 * block, max(9, 5 * block), _FAINT)


def _draw_banner(picture: Picture, now: ArenaSnapshot, rules: ArenaRules) -> None:
    """Announces the end of the game, or a new phase."""
    height, width = picture.shape[:2]
    block, middle = max(1, round(height / 300)), width / 2
    if now.over(rules):
        text, colour = outcome(now, rules)
        top = round(0.36 * height)
        box(picture, 0, top - 12 * block, width, 60 * block, (0, 0, 0), 0.6)
        for edge in (top - 12 * block, top + 48 * block):
            box(picture, 0, edge, width, block, colour)
        write(picture, text, middle, top + 14 * block, 40 * block, colour, 0.5, True)
        write(picture, f"SCORE {now.score:.0f}", middle, top + 39 * block, 9 * block, PAPER, 0.5)
    elif (age := now.step - now.phase_start) < _INTRO_STEPS:
        y, opacity = height // 3 + 10 * block, min(1.0, 2 - 2 * age / _INTRO_STEPS)
        write(picture, f"PHASE {now.phase + 1}", middle, y, 28 * block, PAPER, 0.5, True, opacity)


def outcome(now: ArenaSnapshot, rules: ArenaRules) -> tuple[str, Colour]:
    """Returns the outcome of a finished game, and its colour."""
    return ("YOU WIN", WIN) if now.won(rules) else ("GAME OVER", LOSS) if now.health <= 0 else ("TIME UP", LATE)


# -- events between two snapshots --------------------------------------------------------------------------------------

Kind = Literal["kill", "vanish", "birth", "destroyed", "spawner hit", "hurt", "heal", "death"]

DURATION: dict[Kind, int] = {
    **{"kill": 24, "vanish": 18, "birth": 14, "destroyed": 48},
    **{"spawner hit": 6, "hurt": 14, "heal": 30, "death": 75},
}
"""Number of steps for which an event is visible."""

_SLACK = 1.0  # px, for rounding
_THRUST = 0.05  # px per step: more than rounding, less than what thrust adds at full speed


@dataclass(frozen=True)
class VisualEvent:
    """A visible event.

    Attributes:
        step: step of the event.
        at: position in px.
        slot: slot of the affected spawner.
    """

    kind: Kind
    step: int
    at: tuple[float, float]
    slot: int = -1


class Effects:
    """Keeps the visible events of one episode in one direction of time.

    Attributes:
        events: oldest first.
        thrusting: whether the ship has used thrust since the previous snapshot.
    """

    def __init__(self, rules: ArenaRules) -> None:
        self._rules = rules
        self._before: ArenaSnapshot | None = None
        self.events: list[VisualEvent] = []
        self.thrusting = False

    def watch(self, now: ArenaSnapshot, pause: int = 0) -> None:
        """Processes the next snapshot, or the same again. One of an earlier step begins a new episode.

        Args:
            pause: steps since the end of the game.
        """
        before, self._before = self._before, now
        if before is not None and now.step > before.step:
            self.events += happened(before, now, self._rules)
            self.thrusting = _pushed(before, now, self._rules)
        elif before is None or now.step < before.step:
            self.events, self.thrusting = [], False
        clock = now.step + pause
        self.events = [event for event in self.events if clock - event.step < DURATION[event.kind]]


def happened(before: ArenaSnapshot, now: ArenaSnapshot, rules: ArenaRules) -> list[VisualEvent]:
    """Returns the events between two snapshots of an episode."""
    events: list[VisualEvent] = []

    def add(kind: Kind, at: Array, slot: int = -1) -> None:
        events.append(VisualEvent(kind, now.step, (float(at[0]), float(at[1])), slot))

    next_phase = now.phase != before.phase
    set_up = next_phase and not now.won(rules)
    gone, fresh = _changed(before, now)
    for place in gone:
        add("vanish" if set_up else "kill", before.enemies[place])
    for place in fresh:
        add("birth", now.enemies[place])
    for slot in np.flatnonzero(before.spawner_health > 0):
        if set_up or now.spawner_health[slot] <= 0:
            add("destroyed", before.spawners[slot], int(slot))
        elif now.spawner_health[slot] < before.spawner_health[slot]:
            add("spawner hit", now.spawners[slot], int(slot))
    if now.health <= 0 < before.health:
        add("death", now.position)
    elif now.health != before.health:
        add("hurt" if now.health < before.health else "heal", now.position)
    return events


def _changed(before: ArenaSnapshot, now: ArenaSnapshot) -> tuple[list[int], list[int]]:
    """Returns the places of vanished and of new enemies; both snapshots list enemies by age."""
    reach = before.enemy_speed * (now.step - before.step) + _SLACK
    gone, following = [], 0
    for place, position in enumerate(before.enemies):
        if following < len(now.enemies) and np.hypot(*(now.enemies[following] - position)) <= reach[place]:
            following += 1
        else:
            gone.append(place)
    return gone, list(range(following, len(now.enemies)))


def _pushed(before: ArenaSnapshot, now: ArenaSnapshot, rules: ArenaRules) -> bool:
    """Returns whether the ship is faster along its nose than friction alone would allow."""
    if rules.style != 1:
        return False
    coasting = before.velocity * rules.friction ** (now.step - before.step)
    nose = np.array([np.cos(now.rotation), np.sin(now.rotation)])
    return bool((now.velocity - coasting) @ nose > _THRUST)


# -- recordings ------------------------------------------------------------------------------------------------------


@dataclass
class ArenaRecording(EpisodeRecording):
    """One episode.

    Args:
        frames: at least one state.
        rules: rules of the game.
        title: title of the pictures.
    """

    shown = LEGEND

    frames: Sequence[ArenaSnapshot] = field(repr=False)
    rules: ArenaRules
    title: str = ""

    def animation(self) -> Animation:
        """Returns the episode as a film by steps of the game."""
        return ArenaAnimation(self)

    def overview(self) -> Picture:
        """Draws the last frame with the ship's trail, which brightens with time, and the outcome in the corner."""
        renderer, last = ArenaRenderer(self.rules, _TILE), self.frames[-1]
        end = f": {outcome(last, self.rules)[0].lower()}" if last.over(self.rules) else ""
        tile = renderer.draw(last, title=f"{self.title}{end}", banner=False)
        renderer.draw_way(tile, [frame.position for frame in self.frames])
        return tile


class ArenaAnimation(Animation):
    """The animation of an episode by steps, 60 per second.

    Args:
        recording: recording of the episode.
        size: width and height of the pictures in pixels, at least 320 by 256; shapes other than the arena's 5:4 have
            dark edges.

    Raises:
        ValueError: the size is too small.
    """

    per_second = float(STEPS_PER_SECOND)

    def __init__(self, recording: ArenaRecording, size: tuple[int, int] = SIZE) -> None:
        self.recording, self.size = recording, size
        self._steps = np.array([frame.step for frame in recording.frames])
        self._renderer, self._drawn = ArenaRenderer(recording.rules, size), -1

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last step."""
        return float(self._steps[0]), float(self._steps[-1])

    def draw(self, time: float | None = None, pause: float = 0.0, /) -> Picture:
        """Draws a step (None: the last); explosions continue for ``pause`` steps after the end."""
        frames = self.recording.frames
        t = int(np.searchsorted(self._steps, self.span[1] if time is None else time).clip(max=len(frames) - 1))
        if t < self._drawn:
            self._renderer = ArenaRenderer(self.recording.rules, self.size)
        for frame in frames[max(0, t - _LOOK_BACK, self._drawn + 1 if t >= self._drawn else 0) : t]:
            self._renderer.effects.watch(frame)
        self._drawn = t
        return self._renderer.draw(frames[t], round(pause), self.recording.title)


class ArenaRecorder(EpisodeRecorder[ArenaRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        part, rules = self._env.worlds.part(worlds), self._env.rules
        state = {name: getattr(part, name) for name in _SHOWN}
        won, dead = state["phase"] >= len(rules.phases), state["health"] <= 0
        return {**state, "clock": state["step"], "over": won | dead | (state["step"] >= rules.max_steps)}

    def _frame(self, row: Row) -> ArenaSnapshot:
        return _snapshot(row, self._env.rules)

    def _recording(self, frames: list[ArenaSnapshot], title: str) -> ArenaRecording:
        return ArenaRecording(frames, self._env.rules, title)
