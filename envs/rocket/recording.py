"""What happened in an episode of Rocket: states of single matches, collected while the worlds step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..recording import EpisodeRecorder, EpisodeRecording
from . import rules
from .match import Match
from .specs import TEAMS

if TYPE_CHECKING:
    from ..rendering.canvas import Picture
    from ..rendering.films import Animation

Array = NDArray[Any]

ABSENT = -1
"""In ``gone``: there is no such car."""
_LEAP = 1500.0  # uu within a step: nobody drives so far, a car has come back elsewhere
_MOVING = ("ball_position", "ball_velocity", "ball_spin", "position", "velocity", "spin", "rotation", "boost", "clock")


COLUMNS: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "clock": ("float32", ()),
    **dict.fromkeys(("ball_position", "ball_velocity", "ball_spin"), ("float32", (3,))),
    **dict.fromkeys(("position", "velocity", "spin"), ("float32", ("C", 3))),
    "rotation": ("float32", ("C", 3, 3)),
    "boost": ("float32", ("C",)),
    "boosting": ("bool", ("C",)),
    "wheels": ("int8", ("C",)),
    "gone": ("int16", ("C",)),
    "controls": ("float32", ("C", 8)),
    "touches": ("bool", ("C",)),
    "pads": ("int16", (len(rules.PADS),)),
    "goal": ("int8", ()),
}
"""Type of each column of :class:`Frames`, and its shape after T, ``"C"`` for the number of cars."""


@dataclass(frozen=True, eq=False)
class Frames:
    """T states of a match, ``[T, ...]`` each; what is said of a step is of the one that led to the state."""

    clock: Array  # ticks since the kick-off
    ball_position: Array  # uu
    ball_velocity: Array  # uu/s
    ball_spin: Array  # rad/s
    position: Array
    velocity: Array
    spin: Array
    rotation: Array  # axis (forward, right, up), component
    boost: Array  # 0 to 100
    boosting: Array
    wheels: Array  # on the ground, 0 to 4
    gone: Array  # ticks until a demolished car is back, ABSENT for one that is not there
    controls: Array  # of the step: throttle, steer, pitch, yaw, roll, jump, boost, brake
    touches: Array  # of the ball in the step
    pads: Array  # ticks until each is back, 0: there
    goal: Array  # 1: blue has scored, -1: orange has, 0: nobody yet

    def __len__(self) -> int:
        return len(self.clock)

    @property
    def cars(self) -> int:
        """C."""
        return int(self.position.shape[1])

    def part(self, which: slice) -> Frames:
        """Some of the states."""
        return Frames(**{name: value[which] for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A match at one time: the columns of :class:`Frames`, of one state."""

    clock: float
    ball_position: Array
    ball_velocity: Array
    ball_spin: Array
    position: Array
    velocity: Array
    spin: Array
    rotation: Array
    boost: Array
    boosting: Array
    wheels: Array
    gone: Array
    controls: Array
    touches: Array
    pads: Array
    goal: int

    @property
    def there(self) -> list[int]:
        """The cars that are on the field."""
        return [int(car) for car in np.flatnonzero(self.gone == 0)]


@dataclass(frozen=True, eq=False)
class Recording(EpisodeRecording):
    """One episode.

    Args:
        frames: its states, at least one.
        options: of the world.
        players: who drove blue and orange.
        title: for pictures.

    Raises:
        ValueError: there are no frames.
    """

    frames: Frames = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""

    def __post_init__(self) -> None:
        """Refuses an empty recording."""
        if not len(self.frames):
            raise ValueError("frames: a recording needs at least one")

    @property
    def goals(self) -> tuple[int, int]:
        """Of blue and of orange."""
        last = int(self.frames.goal[-1])
        return int(last > 0), int(last < 0)

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return float(self.frames.clock[-1] - self.frames.clock[0]) / rules.TICKS_PER_SECOND

    overview_columns = 3

    def named(self, players: tuple[str, str], title: str = "") -> Recording:
        """The same with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Of a picture every tick or more."""
        from .film import Film
        from .render import SIZE

        return Film(self, SIZE)

    def overview(self) -> Picture:
        """The end, with the ways of cars and ball, which brighten with time."""
        from .film import Film
        from .render import TILE

        return Film(self, TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """See :mod:`envs.rocket.replay`."""
        from .replay import save_replay

        save_replay(self, path)

    def at(self, clock: float) -> Snapshot:
        """The match after so many ticks; between two states, what moves is in between."""
        clocks = self.frames.clock
        t = int(np.clip(np.searchsorted(clocks, clock, side="right") - 1, 0, len(clocks) - 1))
        now = {name: value[t] for name, value in vars(self.frames).items()}
        span = float(clocks[t + 1] - clocks[t]) if t + 1 < len(clocks) else 0.0
        share = (clock - float(clocks[t])) / span if span > 0 else 0.0
        if share > 0:
            after = {name: getattr(self.frames, name)[t + 1] for name in _MOVING}
            now |= _between(now, after, min(share, 1.0))
        return Snapshot(**now | {"clock": float(now["clock"]), "goal": int(now["goal"])})


def _between(now: Mapping[str, Array], after: Mapping[str, Array], share: float) -> dict[str, Array]:
    leaps = np.linalg.norm(after["position"] - now["position"], axis=-1) > _LEAP
    mixed = {}
    for name in _MOVING:
        value: Array = now[name] + np.float32(share) * (after[name] - now[name])
        if name in ("position", "velocity", "spin", "rotation", "boost"):
            value[leaps] = now[name][leaps]
        mixed[name] = value
    forward, up = (mixed["rotation"][:, axis] for axis in (0, 2))
    forward = forward / np.maximum(np.linalg.norm(forward, axis=-1, keepdims=True), 1e-6)
    up = up - (up * forward).sum(-1, keepdims=True) * forward
    up = up / np.maximum(np.linalg.norm(up, axis=-1, keepdims=True), 1e-6)
    mixed["rotation"] = np.stack((forward, np.cross(up, forward), up), 1)
    return mixed


def snapshot(match: Match, world: int) -> Snapshot:
    """One world of a batch, see ``Rocket.worlds``.

    Raises:
        ValueError: there is no such world.
    """
    worlds = match.world.clock.shape[-1]
    if not 0 <= world < worlds:
        raise ValueError(f"world: {world} is not among the {worlds} worlds of the match")
    rows = _packed(match, None, torch.tensor([world], device=match.world.clock.device))
    return Recording(_unpacked(rows, match.touches.shape[0])).at(-1.0)


def _packed(match: Match, controls: Tensor | None, worlds: Tensor) -> Array:
    """Every column of :class:`Frames` in one row a world, float32 ``[n, size]``; touches are counted."""
    state = match.world
    cars, ball = state.cars, state.ball
    gone = torch.where(cars.gone.isinf(), float(ABSENT), cars.gone)
    if controls is None:
        controls = cars.boost.new_zeros(8, *cars.boost.shape)
    values = {
        "clock": state.clock,
        "ball_position": ball.position,
        "ball_velocity": ball.velocity,
        "ball_spin": ball.spin,
        "position": cars.position.transpose(0, 1),
        "velocity": cars.velocity.transpose(0, 1),
        "spin": cars.spin.transpose(0, 1),
        "rotation": cars.rotation.permute(2, 0, 1, 3),
        "boost": cars.boost,
        "boosting": (cars.boosting > 0) & (cars.boost > 0),
        "wheels": cars.wheels.sum(0),
        "gone": gone,
        "controls": controls.transpose(0, 1),
        "touches": match.touches,
        "pads": state.pads.clamp_min(0.0),
        "goal": state.goal,
    }
    count = state.clock.shape[-1]
    columns = [values[name].reshape(-1, count).index_select(1, worlds).float() for name in COLUMNS]
    return torch.cat(columns).T.contiguous().cpu().numpy()


def _unpacked(rows: Array, cars: int) -> Frames:
    columns, first = {}, 0
    for name, (kind, shape) in COLUMNS.items():
        sizes = [cars if size == "C" else int(size) for size in shape]
        last = first + int(np.prod(sizes, dtype=np.int64))
        values = rows[:, first:last].reshape(len(rows), *sizes)
        if name == "touches":
            values = np.diff(values, axis=0, prepend=values[:1]) > 0
        columns[name] = values.astype(kind)
        first = last
    return Frames(**columns)


class Recorder(EpisodeRecorder[Array, Recording]):
    """Collects recordings of some worlds of an env, one episode of each."""

    def _look(self, places: list[int]) -> list[Array]:
        return list(_packed(self._env.worlds, self._env.controls, self._worlds[places]))

    def _time(self, frame: Array) -> float:
        return float(frame[0])  # the clock

    def _is_over(self, frame: Array) -> bool:
        return bool(frame[-1] != 0)  # a goal

    def _recording(self, frames: list[Array], title: str) -> Recording:
        columns = _unpacked(np.stack(frames), self._env.starts.cars)
        columns.controls[0] = 0.0  # those of the episode before
        return Recording(columns, dict(self._env.options), title=title)
