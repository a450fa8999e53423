"""An episode at any of its times: between two states, what moves is in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .story import Frames, Story

Array = NDArray[Any]

_MOVING = ("position", "velocity", "heat", "stability", "score", "control")


@dataclass(frozen=True, eq=False)
class Moment:
    """A match at a time in sub-steps; mechs ``[M, ...]`` as in :class:`~envs.echelon.recording.Frames`."""

    story: Story
    tick: float
    frame: int  # the latest state
    position: Array
    velocity: Array
    yaw: Array
    hp: Array
    legs: Array
    heat: Array
    stability: Array
    score: Array
    control: float
    clocks: Array
    ewar: Array
    target: Array
    kills: Array
    damage: Array
    inside: Array

    @property
    def zone(self) -> tuple[float, float, float]:
        """Its centre and radius."""
        return self.story.ground.zone

    @property
    def held(self) -> tuple[bool, bool]:
        """Whether blue, and red, are in the zone."""
        teams = np.array([mech.team for mech in self.story.mechs])
        return bool(self.inside[teams == 0].any()), bool(self.inside[teams == 1].any())

    def alive(self, place: int) -> bool:
        """Whether a mech lives."""
        return bool(self.hp[place] > 0)

    def ground_at(self, x: float, y: float) -> float:
        """Height of the ground."""
        column, row = (int(np.clip(value, 0, self.story.ground.side - 1)) for value in (x, y))
        return float(self.story.ground.height[row, column])


def moment(story: Story, tick: float) -> Moment:
    """The match after so many sub-steps; before its first and after its last state it stands still."""
    frames = story.frames
    t = int(np.clip(np.searchsorted(frames.tick, tick, side="right") - 1, 0, len(frames) - 1))
    span = float(frames.tick[t + 1] - frames.tick[t]) if t + 1 < len(frames) else 0.0
    share = float(np.clip((tick - float(frames.tick[t])) / span, 0, 1)) if span > 0 else 0.0
    now = {name: value[t] for name, value in vars(frames).items() if name not in ("tick", "quality", "jam")}
    if share > 0:
        now |= _between(frames, t, share)
    return Moment(story, tick, t, **now | {"control": float(now["control"])})


def _between(frames: Frames, t: int, share: float) -> dict[str, Array]:
    mixed: dict[str, Array] = {}
    for name in _MOVING:
        rows = getattr(frames, name)
        mixed[name] = rows[t] + np.float32(share) * (rows[t + 1] - rows[t])
    turn = np.remainder(frames.yaw[t + 1] - frames.yaw[t] + np.pi, 2 * np.pi) - np.pi
    mixed["yaw"] = frames.yaw[t] + share * turn
    return mixed


def deaths(story: Story) -> dict[int, int]:
    """The sub-step in which each mech that died did so, by its place."""
    places = {mech.name: place for place, mech in enumerate(story.mechs)}
    return {places[e.details["target"]]: e.tick for e in story.events if e.type == "kill"}
