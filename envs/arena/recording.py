"""Recordings of episodes of Arena, and their films."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..recording import EpisodeRecorder, EpisodeRecording, Row
from ..rendering.canvas import Picture
from ..rendering.films import Animation
from .render import LEGEND, SIZE, STEPS_PER_SECOND, ArenaRenderer, ArenaSnapshot, outcome
from .rules import NEVER, ArenaRules
from .state import ArenaState

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
