"""Recordings of episodes of Echelon, and their films."""

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
from ..rendering.canvas import Canvas, Colour, Legend, Picture, banner, write
from ..rendering.films import Animation
from . import drawing, player, rules
from .drawing import FAINT, HEAT, PAPER, TEAM_COLOURS, EchelonLayout
from .events import Event, EventFinder, Flight, unfold
from .match import EchelonOptions, ends
from .replay import COLUMNS, MatchRecord, Mech, RecordedMap, Replay, as_json, moment, read_replay
from .rewards import hold
from .rules import SUB_STEPS, TEAMS
from .state import State
from .tables import Tables

Array = NDArray[Any]

SIZE, TILE = (1280, 720), (960, 540)
"""Width and height of pictures, and of overviews, in pixels."""
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
        return EchelonAnimation(self)

    def overview(self) -> Picture:
        """Draws the end, with trails of all mechs that brighten with time."""
        return EchelonAnimation(self, TILE).draw(ways=True)

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

    values = {
        "tick": (state.steps * SUB_STEPS).round().cpu().numpy(),
        "score": state.score.T.cpu().numpy(),
        "control": held.control[0].cpu().numpy(),
        "position": of_mechs(state.position, 1),
        "velocity": of_mechs(state.velocity, 1),
        "clocks": of_mechs(state.clocks.transpose(0, 1), 1),
        "target": _targets(of_mechs(state.focus), mechs),
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


def _targets(slots: Array, mechs: tuple[Mech, ...]) -> Array:
    """Converts chosen slots ``[T, M]`` to places among the mechs; -1 for missing ones."""
    place = {(mech.team, mech.slot): index for index, mech in enumerate(mechs)}
    found = np.full(slots.shape, -1)
    for index, mech in enumerate(mechs):
        for slot in np.unique(slots[:, index]):
            found[slots[:, index] == slot, index] = place.get((1 - mech.team, int(slot)), -1)
    return found


# -- films -------------------------------------------------------------------------------------------------------------


_LASTS = {
    **{"laser_hit": 4.0, "flamer_hit": 3.0, "paint": 6.0, "ams_intercept": 6.0},
    **{"explosion": 9.0, "projectile_hit": 0.6 * 9.0, "kill": 18.0},
}
"""Number of sub-steps for which an event is visible; other events are not drawn."""
_TRAILS = {"missile": 9.0, "gauss": 2.5, "autocannon": 1.5, "smoke": 1.0}  # ticks of its way that a shot shows
_WAY_POINTS = 120
_END_TICKS = 10.0


class EchelonAnimation(Animation):
    """Animation of a recording.

    Args:
        recording: recording of one episode.
        size: width and height of the pictures in pixels, at least 640 by 360.
        earlier: an animation of an earlier part of the episode, whose map is reused.

    Raises:
        ValueError: the size is too small.

    Attributes:
        per_second: sub-steps per second.
    """

    per_second, fps = 1.0 / rules.DT, 20.0

    def __init__(
        self, recording: EchelonRecording, size: tuple[int, int] = SIZE, earlier: EchelonAnimation | None = None
    ) -> None:
        self.recording, self.record, self.size = recording, recording.record, size
        self.layout = EchelonLayout(size, self.record.ground.side)
        self._empty: Picture = earlier._empty if earlier else drawing.background(self.layout, self.record.ground)
        self._places = {mech.name: place for place, mech in enumerate(self.record.mechs)}
        self._deaths = {self._places[e.details["target"]]: e.tick for e in self.record.events if e.type == "kill"}
        self._lasting = [(event, _LASTS[event.type]) for event in self.record.events if event.type in _LASTS]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last sub-step."""
        return float(self.record.frames.tick[0]), float(self.record.frames.tick[-1])

    def longer(self, recording: EchelonRecording) -> EchelonAnimation:
        """Returns the animation of a longer part of the same episode."""
        return EchelonAnimation(recording, self.layout.size, self)

    def draw(self, tick: float | None = None, pause: float = 0.0, ways: bool = False) -> Picture:
        """Draws the match after ``tick`` sub-steps of 0.05 s, uint8 ``[H, W, 3]``.

        Args:
            tick: number of sub-steps; None: the end.
            pause: number of sub-steps since the end.
            ways: whether to draw the trails of all mechs from the beginning.
        """
        tick = float(self.record.frames.tick[-1]) if tick is None else tick
        now = moment(self.record, tick)
        picture: Picture = self._empty.copy()
        canvas = self.layout.canvas(picture)
        drawing.draw_zone(canvas, now)
        if ways:
            self._draw_ways(canvas, tick)
        self._draw_mechs(canvas, now, tick)
        self._draw_flights(canvas, tick)
        self._draw_events(canvas, tick + pause)
        for cloud in self.record.smoke[now.frame]:
            drawing.draw_cloud(canvas, cloud, float(cloud[3]) - (tick - float(self.record.frames.tick[now.frame])))
        self._write_names(picture, now)
        self._clear_margins(picture)
        drawing.draw_panels(picture, self.layout, now, self.recording.players)
        drawing.draw_head(picture, self.layout, now, self.recording.title)
        if pause > _END_TICKS:
            self._draw_end(picture, now.record.winner)
        return picture

    def _draw_end(self, picture: Picture, winner: int) -> None:
        layout, team = self.layout, int(winner < 0)
        text, colour = (f"{TEAMS[team].upper()} WINS", TEAM_COLOURS[team]) if winner else ("DRAW", PAPER)
        width, (left, bottom) = layout.side * layout.scale, layout.corner
        middle = left + width / 2, bottom - width / 2
        banner(picture, text, middle, width, 88 * layout.unit, layout.points(50), colour)

    def _clear_margins(self, picture: Picture) -> None:
        """Clips glows and projectiles at the edge of the map."""
        (left, bottom), side = self.layout.corner, self.layout.side * self.layout.scale
        rows = slice(max(round(bottom - side) - 2, 0), round(bottom) + 2)
        part = rows, slice(max(round(left) - 2, 0), round(left + side) + 2)
        inside = picture[part].copy()
        picture[:] = self._empty
        picture[part] = inside

    def _draw_ways(self, canvas: Canvas, tick: float) -> None:
        frames = self.record.frames
        until = int(np.searchsorted(frames.tick, tick, side="right"))
        every = max(1, until // _WAY_POINTS)
        for place, mech in enumerate(self.record.mechs):
            gone = self._deaths.get(place)
            last = until if gone is None else min(until, int(np.searchsorted(frames.tick, gone)) + 1)
            canvas.way(drawing.flat(frames.position[:last:every, place]), 0.3, TEAM_COLOURS[mech.team])

    def _draw_mechs(self, canvas: Canvas, now: Frames, tick: float) -> None:
        living = []
        for place, mech in enumerate(self.record.mechs):
            if self._lives(now, place, tick):
                living.append(place)
            else:
                drawing.draw_wreck(canvas, mech, now.position[place])
        for place in living:
            target = int(now.target[place])
            if target >= 0 and self._lives(now, target, tick):
                drawing.draw_aim(canvas, self.record.mechs[place], now.position[place], now.position[target])
        for place in sorted(living, key=lambda place: float(now.position[place, 2])):
            drawing.draw_mech(canvas, self.record.mechs[place], now, place)
        for place in living:
            drawing.draw_bars(canvas, self.record.mechs[place], now, place)

    def _lives(self, now: Frames, place: int, tick: float) -> bool:
        return now.hp[place] > 0 and tick < self._deaths.get(place, np.inf)

    def _draw_flights(self, canvas: Canvas, tick: float) -> None:
        for flight in self.record.flights:
            if flight.ticks[0] <= tick <= flight.ticks[-1] and len(flight.ticks) > 1:
                first = max(tick - _TRAILS[flight.weapon], float(flight.ticks[0]))
                times = np.linspace(first, tick, 6 if flight.weapon == "missile" else 2)
                drawing.draw_flight(canvas, flight.weapon, _way(flight, times), _team(flight.owner))

    def _draw_events(self, canvas: Canvas, tick: float) -> None:
        for event, ticks in self._lasting:
            # An event belongs to the sub-step that ends at its tick.
            age = (tick - event.tick + 1) / ticks
            if 0 < age < 1:
                self._draw_event(canvas, event, float(age), tick)

    def _draw_event(self, canvas: Canvas, event: Event, age: float, tick: float) -> None:
        details, kind = event.details, event.type

        def burst(reach: float, colour: Colour) -> None:
            canvas.burst(drawing.flat(details["pos"]), reach, age, colour, 9, 0.3, flash=drawing.FLASH)

        if kind in ("laser_hit", "flamer_hit"):
            drawing.draw_beam(
                canvas, details["start"], details["pos"], _team(details["shooter"]), age, kind == "flamer_hit"
            )
        elif kind == "explosion":
            burst(1.2 * details["radius"], (255, 176, 90))
        elif kind == "projectile_hit":
            burst(0.9, (255, 240, 190))
        elif kind == "kill":
            burst(4.2, TEAM_COLOURS[_team(details["target"])])
        else:
            now = moment(self.record, tick)
            start = now.position[self._places[details["mech" if kind == "ams_intercept" else "shooter"]]]
            end = details["pos"] if kind == "ams_intercept" else now.position[self._places[details["target"]]]
            colour = (130, 240, 255) if kind == "ams_intercept" else drawing.PAINT
            canvas.line(drawing.flat(start), drawing.flat(end), 0.2, colour, 0.8 * (1 - age))
            if kind == "ams_intercept":
                burst(0.8, colour)

    def _write_names(self, picture: Picture, now: Frames) -> None:
        for place, mech in enumerate(self.record.mechs):
            if self._lives(now, place, now.tick):
                x, y = drawing.flat(now.position[place]) * self.layout.scale + np.array(self.layout.corner)
                y += (0.5 * drawing.drawn_width(mech) + 0.7) * self.layout.scale
                text, size = f"{mech.kind[0].upper()}{mech.slot}", self.layout.points(10)
                write(picture, text, x + 1, y + 1, size, (0, 0, 0), 0.5, bold=True)
                write(picture, text, x, y, size, drawing.TEAM_LIGHT[mech.team], 0.5, bold=True)


def _team(name: str) -> int:
    return TEAMS.index(name.partition("_")[0])


def _way(flight: Flight, times: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(times, flight.ticks, flight.places[:, axis]) for axis in range(3)], -1)
