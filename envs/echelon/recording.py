"""Recordings of episodes of Echelon: map, mechs, states and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..recording import EpisodeRecorder, EpisodeRecording
from . import rules
from .events import Event, EventFinder, Flight, mech_id, unfold
from .match import EchelonOptions, ends
from .rewards import hold
from .rules import SLOTS, SUB_STEPS, TEAMS, Chassis
from .state import State
from .tables import Tables

if TYPE_CHECKING:
    from ..rendering.canvas import Legend, Picture
    from ..rendering.films import Animation

Array = NDArray[Any]


COLUMNS: Mapping[str, tuple[str, tuple[int | str, ...]]] = {
    "tick": ("int32", ()),
    "score": ("float32", (2,)),
    "control": ("float32", ()),
    **dict.fromkeys(("position", "velocity"), ("float32", ("M", 3))),
    **dict.fromkeys(("yaw", "hp", "legs", "heat", "stability"), ("float32", ("M",))),
    **dict.fromkeys(("quality", "jam", "damage"), ("float32", ("M",))),
    "clocks": ("int16", ("M", rules.CLOCKS)),
    **dict.fromkeys(("ewar", "target", "kills"), ("int16", ("M",))),
    "inside": ("bool", ("M",)),
}
"""Type of each column of :class:`EchelonFrames`, and its shape after T, ``"M"`` for the number of mechs."""


@dataclass(frozen=True, eq=False)
class EchelonFrames:
    """T states of a match, ``[T, ...]`` each; mechs are in the order of :attr:`MatchRecord.mechs`."""

    tick: Array  # sub-steps of 0.05 s since the start
    score: Array  # of blue and red, s
    control: Array  # of the zone, 1: blue's, -1: red's
    position: Array  # of the feet, voxels
    velocity: Array  # voxels/s
    yaw: Array  # rad, 0 along x, counter-clockwise
    hp: Array  # 0 or less: dead
    legs: Array
    heat: Array
    stability: Array
    quality: Array  # of sensors
    jam: Array  # 0 to 1
    damage: Array  # hp taken from enemies so far
    clocks: Array  # sub-steps left, in the order of rules.LASER to rules.FALLEN
    ewar: Array  # 0 off, 1 ECM, 2 ECCM
    target: Array  # place of the chosen target among the mechs, -1: none
    kills: Array  # so far
    inside: Array  # the zone

    def __len__(self) -> int:
        return len(self.tick)

    def part(self, which: slice) -> EchelonFrames:
        """Returns a part of the states."""
        return EchelonFrames(**{name: value[which] for name, value in vars(self).items()})


class Mech(NamedTuple):
    """A mech of the match."""

    team: int  # 0 blue, 1 red
    slot: int

    @property
    def name(self) -> str:
        """Id, such as ``red_3``."""
        return mech_id(self.team, self.slot)

    @property
    def kind(self) -> str:
        """Name of the class."""
        return rules.CLASSES[rules.PACK_CLASSES[self.slot % SLOTS]]

    @property
    def chassis(self) -> Chassis:
        """Numbers of the class."""
        return rules.PACK[self.slot % SLOTS]


@dataclass(frozen=True, eq=False)
class RecordedMap:
    """A map: heights and kinds of its cells, ``[side, side]`` uint8, row y; the zone's centre and radius."""

    height: Array
    kind: Array
    zone: tuple[float, float, float]
    number: int = 0  # in its bank

    @property
    def side(self) -> int:
        """Number of voxels along its side."""
        return len(self.height)


@dataclass(frozen=True, eq=False)
class MatchRecord:
    """A whole episode.

    Attributes:
        smoke: clouds at each of the T times, ``[k, 4]``: centre, sub-steps left.
        winner: 1 blue, -1 red, 0 draw or undecided.
        to_win: score that wins, s.
    """

    ground: RecordedMap
    mechs: tuple[Mech, ...]
    frames: EchelonFrames
    smoke: tuple[Array, ...]
    events: tuple[Event, ...]
    flights: tuple[Flight, ...]
    winner: int
    to_win: float


@dataclass(frozen=True, eq=False)
class EchelonRecording(EpisodeRecording):
    """One episode.

    Args:
        source: function that makes the record, called once on first use.
        options: options of the world.
        players: players of blue and red.
        title: title of the pictures.
    """

    overview_columns = 2
    has_page = True

    source: Callable[[], MatchRecord] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""

    @cached_property
    def record(self) -> MatchRecord:
        """The episode, computed on first use."""
        return self.source()

    @property
    def frames(self) -> EchelonFrames:
        """The states."""
        return self.record.frames

    @property
    def seconds(self) -> float:
        """Duration in s."""
        tick = self.frames.tick
        return float(tick[-1] - tick[0]) * rules.DT

    def named(self, players: tuple[str, str], title: str = "") -> EchelonRecording:
        """Returns the same recording with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Returns an animation with sub-steps as time."""
        from .render import EchelonAnimation

        return EchelonAnimation(self)

    def legend(self) -> Legend:
        """Returns the legend of its pictures."""
        from .render import LEGEND

        return LEGEND

    def overview(self) -> Picture:
        """Draws the end, with trails of all mechs that brighten with time."""
        from .render import TILE, EchelonAnimation

        return EchelonAnimation(self, TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """See :mod:`rlstack.envs.echelon.replay`."""
        from .replay import save_replay

        save_replay(self, path)

    def save_page(self, path: str | Path) -> None:
        """See :mod:`rlstack.envs.echelon.player`."""
        from .player import save_page

        save_page(self, path)


# -- a match at any time -------------------------------------------------------------------------------------------


_MOVING = ("position", "velocity", "heat", "stability", "score", "control")


@dataclass(frozen=True, eq=False)
class Moment:
    """A match at a time in sub-steps; mechs ``[M, ...]`` are as in :class:`EchelonFrames`."""

    record: MatchRecord
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
        """Centre and radius of the zone."""
        return self.record.ground.zone

    @property
    def held(self) -> tuple[bool, bool]:
        """Flags: blue, and red, have a mech in the zone."""
        teams = np.array([mech.team for mech in self.record.mechs])
        return bool(self.inside[teams == 0].any()), bool(self.inside[teams == 1].any())

    def alive(self, place: int) -> bool:
        """Returns whether a mech lives."""
        return bool(self.hp[place] > 0)

    def ground_at(self, x: float, y: float) -> float:
        """Height of the ground."""
        column, row = (int(np.clip(value, 0, self.record.ground.side - 1)) for value in (x, y))
        return float(self.record.ground.height[row, column])


def moment(record: MatchRecord, tick: float) -> Moment:
    """Returns the match after a number of sub-steps, limited to its first and last state."""
    frames = record.frames
    t = int(np.clip(np.searchsorted(frames.tick, tick, side="right") - 1, 0, len(frames) - 1))
    span = float(frames.tick[t + 1] - frames.tick[t]) if t + 1 < len(frames) else 0.0
    share = float(np.clip((tick - float(frames.tick[t])) / span, 0, 1)) if span > 0 else 0.0
    now = {name: value[t] for name, value in vars(frames).items() if name not in ("tick", "quality", "jam")}
    if share > 0:
        now |= _between(frames, t, share)
    return Moment(record, tick, t, **now | {"control": float(now["control"])})


def _between(frames: EchelonFrames, t: int, share: float) -> dict[str, Array]:
    mixed: dict[str, Array] = {}
    for name in _MOVING:
        rows = getattr(frames, name)
        mixed[name] = rows[t] + np.float32(share) * (rows[t + 1] - rows[t])
    turn = np.remainder(frames.yaw[t + 1] - frames.yaw[t] + np.pi, 2 * np.pi) - np.pi
    mixed["yaw"] = frames.yaw[t] + share * turn
    return mixed


def deaths(record: MatchRecord) -> dict[int, int]:
    """Returns the sub-step of each death by the mech's place."""
    places = {mech.name: place for place, mech in enumerate(record.mechs)}
    return {places[e.details["target"]]: e.tick for e in record.events if e.type == "kill"}


# -- the recorder --------------------------------------------------------------------------------------------------


class _Snapshot(NamedTuple):
    """Recorded worlds at one time."""

    state: State
    orders: Tensor | None  # [teams, 10, n, k] that led here
    kills: Tensor  # [2, n, k]
    damage: Tensor
    winner: Tensor  # [k]
    over: Tensor  # [k] bool


_Frame = tuple[_Snapshot, int]
"""Worlds at one time, and the index of one of them."""


@dataclass(eq=False)
class _Take:
    """The snapshots of one world, from which the record is made."""

    tables: Tables
    options: EchelonOptions
    rows: list[_Frame]

    @cached_property
    def record(self) -> MatchRecord:
        with torch.no_grad():
            return self._told()

    def _column(self, pick: Callable[[_Snapshot], Tensor]) -> Tensor:
        return torch.stack([pick(row)[..., place] for row, place in self.rows], -1)

    def _told(self) -> MatchRecord:
        tables = self.tables
        names = [name for name, _ in self.rows[0][0].state.items()]
        state = State(**{name: self._column(lambda row, name=name: getattr(row.state, name)) for name in names})  # type: ignore[misc]
        here = np.argwhere(tables.present[..., 0].cpu().numpy() > 0).tolist()
        mechs = tuple(Mech(*place) for place in here)
        ground = _ground(state, tables)
        first = next((row.orders for row, _ in self.rows[1:] if row.orders is not None), None)
        events: list[Event] = []
        flights: list[Flight] = []
        if first is not None:
            none = torch.zeros_like(first)
            orders = self._column(lambda row: none if row.orders is None else row.orders)
            report = EventFinder(unfold(state, orders, tables, self.options), ground.height)
            events, flights = report.events, report.flights
        frames = self._frames(state, mechs)
        smoke = tuple(_clouds(state.clouds[..., t]) for t in range(len(frames)))
        winner = int(self.rows[-1][0].winner[self.rows[-1][1]])
        return MatchRecord(ground, mechs, frames, smoke, tuple(events), tuple(flights), winner, self.options.to_win)

    def _frames(self, state: State, mechs: Sequence[Mech]) -> EchelonFrames:
        held = hold(state, self.tables)
        places = torch.tensor([mech.team * self.tables.mechs + mech.slot for mech in mechs])

        def rows(value: Tensor, dim: int = 0) -> Array:
            """Returns ``[T, M]`` from ``[2, n, T]``."""
            picked = value.cpu().flatten(dim, dim + 1).index_select(dim, places)
            found: Array = picked.movedim(-1, 0).movedim(dim + 1, 1).numpy()
            return found

        values = {
            "tick": (state.steps * SUB_STEPS).round().cpu().numpy(),
            "score": state.score.T.cpu().numpy(),
            "control": held.control[0].cpu().numpy(),
            "position": rows(state.position, 1),
            "velocity": rows(state.velocity, 1),
            "clocks": rows(state.clocks.transpose(0, 1), 1),
            "target": _targets(rows(state.focus), mechs),
            "kills": rows(self._column(lambda row: row.kills)),
            "damage": rows(self._column(lambda row: row.damage)),
            "inside": rows(held.inside),
            **{
                name: rows(getattr(state, name))
                for name in ("yaw", "hp", "legs", "heat", "stability", "quality", "jam", "ewar")
            },
        }
        return EchelonFrames(**{name: values[name].astype(kind) for name, (kind, _) in COLUMNS.items()})


def _ground(state: State, tables: Tables) -> RecordedMap:
    first = int(state.base[0])
    side = tables.side
    layers = (tables.maps.height, tables.maps.kind)
    height, kind = (layer[first : first + side**2].view(side, side).cpu().numpy().copy() for layer in layers)
    x, y, radius = (float(value) for value in state.zone[:, 0].float())
    return RecordedMap(height, kind, (x, y, radius), first // side**2)


def _targets(slots: Array, mechs: Sequence[Mech]) -> Array:
    """Converts chosen slots ``[T, M]`` to places among the mechs; -1 for missing ones."""
    place = {(mech.team, mech.slot): index for index, mech in enumerate(mechs)}
    found = np.full(slots.shape, -1)
    for index, mech in enumerate(mechs):
        for slot in np.unique(slots[:, index]):
            found[slots[:, index] == slot, index] = place.get((1 - mech.team, int(slot)), -1)
    return found


def _clouds(clouds: Tensor) -> Array:
    rows = clouds.flatten(1).T.cpu().numpy().astype(np.float32)
    found: Array = rows[rows[:, 3] > 0]
    return found


class EchelonRecorder(EpisodeRecorder[_Frame, EchelonRecording]):
    """Records some worlds of an env, one episode of each."""

    def _look(self, places: list[int]) -> list[_Frame]:
        match, worlds, orders = self._env.worlds, self._worlds[places], self._env.orders
        some = match.state.map(lambda value: value.index_select(-1, worlds))
        # The mechs' memory does not influence recorded values.
        some = some.replace(memory=some.memory[:0])
        terminated, truncated, _ = ends(some, self._env.match_options)
        now = _Snapshot(
            some,
            None if orders is None else orders.index_select(-1, worlds),
            match.events[0].index_select(-1, worlds),
            match.damage.index_select(-1, worlds),
            match.winner.index_select(-1, worlds),
            terminated | truncated,
        )
        return [(now, row) for row in range(len(places))]

    def _time(self, frame: _Frame) -> float:
        now, row = frame
        return float(now.state.steps[row])

    def _is_over(self, frame: _Frame) -> bool:
        now, row = frame
        return bool(now.over[row])

    def _recording(self, frames: list[_Frame], title: str) -> EchelonRecording:
        take = _Take(self._env.tables, self._env.match_options, frames)
        return EchelonRecording(lambda: take.record, dict(self._env.options), title=title)
