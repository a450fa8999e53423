"""Result files of the studies: tables in Markdown, rows in CSV, and curves in pictures."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from rlstack.envs.foundation.files import write_json

Rows = Sequence[Mapping[str, Any]]


def saved(file: Path) -> dict[str, Any]:
    """Returns the content of a result file; nothing if it does not exist."""
    return json.loads(file.read_text()) if file.is_file() else {}


def join(file: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """Adds results to a file, mapping by mapping, and returns its new content."""

    def merged(old: Any, new: Any) -> Any:
        if not isinstance(old, dict) or not isinstance(new, dict):
            return new
        return old | {key: merged(old.get(key), value) for key, value in new.items()}

    content: dict[str, Any] = merged(saved(file), json.loads(json.dumps(results)))
    write_json(file, content)
    return content


def markdown(heads: str, rows: Iterable[Iterable[object]]) -> str:
    """Returns a Markdown table.

    Args:
        heads: titles of the columns, separated by ``|``.
        rows: cells of each row.
    """
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, cells))} |" for cells in rows)]) + "\n"


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Returns the median of some measurements with the least and the greatest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def interval(mean: float, bounds: Sequence[float], form: str) -> str:
    """Returns a mean with the bounds of its interval."""
    return f"{mean:{form}} ({bounds[0]:{form}} to {bounds[1]:{form}})"


def read_csv(file: Path) -> list[dict[str, str]]:
    """Reads rows; returns none if the file does not exist."""
    if not file.is_file():
        return []
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def write_csv(file: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes these columns of some rows."""
    with open(file, "w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def join_csv(file: Path, keys: Sequence[str], columns: Sequence[str], rows: Rows) -> list[Mapping[str, Any]]:
    """Writes rows to a CSV file beside those that it has with other values of ``keys``; returns all, in their order."""

    def place(row: Mapping[str, Any]) -> list[Any]:
        return [row[key] for key in keys]

    new = [place(row) for row in rows]
    every = sorted([*(row for row in read_csv(file) if place(row) not in new), *rows], key=place)
    write_csv(file, [*keys, *columns], every)
    return every


def draw_seeds(axis: Axes, rows: Rows, value: str, clock: str, label: str = "seed {}", **style: Any) -> None:
    """Draws a column of logs over the minutes of a clock: a line for each seed, which the label names in its braces."""
    for number, seed in enumerate(sorted({row["seed"] for row in rows})):
        own = [row for row in rows if row["seed"] == seed and row[value] != ""]
        points = [(float(row[clock]) / 60, float(row[value])) for row in own]
        axis.plot(*zip(*points), color=f"C{number}", label=label.format(seed), **style)


def by_place(rows: Rows, place: str, value: str) -> tuple[list[float], list[list[float]]]:
    """Returns the places of some rows in their order, and the values there of each seed, ``[seed][place]``."""
    curves: dict[Any, dict[float, float]] = {}
    for row in rows:
        curves.setdefault(row["seed"], {})[float(row[place])] = float(row[value])
    places = list(next(iter(curves.values())))
    return places, [[curve[at] for at in places] for curve in curves.values()]
