"""Reads run directories as far as they can be read, with a line for every missing part."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from rlstack.config import ConfigError
from rlstack.config.allowed import read_yaml
from rlstack.envs.foundation.files import check_regular
from rlstack.envs.foundation.work import working
from rlstack.runs.manifest import MANIFEST, changed
from rlstack.training.environment import ENVIRONMENT
from rlstack.training.loggers import FRAMES, METRICS_FILE

SECONDS, CPU_SECONDS, EVALUATED = "time/seconds", "time/cpu_seconds", "eval/"
OF_NO_MATTER = (
    *("seed", "run_dir", "resume", "until", "device", "threads", "logger", "checkpoint", "log_every"),
    *("compile", "cudagraphs"),  # which seeds in one process turn off
)
"""Keys that do not distinguish experiments."""
_LEAGUE = "league.json"
_CONFIG = "config.yaml"
_LAST_ROWS = 50  # least number of rows at the end of a table that are read for a list of runs
_CONFIGS = (_CONFIG, ".hydra/config.yaml")
Series = NDArray[np.float64]


class Curve(NamedTuple):
    """A metric over a run: ``frames [N]``, which never decrease, and finite ``values [N]``."""

    frames: Series
    values: Series


class StoredEvaluation(NamedTuple):
    """A file of ``evaluations/``.

    Attributes:
        name: name of its folder, or the frames of an evaluation in training.
        frames: frames of an evaluation in training, otherwise None.
        content: content of the file.
    """

    name: str
    frames: int | None
    content: dict[str, Any]


@dataclass
class StoredRun:
    """One run, as a report reads it.

    Attributes:
        path: path of its directory.
        name: name among the runs of a report.
        config: stored configuration, or an empty mapping.
        curves: metrics by name.
        evaluations: evaluations in training, oldest first, then later ones.
        environment: entry of every process that has trained it, oldest first.
        notes: a line for each missing or damaged part.
    """

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    evaluations: list[StoredEvaluation] = field(default_factory=list)
    environment: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, name: str, whole: bool = True) -> StoredRun:
        """Reads the available parts of a run; no fault in it raises an error.

        Args:
            whole: False reads the ends of the curves and no evaluation, which takes a millisecond.
        """
        run = cls(path, name)
        run.config = _config(path, run.notes)
        run.curves = read_curves(path / METRICS_FILE, run.notes, whole)
        run.evaluations = list(read_evaluations(path / "evaluations", run.notes)) if whole else []
        if (path / ENVIRONMENT).is_file():
            run.environment = [entry for entry in _json(path / ENVIRONMENT, run.notes) or [] if isinstance(entry, dict)]
        for name in changed(path) if whole else []:
            run.notes.append(f"{name} was changed or damaged after the run ended: its digest is not that of {MANIFEST}")
        if run.curves and not any(name.startswith("eval/") for name in run.curves):
            run.notes.append("no evaluation yet")
        if run.curves and run.total_frames and not run.complete:
            share = run.frames / run.total_frames
            without = ", without the evaluation at its end" if share >= 1 else ""
            run.notes.append(f"incomplete: {run.frames:,} of {run.total_frames:,} frames ({share:.0%}){without}")
        return run

    @cached_property
    def frames(self) -> int:
        """Frames of the last logged row or, if it has more, of the newest checkpoint."""
        saved = (path.stem.rpartition("_")[2] for path in self.path.glob("checkpoints/checkpoint_*.pt"))
        numbers = [curve.frames[-1] for curve in self.curves.values()] + [int(name) for name in saved if name.isdigit()]
        return int(max(numbers, default=0))

    @property
    def total_frames(self) -> int | None:
        """Length of the run in its configuration, if known."""
        total = self.config.get("total_frames")
        return int(total) if isinstance(total, int | float) and math.isfinite(total) else None

    @property
    def complete(self) -> bool:
        """Whether the run has reached its end; one that only imitates ends with the evaluation of its clone.

        The last row comes before the evaluation at the end, in which a process may be killed.
        """
        evaluated = [curve.frames[-1] for name, curve in self.curves.items() if name.startswith(EVALUATED)]
        if self.part("imitation").get("only") is True and evaluated:
            return True
        if self.total_frames is None or self.frames < self.total_frames:
            return False
        return max(evaluated, default=0 if self.environment else self.frames) >= self.total_frames

    @property
    def seed(self) -> Any:
        """Seed of the run; None if unknown."""
        return self.config.get("seed")

    @property
    def experiment(self) -> dict[str, Any]:
        """The configuration without the keys that do not distinguish experiments."""
        return {key: value for key, value in self.config.items() if key not in OF_NO_MATTER}

    def part(self, group: str) -> dict[str, Any]:
        """Returns a group of the configuration, or an empty mapping."""
        settings = self.config.get(group)
        return settings if isinstance(settings, dict) else {}

    def last(self, metric: str) -> float | None:
        """Returns the last value of a metric; None if it was never logged, or not in the last evaluation.

        Evaluations leave out undefined numbers, such as the time to the goal without a success.
        """
        if (curve := self.curves.get(metric)) is None:
            return None
        if metric.startswith(EVALUATED):
            evaluated = (other.frames[-1] for name, other in self.curves.items() if name.startswith(EVALUATED))
            if curve.frames[-1] < max(evaluated):
                return None
        return float(curve.values[-1])

    @property
    def last_evaluation(self) -> StoredEvaluation | None:
        """The last evaluation in training."""
        return next((entry for entry in reversed(self.evaluations) if entry.frames is not None), None)


def find(folder: Path, whole: bool = True) -> tuple[list[StoredRun], list[Path]]:
    """Finds the runs in or below a folder by name, see :meth:`StoredRun.read`, and the folders of leagues."""
    runs: list[StoredRun] = []
    leagues: list[Path] = []
    with working("reading", "runs") as work:
        top, seen = folder.resolve(), set[Path]()
        for path, folders, files in os.walk(folder, followlinks=True):
            work.reach(len(runs))
            here, place = Path(path), Path(path).resolve()
            inside = place.is_relative_to(top) or top.is_relative_to(place)
            known = here != folder and here.is_symlink() and inside
            if place in seen or known:  # found elsewhere, or above: a loop
                folders.clear()
                continue
            seen.add(place)
            if _LEAGUE in files:
                leagues.append(here)
            if METRICS_FILE in files or (_CONFIG in files and "total_frames" in _config(here, [])):
                name = top.name if here == folder else here.relative_to(folder).as_posix()
                runs.append(StoredRun.read(here, name, whole))
                folders.clear()  # runs are not searched for further runs
            folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(runs, key=lambda run: natural(run.name)), sorted(leagues)


def runs_in(key: str, folder: Path) -> list[StoredRun]:
    """Returns the runs in or below a folder that a key of a command names.

    Raises:
        ConfigError: it is not a folder, or holds no runs.
    """
    runs, _ = find(check_folder(key, folder))
    if not runs:
        raise ConfigError(f"{key}: {folder} holds no runs, neither itself nor below")
    return runs


def check_folder(key: str, folder: Path) -> Path:
    """Returns a folder that a key of a command names; raises a :class:`ConfigError` if it is none."""
    if not folder.is_dir():
        raise ConfigError(f"{key}: {folder} is not a folder")
    return folder


def natural(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that orders numbers by value: ``seed2`` before ``seed10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def read_curves(path: Path, notes: list[str], whole: bool = True) -> dict[str, Curve]:
    """Reads the columns of a ``metrics.csv`` in order; adds a line to ``notes`` if rows had to be left out.

    Args:
        whole: False reads the last rows, at least those since the last evaluation.
    """
    try:
        text = check_regular(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{path.name} cannot be read ({error.strerror})")
        return {}
    if not whole:  # the header and the last rows, at least those since the last evaluation
        header, *rows = text.splitlines(keepends=True) or [""]
        columns = [column for column, name in enumerate(header.split(",")) if name.startswith(EVALUATED)]
        start = max(len(rows) - _LAST_ROWS, 0)
        while columns and start:
            cut = [row.split(",") for row in rows[start:]]
            if any(row[column].strip() for row in cut for column in columns if column < len(row)):
                break
            start = max(len(rows) - 8 * (len(rows) - start), 0)
        text = "".join([header, *rows[start:]])
    end = text.rfind("\n") + 1
    if end < len(text):
        notes.append(f"{path.name}: the last row is cut off and was left out")
    numbers, damaged = array("d"), 0
    try:
        lines = csv.reader(text[:end].splitlines())
        names = next(lines)
        if FRAMES not in names:
            notes.append(f"{path.name} has no column {FRAMES!r}")
            return {}
        at = names.index(FRAMES)
        for cells in lines:
            row = _numbers(cells)
            if len(row) == len(names) and math.isfinite(row[at]):
                numbers.extend(row)
            else:
                damaged += 1
    except (csv.Error, StopIteration):
        numbers = array("d")
    if damaged:
        notes.append(f"{path.name}: {damaged} damaged row{'s were' if damaged > 1 else ' was'} left out")
    if not numbers:
        notes.append(f"{path.name} has no rows")
        return {}
    table = np.array(numbers).reshape(-1, len(names))
    table = table[np.argsort(table[:, at], kind="stable")]
    finite = np.isfinite(table)
    curves = {
        name: Curve(table[finite[:, index], at], table[finite[:, index], index])
        for index, name in enumerate(names)
        if name != FRAMES and finite[:, index].any()
    }
    infinite = [name for name, column in zip(names, np.isinf(table).any(0)) if column]
    if infinite:
        notes.append(f"{path.name}: NaN or infinite values in {', '.join(infinite)}")
    return curves


def _numbers(cells: list[str]) -> list[float]:
    """Parses a row: an empty cell is NaN, a logged NaN infinite; a damaged row is empty."""
    try:
        row = [float(cell) if cell else math.nan for cell in cells]
    except ValueError:
        return []
    return [math.inf if cell and math.isnan(value) else value for cell, value in zip(cells, row)]


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    file = next((path / name for name in _CONFIGS if (path / name).is_file()), None)
    if file is None:
        notes.append(f"{_CONFIG} is missing: the configuration is unknown")
        return {}
    try:
        content = read_yaml(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError):
        content = None
    if not isinstance(content, dict):
        notes.append(f"{file.name} is damaged: the configuration is unknown")
        return {}
    return {str(key): with_whole_numbers(value) for key, value in content.items()}


def with_whole_numbers(value: Any) -> Any:
    """Returns a value of a configuration with each whole number as an integer: ``1e6`` is the option ``1000000``."""
    if isinstance(value, dict):
        return {key: with_whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_evaluations(folder: Path, notes: list[str]) -> Iterator[StoredEvaluation]:
    """Yields the evaluations in training, oldest first, then later ones; adds a note for each that is damaged."""
    for path in sorted(folder.glob("*.json")):
        if path.stem.isdigit() and (content := _json(path, notes)) is not None:
            yield StoredEvaluation(path.stem.lstrip("0") or "0", int(path.stem), content)
    files = [path for name in ("evaluation.json", "results.json") for path in folder.glob(f"*/{name}")]
    for path in sorted(files, key=lambda path: natural(path.parent.name)):
        if changed(path.parent, path.name):
            notes.append(f"{path.parent.name}/{path.name} was changed or damaged after the evaluation")
        if (content := _json(path, notes)) is not None:
            yield StoredEvaluation(path.parent.name, None, content)


def _json(path: Path, notes: list[str]) -> Any:
    """Reads a file of rows; returns None and adds a note if it is damaged."""
    rows = {"results.json": "opponents", ENVIRONMENT: None}.get(path.name, "levels")
    try:
        content = json.loads(check_regular(path).read_text(encoding="utf-8"))
        table = content if rows is None else content[rows]
        sound = isinstance(table, list) and table and all(isinstance(row, dict) for row in table)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        notes.append(f"{path.parent.name}/{path.name} is damaged")
        return None
    return content
