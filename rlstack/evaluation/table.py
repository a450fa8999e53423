"""Rows of numbers on a terminal or in a text file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

_DECIMALS = {"success": 3, "collision": 3, "return": 2, "time": 2, "length": 1, "energy": 0}
_INTERVAL = ("success_low", "success_high")


def print_rows(rows: Sequence[Mapping[str, Any]], stream: TextIO) -> None:
    """Prints rows that share their keys: with rich to a terminal, else as aligned plain ASCII.

    ``success_low`` and ``success_high`` become one column; missing numbers are shown as ``-``.
    """
    header, *lines = [_header(rows[0]), *(_cells(row) for row in rows)]
    if not stream.isatty():
        widths = [max(map(len, column)) for column in zip(header, *lines)]
        for line in (header, *lines):
            first, *rest = (cell.rjust(width) for cell, width in zip(line, widths))
            print(first.strip().ljust(widths[0]), *rest, sep="  ", file=stream)
        return
    table = Table(*(name for name in header))
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines:
        table.add_row(*line, end_section=line is lines[-2] if len(lines) > 1 else False)
    Console(file=stream).print(table)


def _header(row: Mapping[str, Any]) -> list[str]:
    return ["95 % interval" if name == _INTERVAL[0] else name for name in row if name != _INTERVAL[1]]


def _cells(row: Mapping[str, Any]) -> list[str]:
    interval = "-" if row.get(_INTERVAL[0]) is None else f"{row[_INTERVAL[0]]:.3f} to {row[_INTERVAL[1]]:.3f}"
    return [interval if name == _INTERVAL[0] else _cell(name, row[name]) for name in row if name != _INTERVAL[1]]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.{_DECIMALS.get(name, 3)}f}" if isinstance(value, float) else str(value)
