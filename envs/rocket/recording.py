"""Recordings of Rocket's episodes: states of single matches, and their files."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..bounded_files import check_archive
from ..recording import EpisodeRecorder, EpisodeRecording
from ..whole_files import replacing
from . import rules
from .match import TEAMS, RocketMatch

if TYPE_CHECKING:
    from ..rendering.canvas import Legend, Picture
    from ..rendering.films import Animation

Array = NDArray[Any]

FORMAT, VERSION, WORLD = "rlstack-replay", 1, "rocket"
_META = "meta"
_MOST_CARS = 6
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)

ABSENT = -1
"""Value of ``gone`` for an absent car."""
LEAP = 1500.0  # uu within a step; a longer move is a car's return after a demolition
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
"""Type of each column of :class:`RocketFrames`, and its shape after T, ``"C"`` for the number of cars."""


@dataclass(frozen=True, eq=False)
class RocketFrames:
    """T states of a match, ``[T, ...]`` each, or a single one, ``[...]``.

    Controls and touches are those of the step that led to the state.
    """

    clock: Any  # ticks since the kick-off
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
    gone: Array  # ticks until a demolished car is back, ABSENT for an absent one
    controls: Array  # of the step: throttle, steer, pitch, yaw, roll, jump, boost, brake
    touches: Array  # of the ball in the step
    pads: Array  # ticks until each is back, 0: available
    goal: Any  # 1: blue has scored, -1: orange has, 0: none yet

    def __len__(self) -> int:
        return len(self.clock)

    @property
    def cars(self) -> int:
        """Number of cars C."""
        return int(self.position.shape[1])

    @property
    def there(self) -> list[int]:
        """Returns the cars on the field in a single state."""
        return [int(car) for car in np.flatnonzero(self.gone == 0)]

    def part(self, which: slice) -> RocketFrames:
        """Returns some of the states."""
        return RocketFrames(**{name: value[which] for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class RocketRecording(EpisodeRecording):
    """An episode: its states, options and players.

    Args:
        frames: at least one state.
        options: options of the world.
        players: players of blue and orange.
        title: title of the pictures.

    Raises:
        ValueError: there are no frames.
    """

    frames: RocketFrames = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""
    overview_columns = 3

    def __post_init__(self) -> None:
        """Refuses an empty recording."""
        if not len(self.frames):
            raise ValueError("frames: a recording needs at least one")

    @property
    def goals(self) -> tuple[int, int]:
        """Returns the goals of blue and of orange."""
        last = int(self.frames.goal[-1])
        return int(last > 0), int(last < 0)

    def named(self, players: tuple[str, str], title: str = "") -> RocketRecording:
        """Returns the same recording with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Returns the animation by ticks of the match."""
        from .render import RocketAnimation

        return RocketAnimation(self)

    def legend(self) -> Legend:
        """Returns the legend of its pictures."""
        from .render import LEGEND

        return LEGEND

    def overview(self) -> Picture:
        """Draws the end, with trails of cars and ball that brighten with time."""
        from .render import overview

        return overview(self)

    def save_replay(self, path: str | Path) -> None:
        """Writes the recording atomically; makes missing folders. See :func:`load_replay`.

        Raises:
            ValueError: the suffix is not ``.npz``.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ValueError(f"cannot write {path.name}: the ending of a replay is .npz")
        meta = {
            **{"format": FORMAT, "version": VERSION, "world": WORLD, "players": list(self.players)},
            **{"goals": list(self.goals), "options": dict(self.options), "title": self.title},
        }
        with replacing(path) as (partial,), partial.open("wb") as stream:
            np.savez_compressed(stream, **{_META: np.array(json.dumps(meta)), **vars(self.frames)})

    def at(self, clock: float) -> RocketFrames:
        """Returns the match after a number of ticks, interpolated between two states."""
        clocks = self.frames.clock
        t = int(np.clip(np.searchsorted(clocks, clock, side="right") - 1, 0, len(clocks) - 1))
        now = {name: value[t] for name, value in vars(self.frames).items()}
        span = float(clocks[t + 1] - clocks[t]) if t + 1 < len(clocks) else 0.0
        share = (clock - float(clocks[t])) / span if span > 0 else 0.0
        if share > 0:
            after = {name: getattr(self.frames, name)[t + 1] for name in _MOVING}
            now |= _between(now, after, min(share, 1.0))
        return RocketFrames(**now | {"clock": float(now["clock"]), "goal": int(now["goal"])})


def _between(now: Mapping[str, Array], after: Mapping[str, Array], share: float) -> dict[str, Array]:
    leaps = np.linalg.norm(after["position"] - now["position"], axis=-1) > LEAP
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


def _packed(match: RocketMatch, controls: Tensor | None, worlds: Tensor) -> Array:
    """Returns all columns of :class:`RocketFrames` in one row per world, float32 ``[n, size]``; counts touches."""
    state = match.world
    cars, ball = state.cars, state.ball
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
        "gone": torch.where(cars.gone.isinf(), float(ABSENT), cars.gone),
        "controls": controls.transpose(0, 1),
        "touches": match.touches,
        "pads": state.pads.clamp_min(0.0),
        "goal": state.goal,
    }
    count = state.clock.shape[-1]
    columns = [values[name].reshape(-1, count).index_select(1, worlds).float() for name in COLUMNS]
    return torch.cat(columns).T.contiguous().cpu().numpy()


def _unpacked(rows: Array, cars: int) -> RocketFrames:
    columns, first = {}, 0
    for name, (kind, shape) in COLUMNS.items():
        sizes = [cars if size == "C" else int(size) for size in shape]
        last = first + int(np.prod(sizes, dtype=np.int64))
        values = rows[:, first:last].reshape(len(rows), *sizes)
        if name == "touches":
            values = np.diff(values, axis=0, prepend=values[:1]) > 0
        columns[name] = values.astype(kind)
        first = last
    return RocketFrames(**columns)


class RocketRecorder(EpisodeRecorder[Array, RocketRecording]):
    """Records some worlds of an env, one episode of each."""

    def _look(self, places: list[int]) -> list[Array]:
        return list(_packed(self._env.worlds, self._env.controls, self._worlds[places]))

    def _time(self, frame: Array) -> float:
        return float(frame[0])  # the clock

    def _is_over(self, frame: Array) -> bool:
        return bool(frame[-1] != 0)  # a goal

    def _recording(self, frames: list[Array], title: str) -> RocketRecording:
        columns = _unpacked(np.stack(frames), self._env.starts.cars)
        columns.controls[0] = 0.0  # removes those of the previous episode
        return RocketRecording(columns, dict(self._env.options), title=title)


# -- files -------------------------------------------------------------------------------------------------------------


def load_replay(path: str | Path) -> RocketRecording:
    """Reads a file of :meth:`RocketRecording.save_replay`.

    A file is a ``.npz`` without pickles: every column of :class:`RocketFrames` under its name, ``[T, ...]`` as
    :data:`COLUMNS` says, and ``meta``, a JSON text: ``format`` (``rlstack-replay``), ``version`` (1), ``world``
    (``rocket``), ``players`` (who drove blue and orange), ``goals`` (of both), ``options`` (of the world), ``title``.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its arrays do not fit each other.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files if name in (_META, *COLUMNS)}
        if not all(isinstance(entry, np.ndarray) for entry in entries.values()):
            raise ValueError("an entry is not an array")
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged, or no .npz"
        raise ValueError(f"{path}: cannot be read as a replay ({reason})") from None
    meta = _read_meta(entries.pop(_META, None), path)
    missing = [name for name in COLUMNS if name not in entries]
    if missing:
        raise ValueError(f"{path}: not a whole replay, {missing[0]!r} is missing")
    _check_columns(entries, path)
    players, options = meta.get("players"), meta.get("options")
    if not isinstance(players, list) or len(players) != 2 or not all(isinstance(name, str) for name in players):
        raise ValueError(f"{path}: players {players!r} are not two names")
    frames = RocketFrames(**{name: entries[name] for name in COLUMNS})
    named = (players[0], players[1])
    return RocketRecording(frames, options if isinstance(options, dict) else {}, named, str(meta.get("title", "")))


def _read_meta(entry: NDArray[Any] | None, path: str | Path) -> Mapping[str, Any]:
    try:
        meta = json.loads(str(entry[()])) if entry is not None and entry.dtype.kind == "U" else None
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or (meta.get("format"), meta.get("world")) != (FORMAT, WORLD):
        raise ValueError(f"{path}: not a replay of {WORLD} (no such entry {_META!r})")
    if meta.get("version") != VERSION:
        raise ValueError(f"{path}: version {meta.get('version')!r}, this program reads version {VERSION}")
    return meta


def _check_columns(entries: Mapping[str, NDArray[Any]], path: str | Path) -> None:
    clock, boost = entries["clock"], entries["boost"]
    count, cars = len(clock) if clock.ndim == 1 else 0, boost.shape[1] if boost.ndim == 2 else 0
    if not count or not 2 <= cars <= _MOST_CARS or cars % 2:
        shapes = f"clock has shape {clock.shape}, boost {boost.shape}"
        raise ValueError(f"{path}: {shapes}, expected [T] and [T, C] with C of 2, 4 or 6")
    for name, (kind, rest) in COLUMNS.items():
        value, shape = entries[name], (count, *(cars if size == "C" else size for size in rest))
        if value.shape != shape or value.dtype != np.dtype(kind):
            got = f"{value.dtype} {list(value.shape)}"
            raise ValueError(f"{path}: {name} is {got}, expected {kind} {list(shape)}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"{path}: {name} holds numbers that are not finite")
    if not (np.diff(clock) > 0).all():
        raise ValueError(f"{path}: clock does not ascend")
    if (entries["gone"] < ABSENT).any():
        raise ValueError(f"{path}: gone holds numbers below {ABSENT}")
