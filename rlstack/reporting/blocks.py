"""The blocks of a page; the template determines their appearance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class DataTable:
    """A table; text is escaped, :class:`Markup` is not.

    Attributes:
        text: number of leading columns with words instead of numbers.
        fold: line that opens the table; None: the table is always visible.
        named: whether the first column holds names of runs, which may be long; a row does not repeat the leading words
            of the previous one.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    text: int = 1
    caption: str = ""
    fold: str | None = None
    named: bool = False

    @classmethod
    def of_runs(
        cls, head: Sequence[Any], rows: Sequence[Sequence[Any]], several: bool, text: int = 1, **more: Any
    ) -> DataTable:
        """Makes a table whose first column names the run; omits the column unless there are several runs."""
        cut = 0 if several else 1
        return cls(head[cut:], [row[cut:] for row in rows], text - cut, named=True, **more)

    @property
    def shown(self) -> Iterator[Sequence[Any]]:
        """Yields the rows as they are drawn."""
        before: Sequence[Any] = ()
        for row in self.rows:
            same = [self.named and cell == other for cell, other in zip(row[: self.text], before)]
            repeated = (same + [False]).index(False)
            yield [*[""] * repeated, *row[repeated:]]
            before = row


@dataclass(frozen=True)
class Panels:
    """Charts side by side.

    Attributes:
        items: charts (:mod:`rlstack.reporting.charts`).
        more: further charts, which are folded.
        fold: line that opens these; an empty string shows their number.
    """

    kind: ClassVar[str] = "panels"
    items: Sequence[Any]
    more: Sequence[Any] = ()
    caption: str = ""
    big: bool = False
    fold: str = ""


@dataclass(frozen=True)
class Paragraphs:
    """Lines of text."""

    kind: ClassVar[str] = "text"
    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Preformatted text in a folded box."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True)
class Medium:
    """A film or picture: its element (``video`` or ``img``) and its address."""

    caption: str
    source: str
    tag: str


@dataclass(frozen=True)
class Films:
    """Films and pictures side by side."""

    kind: ClassVar[str] = "films"
    media: Sequence[Medium]


Block = DataTable | Panels | Paragraphs | Code | Films


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The anchor for links within the page."""
        return self.title.lower().replace(" ", "-")


def number(value: Any) -> str:
    """Formats a number with four digits, or with all digits before the decimal point; anything else is a dash."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def interval(bounds: Iterable[Any] | None) -> str:
    """Formats two numbers as an interval."""
    return "–" if bounds is None else " to ".join(number(bound) for bound in bounds)


def duration(seconds: float) -> str:
    """Formats seconds in the largest unit that gives at least two: ``48 s``, ``12 min``, ``3.4 h``, ``5 days``."""
    sizes = {"days": 86400, "h": 3600, "min": 60}
    unit, size = next(((unit, size) for unit, size in sizes.items() if seconds >= 2 * size), ("s", 1))
    return f"{seconds / size:.3g} {unit}"


def breakable(name: str) -> Markup:
    """Lets the name of a run break only after ``_``, ``-`` and ``/``, not inside a word or number."""
    return name if isinstance(name, Markup) else Markup("<wbr>").join(re.split(r"(?<=[_/-])(?=[^_/-])", name))


def shorter(text: str, most: int) -> str:
    """Returns the text, with its end cut off if it is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
