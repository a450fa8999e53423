"""What happened in an episode of Echelon: states of single matches, collected while the worlds step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..recording import EpisodeRecorder
from .events import Reporter
from .match import MatchOptions, ends
from .rules import SUB_STEPS
from .state import State
from .story import COLUMNS, Event, Flight, Frames, Ground, Mech, Recording, Story
from .tables import Tables
from .unfolding import unfold
from .zone import hold

Array = NDArray[Any]


class _Snapshot(NamedTuple):
    """Some worlds at one time."""

    state: State
    orders: Tensor | None  # [teams, 10, n, k] that led here
    kills: Tensor  # [2, n, k]
    damage: Tensor
    winner: Tensor  # [k]
    over: Tensor  # [k] bool


_Frame = tuple[_Snapshot, int]
"""Worlds at one time, and which of them is meant."""


@dataclass(eq=False)
class _Take:
    """The frames of one world."""

    tables: Tables
    options: MatchOptions
    rows: list[_Frame]

    @cached_property
    def story(self) -> Story:
        with torch.no_grad():
            return self._told()

    def _column(self, pick: Callable[[_Snapshot], Tensor]) -> Tensor:
        return torch.stack([pick(row)[..., place] for row, place in self.rows], -1)

    def _told(self) -> Story:
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
            report = Reporter(unfold(state, orders, tables, self.options), ground.height)
            events, flights = report.events, report.flights
        frames = self._frames(state, mechs)
        smoke = tuple(_clouds(state.clouds[..., t]) for t in range(len(frames)))
        winner = int(self.rows[-1][0].winner[self.rows[-1][1]])
        return Story(ground, mechs, frames, smoke, tuple(events), tuple(flights), winner, self.options.to_win)

    def _frames(self, state: State, mechs: Sequence[Mech]) -> Frames:
        held = hold(state, self.tables)
        places = torch.tensor([mech.team * self.tables.mechs + mech.slot for mech in mechs])

        def rows(value: Tensor, dim: int = 0) -> Array:
            """``[T, M]`` of ``[2, n, T]``."""
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
        return Frames(**{name: values[name].astype(kind) for name, (kind, _) in COLUMNS.items()})


def _ground(state: State, tables: Tables) -> Ground:
    first = int(state.base[0])
    side = tables.side
    layers = (tables.maps.height, tables.maps.kind)
    height, kind = (layer[first : first + side**2].view(side, side).cpu().numpy().copy() for layer in layers)
    x, y, radius = (float(value) for value in state.zone[:, 0].float())
    return Ground(height, kind, (x, y, radius), first // side**2)


def _targets(slots: Array, mechs: Sequence[Mech]) -> Array:
    """Chosen slots ``[T, M]`` as places among the mechs; -1 for those that are not there."""
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


class Recorder(EpisodeRecorder[_Frame, Recording]):
    """Collects recordings of some worlds of an env, one episode of each."""

    def _look(self, places: list[int]) -> list[_Frame]:
        match, worlds, orders = self._env.worlds, self._worlds[places], self._env.orders
        some = match.state.map(lambda value: value.index_select(-1, worlds))
        # What mechs remember decides nothing that is recorded.
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

    def _recording(self, frames: list[_Frame], title: str) -> Recording:
        take = _Take(self._env.tables, self._env.match_options, frames)
        return Recording(lambda: take.story, dict(self._env.options), title=title)
