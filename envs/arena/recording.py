"""Recordings of episodes of Arena: snapshots of single worlds, collected while the worlds step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from ..recording import EpisodeRecorder, EpisodeRecording
from .rules import NEVER, ArenaRules
from .state import ArenaState

if TYPE_CHECKING:
    from ..rendering.canvas import Legend, Picture
    from ..rendering.films import Animation

Array = NDArray[Any]

_SHOWN = (
    *("position", "velocity", "rotation", "health", "shot_ready", "targets", "target_health", "speed", "ready"),
    *("period", "shots", "shot_velocity", "shot_ends", "bullets", "bullet_velocity", "bullet_born", "bullet_ends"),
    *("step", "phase", "phase_start", "returns", "kills", "spawner_kills"),
)
"""Fields of the state that pictures show."""


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


def snapshot(state: ArenaState, world: int, rules: ArenaRules) -> ArenaSnapshot:
    """Takes a snapshot of one world of a batch.

    Raises:
        ValueError: the world does not exist.
    """
    worlds = len(state.step)
    if not 0 <= world < worlds:
        raise ValueError(f"world: {world} is not among the {worlds} worlds of the state")
    return _snapshot(_gathered(state, torch.tensor([world], device=state.step.device)), 0, rules)


def _gathered(state: ArenaState, worlds: torch.Tensor) -> dict[str, Array]:
    """Copies the fields that pictures show for the worlds of an index tensor."""
    part = state.part(worlds)
    return {name: getattr(part, name).cpu().numpy() for name in _SHOWN}


def _snapshot(fields: Mapping[str, Array], place: int, rules: ArenaRules) -> ArenaSnapshot:
    one = {name: values[..., place] for name, values in fields.items()}
    enemies = rules.max_enemies
    alive = one["target_health"][:enemies] > 0
    x, y = one["shots"]
    flying = (one["shot_ends"] > one["step"]) & (x >= 0) & (x <= rules.width) & (y >= 0) & (y <= rules.height)
    taken = one["bullet_ends"] < NEVER
    return ArenaSnapshot(
        position=one["position"],
        velocity=one["velocity"],
        rotation=float(one["rotation"]),
        health=float(one["health"]),
        shot_ready=float(one["shot_ready"]),
        enemies=one["targets"][:, :enemies].T[alive],
        enemy_speed=one["speed"][:enemies][alive],
        enemy_ready=one["ready"][:enemies][alive],
        spawners=one["targets"][:, enemies:].T,
        spawner_health=one["target_health"][enemies:],
        spawner_ready=one["ready"][enemies:],
        spawner_period=one["period"],
        shots=one["shots"].T[flying],
        shot_velocity=one["shot_velocity"].T[flying],
        bullets=one["bullets"].T[taken],
        bullet_velocity=one["bullet_velocity"].T[taken],
        bullet_age=(one["step"] - one["bullet_born"])[taken],
        step=int(one["step"]),
        phase=int(one["phase"]),
        phase_start=int(one["phase_start"]),
        score=float(one["returns"]),
        kills=int(one["kills"]),
        spawner_kills=int(one["spawner_kills"]),
    )


@dataclass
class ArenaRecording(EpisodeRecording):
    """One episode.

    Args:
        frames: at least one state.
        rules: rules of the game.
        title: title of the pictures.

    Raises:
        ValueError: there are no frames.
    """

    frames: Sequence[ArenaSnapshot] = field(repr=False)
    rules: ArenaRules
    title: str = ""

    def __post_init__(self) -> None:
        """Refuses an empty recording."""
        if not self.frames:
            raise ValueError("frames: a recording needs at least one")

    def animation(self) -> Animation:
        """Returns the episode as a film by steps of the game."""
        from .render import ArenaAnimation

        return ArenaAnimation(self)

    def legend(self) -> Legend:
        """Returns the legend of its pictures."""
        from .render import LEGEND

        return LEGEND

    def overview(self) -> Picture:
        """Draws the last frame with the ship's trail."""
        from .render import overview

        return overview(self)


class ArenaRecorder(EpisodeRecorder[ArenaSnapshot, ArenaRecording]):
    """Records some worlds of an env, one episode of each."""

    def _look(self, places: list[int]) -> list[ArenaSnapshot]:
        fields = _gathered(self._env.worlds, self._worlds[places])
        return [_snapshot(fields, row, self._env.rules) for row in range(len(places))]

    def _time(self, frame: ArenaSnapshot) -> float:
        return frame.step

    def _is_over(self, frame: ArenaSnapshot) -> bool:
        return frame.over(self._env.rules)

    def _recording(self, frames: list[ArenaSnapshot], title: str) -> ArenaRecording:
        return ArenaRecording(frames, self._env.rules, title)
