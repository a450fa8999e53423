"""What destinations of metrics share; ``metrics.csv``, the table of every logged number; and the score of a run."""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.envs.foundation.files import check_regular, naming, open_to_append, replacing

from ..config import ObjectiveConfig

FRAMES, METRICS_FILE = "frames", "metrics.csv"


class Sink(ABC):
    """One destination of metrics, with a name for messages."""

    name: ClassVar[str]

    @abstractmethod
    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records metrics measured at ``frames``."""

    def truncate_after(self, frames: int) -> None:
        """Removes entries beyond ``frames``; a service keeps what it has received, and draws later points over it."""
        return

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """Writes pending entries; ``failed`` means that the run ended with an exception."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yields dotted keys and values of a configuration, without those that name the run's folder."""
    for key, value in config.items():
        if prefix or key not in ("logger", "run_dir", "resume"):
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)


class CsvSink(Sink):
    """``metrics.csv``: a row of numbers measured at the same frame, with empty cells where a metric was not measured.

    A call adds a row, or other metrics to the last row if that is of the same frame; their times replace its own. A
    metric that appears later widens the table. Each row is flushed at once, so a killed run loses none; a row that a
    crash has cut off is dropped when the file is opened again.

    Raises:
        ConfigError: the file exists and is not such a table.
    """

    name: ClassVar[str] = METRICS_FILE

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: dict[str, float | str] = {}
        self.columns, rows = self._read()
        self._file = self._rewritten(rows)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Appends a row, or completes the last one."""
        joins = self._last.get(FRAMES) == frames and all(
            name.startswith("time/") or self._last.get(name, "") == "" for name in metrics
        )
        row = {**(self._last if joins else {}), FRAMES: frames, **metrics}
        new = [name for name in metrics if name not in self.columns]
        self.columns += new
        cells = [row.get(name, "") for name in self.columns]
        if new or joins:
            _, rows = self._read()
            self._file = self._rewritten([*rows[: len(rows) - joins], cells])
        else:
            with naming(self.path):
                csv.writer(self._file, lineterminator="\n").writerow(cells)
                self._file.flush()
        self._last = row

    def truncate_after(self, frames: int) -> None:
        """Drops the rows beyond ``frames``."""
        _, rows = self._read()
        self._file = self._rewritten([row for row in rows if int(row[0]) <= frames])

    def close(self, failed: bool = False) -> None:
        """Closes the file."""
        self._file.close()

    def _rewritten(self, rows: Sequence[Sequence[Any]]) -> TextIO:
        """Replaces the file atomically by the header and ``rows``, padded to the header's width; returns it open."""
        if (file := getattr(self, "_file", None)) is not None:
            file.close()
        with replacing(self.path) as (partial,), partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([*row, *[""] * (len(self.columns) - len(row))] for row in rows)
        self._last = dict(zip(self.columns, rows[-1])) if rows else {}
        if rows:
            self._last[FRAMES] = int(rows[-1][0])
        return open_to_append(self.path)

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows, without one that was cut off; another file raises an error and stays unchanged."""
        try:
            text = check_regular(self.path).read_text(encoding="utf-8") if self.path.exists() else ""
            header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [[FRAMES]]
            if header[:1] != [FRAMES]:
                raise ValueError(f"its first column is not {FRAMES}")
            for row in rows:
                if len(row) > len(header):
                    fault = f"the row of {int(row[0]):,} frames has {len(row)} cells for {len(header)} columns"
                    raise ValueError(fault)
                int(row[0])
                for cell in filter(None, row):
                    float(cell)
        except IsADirectoryError:
            raise ConfigError(f"{self.path}: a folder, not a table of metrics; move it elsewhere to continue") from None
        except (csv.Error, IndexError, ValueError) as error:
            raise ConfigError(f"{self.path}: not a table of metrics ({error}); move it elsewhere to continue") from None
        return header, rows


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Reads the rows of a ``metrics.csv``, each with the metrics measured at its frame, without one that was cut off.

    Raises:
        OSError: the file does not exist.
    """
    text = check_regular(path).read_text(encoding="utf-8")
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    return [{name: float(cell) for name, cell in row.items() if cell} for row in rows]


_OBJECTIVES = ("eval/success", "eval/return")
_VALUES: dict[str, Callable[[list[float]], float]] = {
    "last": lambda values: values[-1],
    "max": lambda values: max(_defined(values)),
    "min": lambda values: min(_defined(values)),
    "mean": lambda values: math.fsum(_defined(values)) / len(_defined(values)),
}


def _defined(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)] or [math.nan]


def score(run: Path | str, objective: ObjectiveConfig) -> float:
    """Returns the objective of a run so far; NaN if no evaluation has finished.

    Raises:
        ConfigError: the run has not logged this metric; the message lists those it has logged.
    """
    return (scores(run, objective) or [math.nan])[-1]


def scores(run: Path | str, objective: ObjectiveConfig) -> list[float]:
    """Returns the objective of a run after each row that has its metric; empty if no evaluation has finished.

    Evaluations leave out undefined numbers, such as the time to the goal without a success: after these the last value
    is NaN, and the others are those of the evaluations before.

    Raises:
        ConfigError: the run has not logged this metric; the message lists those it has logged.
    """
    path = Path(run) / METRICS_FILE
    rows = read_metrics(path)
    columns = {name for row in rows for name in row}
    metric = objective.metric or next((name for name in _OBJECTIVES if name in columns), _OBJECTIVES[-1])
    values = [
        row.get(metric, math.nan) for row in rows if metric in row or (_is_eval(metric) and any(map(_is_eval, row)))
    ]
    if metric not in columns:
        values = []
    if not values and objective.metric is None and "eval/non_finite" in columns:
        return []  # no evaluation has finished
    if not values:
        guess = did_you_mean(metric, columns)
        raise ConfigError(f"objective.metric: {metric!r} is not in {path}, {guess}it has: {', '.join(sorted(columns))}")
    value = _VALUES[objective.value]
    return [float(value(values[:count])) for count in range(1, len(values) + 1)]


def _is_eval(name: str) -> bool:
    return name.startswith("eval/")
