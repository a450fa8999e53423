"""Makes a recording of the content of a replay, or says what is wrong with it; see :mod:`envs.echelon.replay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import rules
from .rules import MOST, SIDES
from .specs import TEAMS
from .story import COLUMNS, TYPES, WEAPONS, Event, Flight, Frames, Ground, Mech, Recording, Story, mech_id

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


class Wrong(ValueError):
    """What is wrong with a file, without its name."""


def recording_of(document: Any) -> Recording:
    """A recording of what was in a file.

    Raises:
        Wrong: another version, or parts that do not fit each other.
        KeyError: something is missing.
        TypeError, ValueError, IndexError, AttributeError: something has another shape.
    """
    if not isinstance(document, Mapping) or (document.get("format"), document.get("kind")) != (FORMAT, KIND):
        raise Wrong(f"not a replay of {KIND} (format and kind must be {FORMAT!r} and {KIND!r})")
    if document.get("schema_version") != VERSION:
        raise Wrong(f"schema_version {document.get('schema_version')!r}, this program reads version {VERSION}")
    players, options = document["players"], document["options"]
    if not isinstance(players, list) or len(players) != 2 or not all(isinstance(name, str) for name in players):
        raise Wrong(f"players {players!r} are not two names")
    if not isinstance(options, dict):
        raise Wrong("options are not an object")
    frames = document["frames"]
    if not isinstance(frames, list) or not frames:
        raise Wrong("frames: a replay needs at least one")
    story = _story(document, frames)
    return Recording(lambda: story, options, (players[0], players[1]), str(document["title"]))


def _story(document: Mapping[str, Any], frames: list[Any]) -> Story:
    names = list(frames[0]["mechs"])
    known = {mech_id(team, slot): Mech(team, slot) for team in range(2) for slot in range(MOST)}
    if unknown := [name for name in names if name not in known]:
        raise Wrong(f"mechs: {unknown[0]!r} is no id of a mech, such as blue_0")
    if {known[name].team for name in names} != {0, 1}:
        raise Wrong("mechs: both teams need one at least")
    mechs = tuple(known[name] for name in names)
    for t, frame in enumerate(frames):
        if list(frame["mechs"]) != names:
            raise Wrong(f"frame {t} has other mechs than the first")
    read = _columns(frames, names)
    zone = _numbers([*frames[0]["objective"]["center"], frames[0]["objective"]["radius"]], "objective", (3,))
    world = document["world"]
    number = int(world["meta"]["map"])
    side = int(world["size"][0])
    if not SIDES[0] <= side <= SIDES[1]:
        raise Wrong(f"world.size {side}: a map's side is within {SIDES[0]} to {SIDES[1]}")
    layers = ("heights", 255), ("terrain", len(TERRAIN) - 1)
    height, kind = (_layer(world[name], name, most, side) for name, most in layers)
    ground = Ground(height, kind, (float(zone[0]), float(zone[1]), float(zone[2])), number)
    winner = {TEAMS[0]: 1, TEAMS[1]: -1, None: 0}[document["winner"]]
    to_win = float(frames[0]["objective"]["to_win"])
    events = tuple(_event(entry, names) for frame in frames for entry in frame["events"])
    smoke = tuple(_smoke(frame["smoke_clouds"]) for frame in frames)
    return Story(ground, mechs, read, smoke, events, _flights(frames, names), winner, to_win)


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
        raise Wrong(f"target {wrong[0]!r} is no mech of this match")
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
    found = {}
    for column, (kind, rest) in COLUMNS.items():
        shape = (len(frames), *(len(names) if size == "M" else int(size) for size in rest))
        found[column] = _numbers(values[column], column, shape).astype(kind)
    if not (np.diff(found["tick"]) > 0).all() or found["tick"][0] < 0:
        raise Wrong("tick does not ascend")
    return Frames(**found)


def _numbers(values: Any, name: str, shape: tuple[int, ...]) -> Array:
    try:
        read = np.array(values, np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{name} holds something else than numbers, or rows of different lengths") from None
    if read.shape != shape:
        raise Wrong(f"{name} has the shape {list(read.shape)}, expected {list(shape)}")
    if not np.isfinite(read).all():
        raise Wrong(f"{name} holds numbers that are not finite")
    return read


def _layer(rows: Any, name: str, most: int, side: int) -> Array:
    read = _numbers(rows, f"world.{name}", (side, side))
    if (read < 0).any() or (read > most).any():
        raise Wrong(f"world.{name} holds numbers that are not within 0 to {most}")
    return read.astype(np.uint8)


def _event(entry: Mapping[str, Any], names: list[str]) -> Event:
    if entry["type"] not in TYPES:
        raise Wrong(f"event of the unknown type {entry['type']!r}")
    for role in ("shooter", "target", "mech"):
        if entry.get(role) is not None and entry[role] not in names:
            raise Wrong(f"event: {role} {entry[role]!r} is no mech of this match")
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
    for frame in frames:
        for entry in frame["projectiles"]:
            number, head = int(entry["id"]), (entry["weapon"], entry["owner"], entry["target"])
            fits = head[0] in WEAPONS and head[1] in names and (head[2] is None or head[2] in names)
            if not fits or heads.setdefault(number, head) != head:
                raise Wrong(f"projectile {number} has no known weapon, owner or target, or changes them")
            paths.setdefault(number, []).extend(entry["path"])
    found = []
    for number in sorted(paths):
        path = _numbers(paths[number], f"the path of projectile {number}", (len(paths[number]), 4))
        if not (np.diff(path[:, 0]) >= 0).all():
            raise Wrong(f"the path of projectile {number} goes back in time")
        ticks, places = path[:, 0].astype(np.int32), path[:, 1:].astype(np.float32)
        found.append(Flight(number, *heads[number], ticks, places))
    return tuple(found)
