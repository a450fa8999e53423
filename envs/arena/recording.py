"""What happened in an episode of Arena: snapshots of single worlds, collected while the worlds step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from ..recorders import titles_of
from .rules import NEVER, Rules
from .state import ArenaState

if TYPE_CHECKING:
    from .env import Arena

Array = NDArray[Any]

_SHOWN = (
    *("position", "velocity", "rotation", "health", "shot_ready", "targets", "target_health", "speed", "ready"),
    *("period", "shots", "shot_velocity", "shot_ends", "bullets", "bullet_velocity", "bullet_born", "bullet_ends"),
    *("step", "phase", "phase_start", "returns", "kills", "spawner_kills"),
)
"""Fields of the state that pictures show."""


@dataclass(frozen=True)
class Snapshot:
    """One world at one time: who is there, in px, px per step and radians; times are steps of the episode."""

    position: Array  # [2] of the player
    velocity: Array  # [2]
    rotation: float
    health: float
    shot_ready: float
    enemies: Array  # [E, 2] those alive, in the order they were made
    enemy_speed: Array  # [E]
    enemy_ready: Array  # [E] when each may fire
    spawners: Array  # [S, 2] all slots
    spawner_health: Array  # [S] 0 where there is none
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

    def won(self, rules: Rules) -> bool:
        """Whether all phases are cleared, even if the player died in that very step."""
        return self.phase >= len(rules.phases)

    def over(self, rules: Rules) -> bool:
        """Whether the episode has ended."""
        return self.won(rules) or self.health <= 0 or self.step >= rules.max_steps


def snapshot(state: ArenaState, world: int, rules: Rules) -> Snapshot:
    """One world of a batch.

    Raises:
        ValueError: there is no such world.
    """
    worlds = len(state.step)
    if not 0 <= world < worlds:
        raise ValueError(f"world: {world} is not among the {worlds} worlds of the state")
    return _snapshot(_gathered(state, torch.tensor([world], device=state.step.device)), 0, rules)


def _gathered(state: ArenaState, worlds: torch.Tensor) -> dict[str, Array]:
    """Copies of what pictures show of the worlds of an index tensor."""
    part = state.part(worlds)
    return {name: getattr(part, name).cpu().numpy() for name in _SHOWN}


def _snapshot(fields: Mapping[str, Array], place: int, rules: Rules) -> Snapshot:
    one = {name: values[..., place] for name, values in fields.items()}
    enemies = rules.max_enemies
    alive = one["target_health"][:enemies] > 0
    x, y = one["shots"]
    flying = (one["shot_ends"] > one["step"]) & (x >= 0) & (x <= rules.width) & (y >= 0) & (y <= rules.height)
    taken = one["bullet_ends"] < NEVER
    return Snapshot(
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
class Recording:
    """One episode.

    Args:
        frames: its states, at least one; with repeated actions there is one per action only.
        rules: of the game.
        title: for pictures.

    Raises:
        ValueError: there are no frames.
    """

    frames: Sequence[Snapshot] = field(repr=False)
    rules: Rules
    title: str = ""

    def __post_init__(self) -> None:
        """Refuses an empty recording."""
        if not self.frames:
            raise ValueError("frames: a recording needs at least one")


class Recorder:
    """Collects recordings of some worlds of an env, one episode of each.

    Call :meth:`add` after the reset and after every ``env.step`` (not ``step_and_maybe_reset``, which has already
    replaced the last state of a world that ended). A world's recording ends with its episode.

    Args:
        env: the world batch.
        worlds: indices of the worlds to record.
        titles: one per world, for pictures.

    Raises:
        ValueError: there is no such world, or there are more or fewer titles than worlds.
    """

    def __init__(self, env: Arena, worlds: Sequence[int], titles: Sequence[str] | None = None) -> None:
        self._titles = titles_of(worlds, titles, env.num_worlds)
        self._env, self._worlds = env, torch.tensor(list(worlds), dtype=torch.int64, device=env.device)
        self._frames: list[list[Snapshot]] = [[] for _ in worlds]
        self._running = set(range(len(worlds)))

    def add(self) -> None:
        """Adds the current state of every recorded world whose episode still runs."""
        if not self._running:
            return
        rules, fields = self._env.rules, _gathered(self._env.worlds, self._worlds)
        for place in sorted(self._running):
            frame, frames = _snapshot(fields, place, rules), self._frames[place]
            restarted = bool(frames) and frame.step <= frames[-1].step
            if not restarted:
                frames.append(frame)
            if restarted or frame.over(rules):
                self._running.discard(place)

    def recordings(self) -> list[Recording]:
        """What has been recorded so far, in the order of the worlds.

        Raises:
            ValueError: nothing has been added yet.
        """
        if not all(self._frames):
            raise ValueError("nothing recorded: call add() after the reset and after each step")
        return [Recording(frames, self._env.rules, title) for frames, title in zip(self._frames, self._titles)]
