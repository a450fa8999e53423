"""Recordings of Rocket's episodes: their states, films and files."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..foundation.files import check_archive, replacing
from ..recording import Columns, EpisodeRecorder, EpisodeRecording, Frames, Row, find_time
from ..rendering.canvas import Canvas, Colour, Legend, Picture, banner
from ..rendering.films import Animation
from . import rules
from .match import TEAMS
from .pitch import (
    ABSENT,
    BOOST,
    PAPER,
    TEAM_COLOURS,
    RocketPictureLayout,
    above,
    background,
    beside,
    draw_ball,
    draw_cars,
    draw_clock,
    draw_flight,
    draw_numbers,
    draw_pads,
    draw_panels,
    draw_shadows,
    team_colour,
)
from .prediction import forecast
from .state import Ball

Array = NDArray[Any]

FORMAT, VERSION, WORLD = "rlstack-replay", 1, "rocket"
_META = "meta"
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)

COLUMNS: Columns = {
    "clock": ("float32", ()),  # ticks since the kick-off
    "ball_position": ("float32", (3,)),  # uu
    "ball_velocity": ("float32", (3,)),  # uu/s
    "ball_spin": ("float32", (3,)),  # rad/s
    **dict.fromkeys(("position", "velocity", "spin"), ("float32", ("C", 3))),
    "rotation": ("float32", ("C", 3, 3)),  # axis (forward, right, up), component
    "boost": ("float32", ("C",)),  # 0 to 100
    "boosting": ("bool", ("C",)),
    "wheels": ("int8", ("C",)),  # on the ground, 0 to 4
    "gone": ("int16", ("C",)),  # ticks until a demolished car is back, ABSENT for an absent one
    "controls": (
        "float32",
        ("C", 8),
    ),  # throttle, steer, pitch, yaw, roll, jump, boost, brake of the step before
    "touches": ("bool", ("C",)),  # of the ball in the step before
    "pads": ("int16", (len(rules.PADS),)),  # ticks until each is back, 0: available
    "goal": ("int8", ()),  # 1: blue has scored, -1: orange has, 0: none yet
}
"""The states of a recording, ``C`` cars."""
_MOVING = ("ball_position", "ball_velocity", "ball_spin", "position", "velocity", "spin", "rotation", "boost", "clock")

SIZE = (1280, 720)
"""Width and height of pictures in pixels."""
_TILE = (640, 360)
_LEAP = 1500.0  # uu within a step; a longer move is a car's return after a demolition
_TRAIL_TICKS, _TRAIL_POINTS = 96, 9
_WAY_POINTS = 400
_RING_TICKS = 30  # ticks for which a touch is visible
_BURST_TICKS = 90
_LOW = rules.BALL_REST + 70.0  # height below which a ball rolls or hops, and no landing is shown
_LOWEST = 400.0  # above this the ball bounces off the ceiling or falls on
_DRAW: Colour = (225, 230, 240)
LEGEND: Legend = (
    *(("■", f"{team} car and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(("●", "ball and its way", PAPER), ("●", "boost pad", BOOST)),
)


@dataclass(frozen=True, eq=False)
class RocketRecording(EpisodeRecording):
    """An episode: its states, options and players.

    Args:
        frames: the states, at least one; see :data:`COLUMNS`.
        options: options of the world.
        players: players of blue and orange.
        title: title of the pictures.
    """

    frames: Frames = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""
    overview_columns, shown = 3, LEGEND

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
        return RocketAnimation(self)

    def overview(self) -> Picture:
        """Draws the end, with trails of cars and ball that brighten with time."""
        return RocketAnimation(self, _TILE).draw(ways=True)

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

    def at(self, clock: float) -> Frames:
        """Returns the match after a number of ticks, interpolated between two states."""
        frames = self.frames
        t, share = find_time(frames.clock, clock)
        now = vars(frames.part(t))
        if share > 0:
            mixed = frames.blend(t, share, _MOVING)
            leaps = np.linalg.norm(frames.position[t + 1] - frames.position[t], axis=-1) > _LEAP
            for name in ("position", "velocity", "spin", "rotation", "boost"):
                mixed[name][leaps] = now[name][leaps]
            now = now | mixed | {"rotation": _orthogonal(mixed["rotation"])}
        return Frames(**now | {"clock": float(now["clock"]), "goal": int(now["goal"])})


def _orthogonal(rotation: Array) -> Array:
    """Returns rotations whose axes are orthogonal again, with the same forward direction."""
    forward, up = (rotation[:, axis] for axis in (0, 2))
    forward = forward / np.maximum(np.linalg.norm(forward, axis=-1, keepdims=True), 1e-6)
    up = up - (up * forward).sum(-1, keepdims=True) * forward
    up = up / np.maximum(np.linalg.norm(up, axis=-1, keepdims=True), 1e-6)
    return np.stack((forward, np.cross(up, forward), up), 1)


class RocketRecorder(EpisodeRecorder[RocketRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        match, controls = self._env.worlds, self._env.controls
        state, cars, ball = match.world, match.world.cars, match.world.ball
        if controls is None:
            controls = cars.boost.new_zeros(8, *cars.boost.shape)
        values = {
            **{"clock": state.clock, "over": state.goal != 0},
            **{"ball_position": ball.position, "ball_velocity": ball.velocity, "ball_spin": ball.spin},
            **{name: getattr(cars, name).transpose(0, 1) for name in ("position", "velocity", "spin")},
            "rotation": cars.rotation.permute(2, 0, 1, 3),
            "boost": cars.boost,
            "boosting": (cars.boosting > 0) & (cars.boost > 0),
            "wheels": cars.wheels.sum(0),
            "gone": torch.where(cars.gone.isinf(), float(ABSENT), cars.gone),
            "controls": controls.transpose(0, 1),
            "touches": match.touches,  # so far
            "pads": state.pads.clamp_min(0.0),
            "goal": state.goal,
        }
        return {name: value.index_select(-1, worlds) for name, value in values.items()}

    def _recording(self, frames: list[Row], title: str) -> RocketRecording:
        columns = {name: np.stack([row[name] for row in frames]) for name in COLUMNS}
        columns["touches"] = np.diff(columns["touches"], axis=0, prepend=columns["touches"][:1]) > 0
        columns["controls"][0] = 0.0  # removes those of the previous episode
        states = Frames(**{name: columns[name].astype(kind) for name, (kind, _) in COLUMNS.items()})
        return RocketRecording(states, dict(self._env.options), title=title)


# -- films -------------------------------------------------------------------------------------------------------------


class RocketAnimation(Animation):
    """The animation of a recording.

    Args:
        recording: recording of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.

    Raises:
        ValueError: the size is too small.

    Attributes:
        per_second: ticks per second.
    """

    per_second = float(rules.TICKS_PER_SECOND)

    def __init__(self, recording: RocketRecording, size: tuple[int, int] = SIZE) -> None:
        self.recording, self.layout, self.size = recording, RocketPictureLayout(size), size
        frames = recording.frames
        self._cars = frames.boost.shape[1]
        self._touches = np.cumsum(frames.touches, 0)
        self._hits = [(float(frames.clock[t]), int(car)) for t, car in zip(*np.nonzero(frames.touches))]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last tick."""
        return float(self.recording.frames.clock[0]), float(self.recording.frames.clock[-1])

    def draw(self, clock: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """Draws the match after ``clock`` ticks, uint8 ``[H, W, 3]``.

        Args:
            clock: ticks since the kick-off; None: the end.
            pause: number of ticks since the end.
            ways: whether to draw all trails from the beginning.
        """
        frames, layout = self.recording.frames, self.layout
        clock = float(frames.clock[-1]) if clock is None else clock
        now = self.recording.at(clock)
        picture = background(layout).copy()
        top, side = layout.canvases(picture)
        draw_pads(top, now)
        if ways:
            self._draw_ways(top, side, clock)
        draw_shadows(top, now)
        path, landing = self._flight(now)
        times = np.linspace(max(self.span[0], clock - _TRAIL_TICKS), clock, _TRAIL_POINTS, endpoint=False)
        trail = np.stack([self.recording.at(time).ball_position for time in times])
        for canvas, from_side in ((top, False), (side, True)):
            draw_flight(canvas, path, landing, from_side)
            draw_ball(canvas, now, trail, from_side, self._ring(clock))
            draw_cars(canvas, now, from_side)
        draw_numbers(picture, layout, now)
        for begun, at, reach, colour in self._bursts:
            share = (clock + pause - begun) / _BURST_TICKS
            if 0 <= share < 1:
                top.burst(above(at), reach, share, colour, 14, 60.0)
                side.burst(beside(at), 0.6 * reach, share, colour, 14, 60.0)
        goals = self.recording.goals if clock >= float(frames.clock[-1]) else (0, 0)
        t = int(np.searchsorted(frames.clock, clock, side="right")) - 1
        draw_panels(picture, layout, now, self.recording.players, goals, self._touches[max(t, 0)].tolist())
        draw_clock(picture, layout, now, self.recording.title)
        if pause > 0.3 * _BURST_TICKS:
            ends = zip(goals, ("BLUE SCORES", "ORANGE SCORES"), TEAM_COLOURS)
            text, colour = next(((text, colour) for goal, text, colour in ends if goal), ("NO GOAL", _DRAW))
            width = 2 * 5120 * layout.scale
            banner(picture, text, layout.above, width, 92 * layout.unit, layout.points(52), colour)
        return picture

    def _draw_ways(self, top: Canvas, side: Canvas, clock: float) -> None:
        frames = self.recording.frames
        until = frames.part(slice(0, int(np.searchsorted(frames.clock, clock, side="right"))))
        every = max(1, len(until) // _WAY_POINTS)
        for car in range(self._cars):
            if frames.gone[0, car] == 0:
                top.way(above(until.position[::every, car]), 34.0, team_colour(car, self._cars), _LEAP)
        for canvas, project in ((top, above), (side, beside)):
            canvas.way(project(until.ball_position[::every]), 34.0, PAPER, _LEAP)

    @cached_property
    def _bursts(self) -> list[tuple[float, Array, float, Colour]]:
        """Returns explosions of demolished cars and the goal: time, place, reach in uu and colour."""
        frames, goals = self.recording.frames, self.recording.goals
        begun = (frames.gone[1:] > 0) & (frames.gone[:-1] == 0)
        bursts = [
            (float(frames.clock[t + 1]), frames.position[t, car], 420.0, team_colour(car, self._cars))
            for t, car in zip(*np.nonzero(begun))
        ]
        last = (float(frames.clock[-1]), frames.ball_position[-1], 1500.0)
        return bursts + [(*last, colour) for goal, colour in zip(goals, TEAM_COLOURS) if goal]

    def _ring(self, clock: float) -> Colour | None:
        """Returns the colour of the ring around the ball shortly after a touch: that of the car's team."""
        for when, car in reversed(self._hits):
            if when <= clock:
                return team_colour(car, self._cars) if clock - when <= _RING_TICKS else None
        return None

    @cached_property
    def _paths(self) -> Array:
        """Forecasts ``[T, 60, 3]`` from every state; see :mod:`rlstack.envs.rocket.prediction`."""
        frames = self.recording.frames
        rows = [frames.ball_position, frames.ball_velocity, frames.ball_spin]
        ball = Ball(*(torch.from_numpy(np.ascontiguousarray(row.T)) for row in rows))
        paths: Array = forecast(ball).path.permute(2, 1, 0).contiguous().numpy()
        return paths

    def _flight(self, now: Frames) -> tuple[Array, Array | None]:
        """Returns the path of a flying ball up to its landing, and where it lands; empty for one on the ground."""
        climb = float(now.ball_velocity[2])
        if (now.ball_position[2] < _LOW and abs(climb) < 300) or now.goal:
            return np.zeros((0, 3)), None
        frames = self.recording.frames
        t, _ = find_time(frames.clock, now.clock)
        path = np.concatenate((frames.ball_position[t][None], self._paths[t]))
        falls = np.diff(path[:, 2]) < 0
        bounces = np.flatnonzero(falls[:-1] & ~falls[1:] & (path[1:-1, 2] < _LOWEST)) + 1
        if not len(bounces):
            return path[2::2], None
        last = max(int(bounces[0]) - 1, 1)  # the lowest point may already be after the bounce
        fall = path[last] - path[last - 1]
        share = (rules.BALL_REST - path[last, 2]) / min(fall[2], -1.0)
        place: Array = path[last] + np.clip(share, 0.0, 2.0) * fall
        place[2] = rules.BALL_REST
        return path[2 : last + 1 : 2], place if abs(place[1]) < rules.HALF_LENGTH else None  # None in a goal


# -- files -------------------------------------------------------------------------------------------------------------


def load_replay(path: str | Path) -> RocketRecording:
    """Reads a file of :meth:`RocketRecording.save_replay`.

    A file is a ``.npz`` without pickles: every entry of :data:`COLUMNS` under its name, ``[T, ...]``, and ``meta``, a
    JSON text: ``format`` (``rlstack-replay``), ``version`` (1), ``world`` (``rocket``), ``players`` (who drove blue and
    orange), ``goals`` (of both), ``options`` (of the world), ``title``.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its arrays do not fit each other.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            entries = {name: np.asarray(archive[name]) for name in archive.files if name in (_META, *COLUMNS)}
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged, or no .npz"
        raise ValueError(f"{path}: cannot be read as a replay ({reason})") from None
    try:
        meta = json.loads(str(entries.pop(_META)[()]))
    except (ValueError, KeyError, IndexError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or (meta.get("format"), meta.get("world")) != (FORMAT, WORLD):
        raise ValueError(f"{path}: not a replay of {WORLD} (no such entry {_META!r})")
    if meta.get("version") != VERSION:
        raise ValueError(f"{path}: version {meta.get('version')!r}, this program reads version {VERSION}")
    if missing := [name for name in COLUMNS if name not in entries]:
        raise ValueError(f"{path}: not a whole replay, {missing[0]!r} is missing")
    _check_columns(entries, path)
    players, options = meta.get("players"), meta.get("options")
    if not isinstance(players, list) or len(players) != 2 or not all(isinstance(name, str) for name in players):
        raise ValueError(f"{path}: players {players!r} are not two names")
    frames = Frames(**{name: entries[name] for name in COLUMNS})
    named = (players[0], players[1])
    return RocketRecording(frames, options if isinstance(options, dict) else {}, named, str(meta.get("title", "")))


def _check_columns(entries: Mapping[str, Array], path: str | Path) -> None:
    clock, boost = entries["clock"], entries["boost"]
    count, cars = len(clock) if clock.ndim == 1 else 0, boost.shape[1] if boost.ndim == 2 else 0
    if not count or cars not in (2, 4, 6):
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
