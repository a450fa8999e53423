"""Rows of numbers on a terminal or in a text file, and matplotlib figures in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlstack.envs.foundation.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


@contextmanager
def saved_figure(
    path: Path, title: str, panels: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.0), **sharing: Any
) -> Iterator[list[Axes]]:
    """Yields the panels of a figure, which is written atomically when the context ends.

    Args:
        path: path of the file, whose ending determines its format.
        title: title above all panels.
        panels: number of panels, at most ``columns`` in a row.
        size: size of a panel in inches.
        sharing: options ``sharex`` and ``sharey`` of matplotlib's ``subplots``.
    """
    from matplotlib import rc_context  # slow to import, and not always needed
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    with rc_context({"text.parse_math": False}):  # names may hold dollar signs
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        figure.suptitle(title, fontsize=11)
        places = list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)
        for axes in places[panels:]:
            axes.set_axis_off()
        for axes in places[:panels]:
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        yield places[:panels]
        for axes in places[:panels]:
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
        with replacing(path) as (partial,):
            figure.savefig(partial, dpi=120)
