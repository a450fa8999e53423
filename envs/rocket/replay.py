"""Recordings of Rocket as files: plain arrays in a ``.npz``, without pickles.

A file holds every column of :class:`~envs.rocket.recording.Frames` under its name, ``[T, ...]`` as
:data:`~envs.rocket.recording.COLUMNS` says (zip-compressed), and ``meta``, a JSON text: ``format``
(``rlstack-replay``), ``version`` (1), ``world`` (``rocket``), ``players`` (who drove blue and orange), ``goals`` (of
both), ``options`` (of the world) and ``title``. ``numpy.load(path, allow_pickle=False)`` reads it anywhere.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bounded_files import check_archive
from ..whole_files import replacing
from .recording import ABSENT, COLUMNS, Frames, Recording

FORMAT, VERSION, WORLD = "rlstack-replay", 1, "rocket"
_META = "meta"
_MOST_CARS = 6
_DAMAGED = (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def save_replay(recording: Recording, path: str | Path) -> None:
    """Writes a recording, wholly or not at all; makes missing folders.

    Raises:
        ValueError: another ending than ``.npz``.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"cannot write {path.name}: the ending of a replay is .npz")
    meta = {
        **{"format": FORMAT, "version": VERSION, "world": WORLD, "players": list(recording.players)},
        **{"goals": list(recording.goals), "options": dict(recording.options), "title": recording.title},
    }
    with replacing(path) as (partial,), partial.open("wb") as stream:
        np.savez_compressed(stream, **{_META: np.array(json.dumps(meta)), **vars(recording.frames)})


def load_replay(path: str | Path) -> Recording:
    """Reads what :func:`save_replay` wrote.

    Raises:
        ValueError: one line: the file is missing, damaged, of another version, or its arrays do not fit each other.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files if name in (_META, *COLUMNS)}
        if not all(isinstance(entry, np.ndarray) for entry in entries.values()):
            raise ValueError("an entry is no array")
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
    frames = Frames(**{name: entries[name] for name in COLUMNS})
    named = (players[0], players[1])
    return Recording(frames, options if isinstance(options, dict) else {}, named, str(meta.get("title", "")))


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
