"""Rows of numbers on a terminal or in a text file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_DECIMALS = {"success": 3, "collision": 3, "return": 2, "time": 2, "length": 1, "energy": 0}
_INTERVAL = ("success_low", "success_high")
_FOLDED = 24
"""The number of letters per line of a column of words on a narrow terminal."""


def print_rows(rows: Sequence[Mapping[str, Any]], stream: TextIO) -> None:
    """Prints rows that share their keys: with rich to a terminal, otherwise as aligned ASCII.

    ``success_low`` and ``success_high`` become one column; missing numbers are shown as ``-``. On a narrow terminal the
    first column and ``why`` are folded.
    """
    header, *lines = [_header(rows[0]), *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    if not stream.isatty():
        for line in (header, *lines):
            cells = (
                cell.ljust(width) if name in _words(header) else cell.rjust(width)
                for name, cell, width in zip(header, line, widths)
            )
            print("  ".join(cells).rstrip(), file=stream)
        return
    # Without a frame, the usual table just fits 80 columns.
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold cyan")
    least = [min(width, _FOLDED) if name in _words(header) else width for name, width in zip(header, widths)]
    for name, width in zip(header, least):
        words = name in _words(header)
        table.add_column(
            name, no_wrap=not words, overflow="fold", min_width=width, justify="left" if words else "right"
        )
    for line in lines:
        table.add_row(*line, style="bold" if line[0] == "all" else "")
    console = Console(file=stream)
    console.width = max(console.width, sum(least) + 2 * len(least))  # wrapped rather than truncated
    console.print(table)


def _words(header: Sequence[str]) -> tuple[str, str]:
    """Returns the columns of words, which are flush left."""
    return header[0], "why"


def aligned(rows: Sequence[Sequence[str]], indent: int = 0) -> Iterator[str]:
    """Yields rows of cells as lines of ASCII, with every column flush right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield (" " * indent + "  ".join(cell.rjust(width) for cell, width in zip(row, widths))).rstrip()


def _header(row: Mapping[str, Any]) -> list[str]:
    return ["95 % CI" if name == _INTERVAL[0] else name for name in row if name != _INTERVAL[1]]


def _cells(row: Mapping[str, Any]) -> list[str]:
    interval = "-" if row.get(_INTERVAL[0]) is None else f"{row[_INTERVAL[0]]:.3f}-{row[_INTERVAL[1]]:.3f}"
    return [interval if name == _INTERVAL[0] else _cell(name, row[name]) for name in row if name != _INTERVAL[1]]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.{_DECIMALS.get(name, 3)}f}" if isinstance(value, float) else str(value)
