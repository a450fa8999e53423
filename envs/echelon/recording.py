"""Recordings of episodes of Echelon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..foundation.files import write_text
from ..recording import EpisodeRecorder, EpisodeRecording, Frames, Row
from ..rendering.canvas import Legend, Picture
from ..rendering.films import Animation
from . import player
from .drawing import FAINT, HEAT, PAPER, TEAM_COLOURS, EchelonAnimation
from .events import Event, EventFinder, Flight, unfold
from .match import EchelonOptions, ends
from .replay import COLUMNS, MatchRecord, Mech, RecordedMap, Replay, as_json, read_replay
from .rewards import hold
from .rules import SUB_STEPS, TEAMS
from .state import State
from .tables import Tables

Array = NDArray[Any]

TILE = (960, 540)
"""Width and height of overviews in pixels."""
LEGEND: Legend = (
    *(("■", f"{team} mech and its way", colour) for team, colour in zip(TEAMS, TEAM_COLOURS)),
    *(("○", "zone", PAPER), ("✕", "wreck", FAINT)),
    *(("▬", "hit points, above heat", (110, 230, 120)), ("▬", "heat", HEAT)),
)


@dataclass(frozen=True, eq=False)
class EchelonRecording(EpisodeRecording):
    """One episode.

    Args:
        source: function that makes the record, called once on first use.
        options: options of the world.
        players: players of blue and red.
        title: title of the pictures.
    """

    overview_columns, has_page, shown = 2, True, LEGEND

    source: Callable[[], MatchRecord] = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    players: tuple[str, str] = TEAMS
    title: str = ""

    @cached_property
    def record(self) -> MatchRecord:
        """The episode, computed on first use."""
        return self.source()

    @property
    def frames(self) -> Frames:
        """The states."""
        return self.record.frames

    @property
    def replay(self) -> Replay:
        """The content of its file."""
        return Replay(self.record, self.options, self.players, self.title)

    def named(self, players: tuple[str, str], title: str = "") -> EchelonRecording:
        """Returns the same recording with other names."""
        return replace(self, players=players, title=title)

    def animation(self) -> Animation:
        """Returns an animation with sub-steps as time."""
        return EchelonAnimation(self.replay)

    def overview(self) -> Picture:
        """Draws the end, with trails of all mechs that brighten with time."""
        return EchelonAnimation(self.replay, TILE).draw(ways=True)

    def save_replay(self, path: str | Path) -> None:
        """Writes a file atomically; makes missing folders. See :mod:`rlstack.envs.echelon.replay`.

        Raises:
            ValueError: the suffix is not ``.json``.
        """
        path = Path(path)
        if path.suffix != ".json":
            raise ValueError(f"cannot write {path.name}: the ending of a replay is .json")
        write_text(path, as_json(self.replay))

    def save_page(self, path: str | Path) -> None:
        """See :mod:`rlstack.envs.echelon.player`."""
        player.save_page(self.replay, path)


def load_replay(path: str | Path) -> EchelonRecording:
    """Reads a file of :meth:`EchelonRecording.save_replay`.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its parts do not fit each other.
    """
    replay = read_replay(path)
    return EchelonRecording(lambda: replay.record, replay.options, replay.players, replay.title)


# -- the recorder --------------------------------------------------------------------------------------------------


class EchelonRecorder(EpisodeRecorder[EchelonRecording]):
    """Records some worlds of an env, one episode of each."""

    def _state(self, worlds: Tensor) -> Mapping[str, Tensor]:
        match, orders = self._env.worlds, self._env.orders
        values = {"kills": match.events[0], "damage": match.damage, "winner": match.winner}
        if orders is not None:
            values["orders"] = orders  # [teams, 10, n, W] that led here
        state = match.state.map(lambda value: value.index_select(-1, worlds))
        state = state.replace(memory=state.memory[:0])  # the mechs' memory does not influence recorded values
        terminated, truncated, _ = ends(state, self._env.match_options)
        picked = {name: value.index_select(-1, worlds) for name, value in values.items()}
        return {**dict(state.items()), **picked, "clock": state.steps, "over": terminated | truncated}

    def _recording(self, frames: list[Row], title: str) -> EchelonRecording:
        source = cache(partial(_match_record, frames, self._env.tables, self._env.match_options))
        return EchelonRecording(source, dict(self._env.options), title=title)


@torch.no_grad()
def _match_record(rows: list[Row], tables: Tables, options: EchelonOptions) -> MatchRecord:
    """Makes the record of a match from the recorder's states."""

    def column(name: str) -> Tensor:
        """Returns ``[..., T]``; orders of the first state are missing if it is the first of the env."""
        values = [row.get(name, rows[-1][name]) for row in rows]
        return torch.from_numpy(np.stack(values, -1)).to(tables.present.device)

    state = State(**{entry.name: column(entry.name) for entry in fields(State)})
    mechs = tuple(Mech(team, slot) for team, slot in np.argwhere(tables.present[..., 0].cpu().numpy() > 0).tolist())
    first, side = int(state.base[0]), tables.side
    layers = (tables.maps.height, tables.maps.kind)
    height, kind = (layer[first : first + side**2].view(side, side).cpu().numpy().copy() for layer in layers)
    x, y, radius = (float(value) for value in state.zone[:, 0].float())
    ground = RecordedMap(height, kind, (x, y, radius), first // side**2)
    events: list[Event] = []
    flights: list[Flight] = []
    if len(rows) > 1 and "orders" in rows[-1]:
        report = EventFinder(unfold(state, column("orders"), tables, options), ground.height)
        events, flights = report.events, report.flights
    held = hold(state, tables)
    places = torch.tensor([mech.team * tables.mechs + mech.slot for mech in mechs])

    def of_mechs(value: Tensor, dim: int = 0) -> Array:
        """Returns ``[T, M, ...]`` from ``[..., 2, n, T]``, with the teams in dimension ``dim``."""
        picked = value.cpu().flatten(dim, dim + 1).index_select(dim, places)
        return picked.movedim(-1, 0).movedim(dim + 1, 1).numpy()

    # Chosen slots as places among the mechs; -1 for missing ones.
    numbers, slots = {(mech.team, mech.slot): index for index, mech in enumerate(mechs)}, of_mechs(state.focus)
    target = [[numbers.get((1 - mech.team, int(slot)), -1) for mech, slot in zip(mechs, row)] for row in slots]
    values = {
        "tick": (state.steps * SUB_STEPS).round().cpu().numpy(),
        "score": state.score.T.cpu().numpy(),
        "control": held.control[0].cpu().numpy(),
        "position": of_mechs(state.position, 1),
        "velocity": of_mechs(state.velocity, 1),
        "clocks": of_mechs(state.clocks.transpose(0, 1), 1),
        "target": np.array(target),
        "inside": of_mechs(held.inside),
        **{name: of_mechs(column(name)) for name in ("kills", "damage")},
        **{
            name: of_mechs(getattr(state, name))
            for name in ("yaw", "hp", "legs", "heat", "stability", "quality", "jam", "ewar")
        },
    }
    clouds = state.clouds.flatten(1, -2).permute(2, 1, 0).cpu().numpy().astype(np.float32)
    return MatchRecord(
        ground,
        mechs,
        Frames(**{name: values[name].astype(kind) for name, (kind, _) in COLUMNS.items()}),
        tuple(row[row[:, 3] > 0] for row in clouds),
        tuple(events),
        tuple(flights),
        int(rows[-1]["winner"]),
        options.to_win,
    )
