"""Recorded matches of Echelon, and their files: JSON that any program reads, without loss, and HTML pages that show it.

``python -m rlstack.envs.echelon.replay replay.json [page.html]`` writes a replay's page, one self-contained file. In it
the space bar plays and pauses, the arrow keys step by a decision; a click on a mech, on the map or in the list, shows
it over time; a click on a chart seeks to that time. A file of JSON has:

- ``format`` (``rlstack-replay``), ``schema_version`` (1), ``kind`` (``echelon``), ``players`` (who drove blue and red),
  ``title``, ``options`` (of the world), ``winner`` (``blue``, ``red`` or null).
- ``world``: ``size`` (x, y, z in voxels), ``voxel_size_m``, ``seed`` (of the bank of maps), ``spawn_clear`` (width of
  the corners where teams start), ``meta`` (``map``: number in the bank; ``decision_s``, ``tick_s``; ``terrain_names``),
  ``heights`` and ``terrain``, a row for each y of whole numbers, one for each x.
- ``frames``, one a decision: ``t`` (s) and ``tick`` (sub-steps of 0.05 s), ``objective`` (``center``, ``radius``,
  ``score`` of blue and red, ``to_win``, ``control`` from -1, red's, to 1, blue's), and

  - ``mechs`` by id: ``team``, ``class``, ``pos`` (of the feet), ``vel``, ``yaw``, ``hp``, ``hp_max``, ``leg_hp``,
    ``heat``, ``heat_cap``, ``stability``, ``stability_max``, ``alive``, ``fallen``, ``legged``, ``shutdown``,
    ``suppressed_time``, ``painted_time``, ``fallen_time``, ``ams_cooldown`` (all s), ``cooldowns`` (s, of ``laser``,
    ``missile``, ``kinetic``, ``painter``), ``ecm_on``, ``eccm_on``, ``sensor_quality``, ``jammed``, ``target`` (an id
    or null), ``in_zone``, ``kills`` and ``damage`` so far;
  - ``projectiles`` that flew since the frame before: ``id``, ``weapon``, ``owner``, ``target``, ``path``: ``[tick, x,
    y, z]`` for every sub-step of that time, from the launch to the end;
  - ``smoke_clouds``: ``pos``, ``radius``, ``time_left`` (s);
  - ``events`` since the frame before: ``t``, ``tick``, ``type``, and who (``shooter``, ``target``, ``mech``), where
    (``pos``, ``start``), ``weapon``, ``projectile`` (its id), ``radius``, ``damage`` (hp that the shooter took from the
    target in that sub-step). Types: :data:`rlstack.envs.echelon.events.TYPES`.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..foundation.files import check_regular, write_text
from ..recording import Columns, Frames, find_time
from . import rules
from .events import TYPES, WEAPONS, Event, Flight, mech_id
from .rules import MOST, SIDES, SLOTS, TEAMS, Chassis

Array = NDArray[Any]

FORMAT, VERSION, KIND = "rlstack-replay", 1, "echelon"
TERRAIN = ("plain", "foliage", "low_wall", "water", "lava")
COOLDOWNS = ("laser", "missile", "kinetic", "painter")
TIMES = {
    **{"painted_time": rules.PAINTED, "suppressed_time": rules.SUPPRESSED},
    **{"ams_cooldown": rules.AMS, "fallen_time": rules.FALLEN},
}
NUMBERS = {
    **{"yaw": "yaw", "hp": "hp", "legs": "leg_hp", "heat": "heat", "stability": "stability"},
    **{"quality": "sensor_quality", "jam": "jammed", "damage": "damage", "kills": "kills"},
}

COLUMNS: Columns = {
    "tick": ("int32", ()),  # sub-steps of 0.05 s since the start
    "score": ("float32", (2,)),  # of blue and red, s
    "control": ("float32", ()),  # of the zone, 1: blue's, -1: red's
    **dict.fromkeys(("position", "velocity"), ("float32", ("M", 3))),  # of the feet, voxels and voxels/s
    "yaw": ("float32", ("M",)),  # rad, 0 along x, counter-clockwise
    **dict.fromkeys(("hp", "legs", "heat", "stability"), ("float32", ("M",))),  # 0 hp or less: dead
    **dict.fromkeys(("quality", "jam"), ("float32", ("M",))),  # of sensors
    "damage": ("float32", ("M",)),  # hp taken from enemies so far
    "clocks": ("int16", ("M", rules.CLOCKS)),  # sub-steps left, in the order of rules.LASER to rules.FALLEN
    "ewar": ("int16", ("M",)),  # 0 off, 1 ECM, 2 ECCM
    "target": ("int16", ("M",)),  # place of the chosen target among the mechs, -1: none
    "kills": ("int16", ("M",)),  # so far
    "inside": ("bool", ("M",)),  # the zone
}
"""The states of a match; the ``M`` mechs are in the order of :attr:`MatchRecord.mechs`."""
_MOVING = ("position", "velocity", "heat", "stability", "score", "control")


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
        frames: its T states, see :data:`COLUMNS`.
        smoke: clouds at each of the T times, ``[k, 4]``: centre, sub-steps left.
        winner: 1 blue, -1 red, 0 draw or undecided.
        to_win: score that wins, s.
    """

    ground: RecordedMap
    mechs: tuple[Mech, ...]
    frames: Frames
    smoke: tuple[Array, ...]
    events: tuple[Event, ...]
    flights: tuple[Flight, ...]
    winner: int
    to_win: float


def moment(record: MatchRecord, tick: float) -> Frames:
    """Returns the match after a number of sub-steps, limited to its first and last state.

    Beside the entries of :data:`COLUMNS` there are the ``record`` and ``frame``, the place of the latest state.
    """
    frames = record.frames
    t, share = find_time(frames.tick, tick)
    now = vars(frames.part(t))
    if share > 0:
        turn = np.remainder(frames.yaw[t + 1] - frames.yaw[t] + np.pi, 2 * np.pi) - np.pi
        now |= {**frames.blend(t, share, _MOVING), "yaw": frames.yaw[t] + share * turn}
    return Frames(**now | {"control": float(now["control"]), "tick": tick, "frame": t, "record": record})


class Replay(NamedTuple):
    """The content of a file."""

    record: MatchRecord
    options: Mapping[str, Any]
    players: tuple[str, str]
    title: str


# -- writing -----------------------------------------------------------------------------------------------------


def as_json(replay: Replay) -> str:
    """Returns the text of a file."""
    record, options = replay.record, dict(replay.options)
    world = {
        "size": [record.ground.side, record.ground.side, int(rules.CEILING)],
        "voxel_size_m": 1.0,
        "seed": options.get("map_seed", 0),
        "spawn_clear": rules.SPAWN_SQUARE,
        "meta": {
            **{"map": record.ground.number, "decision_s": rules.DECISION, "tick_s": rules.DT},
            "terrain_names": list(TERRAIN),
        },
        "heights": record.ground.height.tolist(),
        "terrain": record.ground.kind.tolist(),
    }
    winner = {1: TEAMS[0], -1: TEAMS[1]}.get(record.winner)
    document = {
        **{"format": FORMAT, "schema_version": VERSION, "kind": KIND, "players": list(replay.players)},
        **{"title": replay.title, "options": options, "winner": winner, "world": world},
        "frames": [_frame(record, t) for t in range(len(record.frames))],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def _frame(record: MatchRecord, t: int) -> dict[str, Any]:
    frames = record.frames
    tick, x, y, radius = int(frames.tick[t]), *record.ground.zone
    before = int(frames.tick[t - 1]) if t else -1
    events = [event for event in record.events if before < event.tick <= tick]
    parts = [(flight, np.flatnonzero((flight.ticks > before) & (flight.ticks <= tick))) for flight in record.flights]
    mechs: dict[str, Any] = {}
    for place, mech in enumerate(record.mechs):
        clocks, ewar, target = frames.clocks[t, place], int(frames.ewar[t, place]), int(frames.target[t, place])
        legged = bool(frames.legs[t, place] <= 0)
        mechs[mech.name] = {
            **{"team": TEAMS[mech.team], "class": mech.kind},
            **{"pos": _exact(frames.position[t, place]), "vel": _exact(frames.velocity[t, place])},
            **{name: _exact(getattr(frames, column)[t, place]) for column, name in NUMBERS.items()},
            **{"hp_max": mech.chassis.hp, "heat_cap": mech.chassis.heat_cap},
            "stability_max": rules.STABILITY * (rules.LEGGED_STABILITY if legged else 1.0),
            **{"alive": bool(frames.hp[t, place] > 0), "fallen": bool(clocks[rules.FALLEN] > 0), "legged": legged},
            "shutdown": bool(frames.heat[t, place] > mech.chassis.heat_cap),
            **{name: _seconds(int(clocks[clock])) for name, clock in TIMES.items()},
            "cooldowns": {name: _seconds(int(clocks[clock])) for clock, name in enumerate(COOLDOWNS)},
            **{"ecm_on": ewar == 1, "eccm_on": ewar == 2, "in_zone": bool(frames.inside[t, place])},
            "target": record.mechs[target].name if target >= 0 else None,
        }
    return {
        **{"t": _seconds(tick), "tick": tick},
        "objective": {
            **{"center": [x, y], "radius": radius, "to_win": record.to_win},
            **{"score": _exact(frames.score[t]), "control": _exact(frames.control[t])},
        },
        "mechs": mechs,
        "projectiles": [
            {
                **{"id": flight.number, "weapon": flight.weapon, "owner": flight.owner, "target": flight.target},
                "path": [[int(flight.ticks[k]), *_exact(flight.places[k])] for k in during],
            }
            for flight, during in parts
            if len(during)
        ],
        "smoke_clouds": [
            {"pos": _exact(row[:3]), "radius": rules.SMOKE_RADIUS, "time_left": _seconds(float(row[3]))}
            for row in record.smoke[t]
        ],
        "events": [{"t": _seconds(e.tick), "tick": e.tick, "type": e.type, **e.details} for e in events],
    }


def _exact(value: Any) -> Any:
    """Converts float32 to the shortest decimal that restores it."""
    if isinstance(value, np.ndarray):
        return [_exact(entry) for entry in value]
    return float(str(value)) if isinstance(value, np.floating) else int(value)


def _seconds(ticks: float) -> float:
    return round(ticks * rules.DT, 4)


# -- reading -----------------------------------------------------------------------------------------------------


class ReplayError(ValueError):
    """A fault in the content of a file; the message does not name the file."""


def read_replay(path: str | Path) -> Replay:
    """Reads a file.

    Raises:
        ValueError: the file is missing, damaged, of another version, or its parts do not fit each other.
    """

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not a number")

    try:
        document = json.loads(check_regular(path).read_text(encoding="utf-8"), parse_constant=no_constant)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged, or no JSON"
        raise ValueError(f"{path}: cannot be read as a replay ({reason})") from None
    try:
        return _replay(document)
    except ReplayError as error:
        raise ValueError(f"{path}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else "a part has another shape than it should"
        raise ValueError(f"{path}: not a whole replay, {what}") from None


def _replay(document: Any) -> Replay:
    if not isinstance(document, Mapping) or (document.get("format"), document.get("kind")) != (FORMAT, KIND):
        raise ReplayError(f"not a replay of {KIND} (format and kind must be {FORMAT!r} and {KIND!r})")
    if document.get("schema_version") != VERSION:
        raise ReplayError(f"schema_version {document.get('schema_version')!r}, this program reads version {VERSION}")
    players, options, frames, world = (document[name] for name in ("players", "options", "frames", "world"))
    if not isinstance(players, list) or len(players) != 2 or not all(isinstance(name, str) for name in players):
        raise ReplayError(f"players {players!r} are not two names")
    if not isinstance(options, dict):
        raise ReplayError("options are not an object")
    if not isinstance(frames, list) or not frames:
        raise ReplayError("frames: a replay needs at least one")
    names = list(frames[0]["mechs"])
    known = {mech_id(team, slot): Mech(team, slot) for team in range(2) for slot in range(MOST)}
    if unknown := [name for name in names if name not in known]:
        raise ReplayError(f"mechs: {unknown[0]!r} is not the id of a mech, such as blue_0")
    if {known[name].team for name in names} != {0, 1}:
        raise ReplayError("mechs: both teams need one at least")
    if other := [t for t, frame in enumerate(frames) if list(frame["mechs"]) != names]:
        raise ReplayError(f"frame {other[0]} has other mechs than the first")
    objective = frames[0]["objective"]
    x, y, radius = _numbers([*objective["center"], objective["radius"]], "objective", (3,)).tolist()
    side = int(world["size"][0])
    if not SIDES[0] <= side <= SIDES[1]:
        raise ReplayError(f"world.size {side}: a map's side is within {SIDES[0]} to {SIDES[1]}")
    layers = []
    for name, most in (("heights", 255), ("terrain", len(TERRAIN) - 1)):
        layer = _numbers(world[name], f"world.{name}", (side, side))
        if (layer < 0).any() or (layer > most).any():
            raise ReplayError(f"world.{name} holds numbers that are not within 0 to {most}")
        layers.append(layer.astype(np.uint8))
    record = MatchRecord(
        RecordedMap(layers[0], layers[1], (x, y, radius), int(world["meta"]["map"])),
        tuple(known[name] for name in names),
        _columns(frames, names),
        tuple(_smoke(frame["smoke_clouds"]) for frame in frames),
        tuple(_event(entry, names) for frame in frames for entry in frame["events"]),
        _flights(frames, names),
        {TEAMS[0]: 1, TEAMS[1]: -1, None: 0}[document["winner"]],
        float(objective["to_win"]),
    )
    return Replay(record, options, (players[0], players[1]), str(document["title"]))


def _columns(frames: list[Any], names: list[str]) -> Frames:
    places: dict[str | None, int] = {name: place for place, name in enumerate(names)} | {None: -1}
    rows = [[frame["mechs"][name] for name in names] for frame in frames]
    objectives = [frame["objective"] for frame in frames]

    def of_mechs(name: str) -> list[list[Any]]:
        return [[mech[name] for mech in row] for row in rows]

    clocks = np.zeros((len(frames), len(names), rules.CLOCKS))
    for name, clock in TIMES.items():
        clocks[..., clock] = of_mechs(name)
    for clock, name in enumerate(COOLDOWNS):
        clocks[..., clock] = [[mech["cooldowns"][name] for mech in row] for row in rows]
    if wrong := [mech["target"] for row in rows for mech in row if mech["target"] not in places]:
        raise ReplayError(f"target {wrong[0]!r} is not a mech of this match")
    values = {
        "tick": [frame["tick"] for frame in frames],
        "score": [objective["score"] for objective in objectives],
        "control": [objective["control"] for objective in objectives],
        "position": of_mechs("pos"),
        "velocity": of_mechs("vel"),
        "clocks": np.rint(clocks / rules.DT),
        "ewar": [[int(mech["ecm_on"]) + 2 * int(mech["eccm_on"]) for mech in row] for row in rows],
        "target": [[places[mech["target"]] for mech in row] for row in rows],
        "inside": of_mechs("in_zone"),
        **{column: of_mechs(name) for column, name in NUMBERS.items()},
    }
    columns = {}
    for column, (kind, rest) in COLUMNS.items():
        shape = (len(frames), *(len(names) if size == "M" else int(size) for size in rest))
        columns[column] = _numbers(values[column], column, shape).astype(kind)
    if not (np.diff(columns["tick"]) > 0).all() or columns["tick"][0] < 0:
        raise ReplayError("tick does not ascend")
    return Frames(**columns)


def _numbers(values: Any, name: str, shape: tuple[int, ...]) -> Array:
    try:
        read = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise ReplayError(f"{name} holds something else than numbers, or rows of different lengths") from None
    if read.shape != shape:
        raise ReplayError(f"{name} has the shape {list(read.shape)}, expected {list(shape)}")
    if not np.isfinite(read).all():
        raise ReplayError(f"{name} holds numbers that are not finite")
    return read


def _event(entry: Mapping[str, Any], names: list[str]) -> Event:
    if entry["type"] not in TYPES:
        raise ReplayError(f"event of the unknown type {entry['type']!r}")
    for role in ("shooter", "target", "mech"):
        if entry.get(role) is not None and entry[role] not in names:
            raise ReplayError(f"event: {role} {entry[role]!r} is not a mech of this match")
    details = {name: value for name, value in entry.items() if name not in ("t", "tick", "type")}
    for name in ("pos", "start"):
        if name in details:
            details[name] = tuple(_numbers(details[name], f"event: {name}", (3,)).tolist())
    return Event(int(entry["tick"]), entry["type"], details)


def _smoke(clouds: list[Any]) -> Array:
    rows = [[*cloud["pos"], cloud["time_left"] / rules.DT] for cloud in clouds]
    read = _numbers(rows, "smoke_clouds", (len(rows), 4)) if rows else np.zeros((0, 4))
    read[:, 3] = np.rint(read[:, 3])
    return read.astype(np.float32)


def _flights(frames: list[Any], names: list[str]) -> tuple[Flight, ...]:
    paths: dict[int, list[Any]] = {}
    heads: dict[int, tuple[str, str, str | None]] = {}
    for entry in (entry for frame in frames for entry in frame["projectiles"]):
        number, head = int(entry["id"]), (entry["weapon"], entry["owner"], entry["target"])
        fits = head[0] in WEAPONS and head[1] in names and (head[2] is None or head[2] in names)
        if not fits or heads.setdefault(number, head) != head:
            raise ReplayError(f"projectile {number} has no known weapon, owner or target, or changes them")
        paths.setdefault(number, []).extend(entry["path"])
    flights = []
    for number in sorted(paths):
        path = _numbers(paths[number], f"the path of projectile {number}", (len(paths[number]), 4))
        if not (np.diff(path[:, 0]) >= 0).all():
            raise ReplayError(f"the path of projectile {number} goes back in time")
        flights.append(Flight(number, *heads[number], path[:, 0].astype(np.int32), path[:, 1:].astype(np.float32)))
    return tuple(flights)


# -- pages -------------------------------------------------------------------------------------------------------

_PARTS = Path(__file__).with_name("page")
_SCRIPTS = ("data.js", "board.js", "page.js")


def page(replay: Replay) -> str:
    """Returns the page's text."""
    title = f"Echelon: {' against '.join(replay.players)}"
    # The data must not contain the end tag of a script.
    content = as_json(replay).replace("<", "\\u003c")
    script = "\n".join(_part(name).replace('"use strict";\n', "") for name in _SCRIPTS)
    parts = {"TITLE": html.escape(title), "STYLE": _part("style.css"), "SCRIPT": script, "REPLAY": content}
    return re.sub("%([A-Z]+)%", lambda match: parts[match[1]], _part("page.html"))


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8").strip()


def save_page(replay: Replay, path: str | Path) -> None:
    """Writes the page atomically; makes missing folders.

    Raises:
        ValueError: the suffix is not ``.html``.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"cannot write {path.name}: the ending of a page is .html")
    write_text(path, page(replay))


def main(arguments: Sequence[str]) -> int:
    """Writes the page of a replay, or prints in one line why it cannot; returns the exit status."""
    if len(arguments) not in (1, 2):
        print("error: give a replay and, if you like, a page: replay.json page.html", file=sys.stderr)
        return 2
    replay = Path(arguments[0])
    target = Path(arguments[1]) if len(arguments) == 2 else replay.with_suffix(".html")
    try:
        save_page(read_replay(replay), target)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
