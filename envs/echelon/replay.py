"""Recordings of Echelon as files: JSON that any program reads, without pickles, and without loss.

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
    target in that sub-step). Types: :data:`envs.echelon.events.TYPES`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..bounded_files import check_regular
from ..whole_files import write_text
from . import rules
from .replay_content import COOLDOWNS, FORMAT, KIND, NUMBERS, TERRAIN, TIMES, VERSION, Wrong, recording_of
from .specs import TEAMS
from .story import Flight, Recording, Story

ENDING = ".json"
_DIGITS = 4


# -- writing -----------------------------------------------------------------------------------------------------


def save_replay(recording: Recording, path: str | Path) -> None:
    """Writes a recording, wholly or not at all; makes missing folders.

    Raises:
        ValueError: another ending than ``.json``.
    """
    path = Path(path)
    if path.suffix != ENDING:
        raise ValueError(f"cannot write {path.name}: the ending of a replay is {ENDING}")
    write_text(path, as_json(recording))


def as_json(recording: Recording) -> str:
    """A recording as the text of a file."""
    return json.dumps(_document(recording), separators=(",", ":"), allow_nan=False)


def _document(recording: Recording) -> dict[str, Any]:
    story, options = recording.story, dict(recording.options)
    winner = {1: TEAMS[0], -1: TEAMS[1]}.get(story.winner)
    world = {
        "size": [story.ground.side, story.ground.side, int(rules.CEILING)],
        "voxel_size_m": 1.0,
        "seed": options.get("map_seed", 0),
        "spawn_clear": rules.SPAWN_SQUARE,
        "meta": {
            **{"map": story.ground.number, "decision_s": rules.DECISION, "tick_s": rules.DT},
            "terrain_names": list(TERRAIN),
        },
        "heights": story.ground.height.tolist(),
        "terrain": story.ground.kind.tolist(),
    }
    return {
        **{"format": FORMAT, "schema_version": VERSION, "kind": KIND, "players": list(recording.players)},
        **{"title": recording.title, "options": options, "winner": winner, "world": world},
        "frames": [_frame(story, t) for t in range(len(story.frames))],
    }


def _frame(story: Story, t: int) -> dict[str, Any]:
    frames = story.frames
    tick, x, y, radius = int(frames.tick[t]), *story.ground.zone
    before = int(frames.tick[t - 1]) if t else -1
    events = [event for event in story.events if before < event.tick <= tick]
    flights = [_path(flight, before, tick) for flight in story.flights]
    return {
        **{"t": _seconds(tick), "tick": tick},
        "objective": {
            **{"center": [x, y], "radius": radius, "to_win": story.to_win},
            **{"score": _exact(frames.score[t]), "control": _exact(frames.control[t])},
        },
        "mechs": {mech.name: _mech(story, t, place) for place, mech in enumerate(story.mechs)},
        "projectiles": [flight for flight in flights if flight is not None],
        "smoke_clouds": [
            {"pos": _exact(row[:3]), "radius": rules.SMOKE_RADIUS, "time_left": _seconds(float(row[3]))}
            for row in story.smoke[t]
        ],
        "events": [{"t": _seconds(e.tick), "tick": e.tick, "type": e.type, **e.details} for e in events],
    }


def _mech(story: Story, t: int, place: int) -> dict[str, Any]:
    frames, mech = story.frames, story.mechs[place]
    row = {name: _exact(getattr(frames, column)[t, place]) for column, name in NUMBERS.items()}
    clocks, ewar, target = frames.clocks[t, place], int(frames.ewar[t, place]), int(frames.target[t, place])
    chassis, legged = mech.chassis, bool(frames.legs[t, place] <= 0)
    return {
        **{"team": TEAMS[mech.team], "class": mech.kind},
        **{"pos": _exact(frames.position[t, place]), "vel": _exact(frames.velocity[t, place]), **row},
        **{"hp_max": chassis.hp, "heat_cap": chassis.heat_cap},
        "stability_max": rules.STABILITY * (rules.LEGGED_STABILITY if legged else 1.0),
        **{"alive": bool(frames.hp[t, place] > 0), "fallen": bool(clocks[rules.FALLEN] > 0), "legged": legged},
        "shutdown": bool(frames.heat[t, place] > chassis.heat_cap),
        **{name: _seconds(int(clocks[clock])) for name, clock in TIMES.items()},
        "cooldowns": {name: _seconds(int(clocks[clock])) for clock, name in enumerate(COOLDOWNS)},
        **{"ecm_on": ewar == 1, "eccm_on": ewar == 2, "in_zone": bool(frames.inside[t, place])},
        "target": story.mechs[target].name if target >= 0 else None,
    }


def _path(flight: Flight, before: int, tick: int) -> dict[str, Any] | None:
    during = np.flatnonzero((flight.ticks > before) & (flight.ticks <= tick))
    if not len(during):
        return None
    path = [[int(flight.ticks[k]), *_exact(flight.places[k])] for k in during]
    named = {"id": flight.number, "weapon": flight.weapon, "owner": flight.owner, "target": flight.target}
    return {**named, "path": path}


def _exact(value: Any) -> Any:
    """float32 as the shortest decimal that gives it again."""
    if isinstance(value, np.ndarray):
        return [_exact(entry) for entry in value]
    return float(str(value)) if isinstance(value, np.floating) else int(value)


def _seconds(ticks: float) -> float:
    return round(ticks * rules.DT, _DIGITS)


# -- reading -----------------------------------------------------------------------------------------------------


def load_replay(path: str | Path) -> Recording:
    """Reads what :func:`save_replay` wrote.

    Raises:
        ValueError: one line: the file is missing, damaged, of another version, or its parts do not fit each other.
    """
    try:
        check_regular(path)
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "damaged, or no JSON"
        raise ValueError(f"{path}: cannot be read as a replay ({reason})") from None
    try:
        return recording_of(document)
    except Wrong as error:
        raise ValueError(f"{path}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else "a part has another shape than it should"
        raise ValueError(f"{path}: not a whole replay, {what}") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
