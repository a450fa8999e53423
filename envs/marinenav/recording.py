"""Recordings of episodes of MarineNav, one per world, collected while the worlds step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..keys import GROUP
from ..recording import EpisodeRecorder, EpisodeRecording, Row
from .rules import MarineNavRules
from .simulation import AFTER_COLLISION, AFTER_GOAL, COLLISION, GOAL, TIME_OUT

if TYPE_CHECKING:
    from ..rendering.canvas import Legend, Picture
    from ..rendering.films import Animation

Array = NDArray[Any]

_STANDING = ("goal", "start", "obstacles", "obstacle_present", "cores")
_MOVING = ("pose", "active", "reached", "time")
_SHOWN = ("pose", "active", "reached", "status", "perceived", "perceived_mask")
COLLIDED, ARRIVED = (COLLISION, AFTER_COLLISION), (GOAL, AFTER_GOAL)
"""Status codes of robots that ended this way."""


@dataclass
class MarineNavRecording(EpisodeRecording):
    """One episode: T steps, A robots, K obstacles, C vortex cores, as anything that numpy converts to arrays.

    Frame 0 is the state after reset. Metres, radians, m/s; world frame x north, y east.

    Args:
        dt: seconds between frames.
        pose: [T+1, A, 3] x, y, heading.
        active: [T+1, A] bool; a robot that is never active is padding and not drawn.
        goal: [A, 2].
        start: [A, 2].
        obstacles: [K, 3] x, y, radius.
        cores: [C, 4] x, y, rotation flag, circulation in m^2/s.
        status: [T+1, A] int: 0 normal, 1 time-out, 2 collision, 3 goal, 4 and 5 inactive after these two.
        reached: [T+1, A] bool, robots that have reached their goal; the status lacks this for a robot that collides or
            runs out of time in the same step. None: taken from the status.
        perceived: [T+1, A, 5, 5] px, py, vx, vy, r of perceived objects in the robot's body frame, or None.
        perceived_mask: [T+1, A, 5] bool, marks existing objects, or None.
        length: length of the hull.
        width: width of the hull.
        title: title above the map.

    Raises:
        ValueError: the shape of a field does not fit; the message names it.
    """

    dt: float
    pose: Array
    active: Array
    goal: Array
    start: Array
    obstacles: Array
    cores: Array
    status: Array
    reached: Array | None = None
    perceived: Array | None = None
    perceived_mask: Array | None = None
    length: float = 5.0
    width: float = 2.5
    title: str = ""

    def __post_init__(self) -> None:
        """Converts every field to an array of its documented shape."""
        self.pose = np.asarray(self.pose, dtype=np.float64)
        if self.pose.ndim != 3 or self.pose.shape[-1] != 3 or 0 in self.pose.shape:
            raise ValueError(f"pose must have shape [T+1, A, 3], got {self.pose.shape}")
        frames, robots, _ = self.pose.shape
        self.active = _shaped("active", self.active, (frames, robots)).astype(bool)
        self.goal = _shaped("goal", self.goal, (robots, 2))
        self.start = _shaped("start", self.start, (robots, 2))
        self.obstacles = _shaped("obstacles", self.obstacles, (len(self.obstacles), 3))
        self.cores = _shaped("cores", self.cores, (len(self.cores), 4))
        self.status = _shaped("status", self.status, (frames, robots)).astype(int)
        reached = np.isin(self.status, ARRIVED) if self.reached is None else self.reached
        self.reached = np.maximum.accumulate(_shaped("reached", reached, (frames, robots)).astype(bool))
        if self.perceived is not None and self.perceived_mask is not None:
            self.perceived = _shaped("perceived", self.perceived, (frames, robots, 5, 5))
            mask = _shaped("perceived_mask", self.perceived_mask, (frames, robots, 5))
            self.perceived_mask = mask.astype(bool)

    def animation(self) -> Animation:
        """Returns the episode as a film at ten times its speed."""
        from .render import MarineNavAnimation

        return MarineNavAnimation(self)

    def legend(self) -> Legend:
        """Returns the legend of its pictures."""
        from .render import LEGEND

        return LEGEND

    def overview(self) -> Picture:
        """Draws whole paths and the outcome."""
        from .render import overview

        return overview(self)

    @property
    def robots(self) -> Array:
        """Returns the indices of the robots that are not padding."""
        return np.flatnonzero(self.active.any(axis=0))

    @property
    def success(self) -> bool:
        """Returns whether every robot has reached its goal, as published, regardless of other events in that step."""
        assert self.reached is not None
        return bool(self.reached[-1, self.robots].all())

    @property
    def collision(self) -> bool:
        """Returns whether any robot has collided."""
        return bool(np.isin(self.status[:, self.robots], COLLIDED).any())


def _shaped(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value)
    if array.shape != shape and 0 not in shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")
    return array.reshape(shape)


class MarineNavRecorder(EpisodeRecorder[MarineNavRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        state, shown = self._env.worlds, self._env._current()[GROUP]
        values = {name: getattr(state, name) for name in (*_MOVING, *_STANDING)}
        values |= {"clock": state.steps, "status": shown["info"].T}
        for name, seen in (("perceived", "objects"), ("perceived_mask", "mask")):
            values[name] = shown["observation", seen].movedim(0, -1)
        values = {name: value.index_select(-1, worlds) for name, value in values.items()}
        status = values["status"]
        over = ~values["active"].any(0) | (status == TIME_OUT).any(0)
        if self._env.options.end_on_collision:
            over = over | torch.isin(status, torch.tensor(COLLIDED, device=status.device)).any(0)
        return {**values, "over": over}

    def _recording(self, frames: list[Row], title: str) -> MarineNavRecording:
        first, steps = frames[0], len(frames) - 1
        time = (frames[-1]["time"] - first["time"]).max()
        dt = time / steps if steps else MarineNavRules().dt * MarineNavRules().substeps
        columns: dict[str, Any] = {name: np.stack([frame[name] for frame in frames]) for name in _SHOWN}
        columns["pose"] = columns["pose"].transpose(0, 2, 1)
        return MarineNavRecording(
            dt=float(dt),
            goal=first["goal"].T,
            start=first["start"].T,
            obstacles=first["obstacles"][:, first["obstacle_present"]].T,
            cores=first["cores"][:, first["cores"][3] != 0].T,
            title=title,
            **columns,
        )
