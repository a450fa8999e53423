"""Rows of numbers on a terminal or in a text file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

OF_SUCCESSES = ("time", "energy", "path")
"""Numbers of an evaluation that are means over its successful episodes alone."""
_DECIMALS = {"return": 2, "time": 2, "length": 1, "energy": 0}
_DECIMALS |= dict.fromkeys(("rating", "deviation", "conservative", "fitted_elo"), 0)
_INTERVAL = ("success_low", "success_high")
_FOLDED = 12
"""The least number of letters per line of the first column on a narrow terminal."""


def print_rows(rows: Sequence[Mapping[str, Any]], stream: TextIO) -> None:
    """Prints rows that share their keys: with rich to a terminal, otherwise as aligned ASCII.

    ``success_low`` and ``success_high`` become one column; missing numbers are shown as ``-``. On a narrow terminal
    the columns move together, and the first one is folded.
    """
    names = [name for name in rows[0] if name != _INTERVAL[1]]
    header = ["95 % CI" if name == _INTERVAL[0] else name for name in names]
    lines = [[_cell(name, row) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    if not stream.isatty():
        for line in (header, *lines):
            cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))
            print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip(), file=stream)
        return
    console = Console(file=stream)
    gap = 1 if sum(widths) + 2 * len(widths) <= console.width else 0
    least = [min(widths[0], _FOLDED), *widths[1:]]
    # Without a frame, the usual table just fits 80 columns.
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), header_style="bold cyan")
    # Text, not str: rich interprets square brackets in a str as markup.
    table.add_column(Text(header[0]), overflow="fold", min_width=least[0])
    for name, width in zip(header[1:], least[1:]):
        table.add_column(Text(name), no_wrap=True, min_width=width, justify="right")
    for line in lines:
        table.add_row(*map(Text, line), style="bold" if line[0] == "all" else "")
    console.width = max(console.width, sum(least) + (1 + gap) * len(least))  # wrapped rather than truncated
    console.print(table)


def aligned(rows: Sequence[Sequence[str]], indent: int = 0) -> Iterator[str]:
    """Yields rows of cells as lines of ASCII, with every column flush right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield (" " * indent + "  ".join(cell.rjust(width) for cell, width in zip(row, widths))).rstrip()


def _cell(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if value is None:
        return "-"
    if name == _INTERVAL[0]:
        return f"{value:.3f}-{row[_INTERVAL[1]]:.3f}"
    if isinstance(value, float):
        return f"{value:.{_DECIMALS.get(name, 3)}f}"
    return "".join(sign if sign.isprintable() else "?" for sign in str(value))  # a terminal obeys control characters
