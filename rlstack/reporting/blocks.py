"""The blocks that a page is made of; the template says how each of them looks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from markupsafe import Markup


@dataclass(frozen=True)
class DataTable:
    """Rows of cells; text is escaped, :class:`Markup` is not.

    Attributes:
        text: how many of the first columns hold words, not numbers.
        fold: a line that shows the table when it is opened; None: always shown.
        named: the first column holds names of runs, which may be long; words at the beginning of a row are not repeated
            in the next one.
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
        """A table whose first column names the run; without this column where there are not several runs."""
        cut = 0 if several else 1
        return cls(head[cut:], [row[cut:] for row in rows], text - cut, named=True, **more)

    @property
    def shown(self) -> Iterator[Sequence[Any]]:
        """The rows as they are drawn."""
        before: Sequence[Any] = ()
        for row in self.rows:
            same = [self.named and cell == other for cell, other in zip(row[: self.text], before)]
            repeated = (same + [False]).index(False)
            yield [*[""] * repeated, *row[repeated:]]
            before = row


@dataclass(frozen=True)
class Panels:
    """Charts side by side, with one legend: ``(label, class of the colour)``.

    Attributes:
        more: further charts, which are folded.
        fold: the line that shows these when it is opened; empty: how many they are.
    """

    kind: ClassVar[str] = "panels"
    items: Sequence[tuple[str, Markup]]
    more: Sequence[tuple[str, Markup]] = ()
    legend: Sequence[tuple[str, str]] = ()
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
    """Text as it is, in a box that opens."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True)
class Drawing:
    """One wide drawing, which scrolls inside its box."""

    kind: ClassVar[str] = "picture"
    drawing: Markup
    caption: str = ""


@dataclass(frozen=True)
class Medium:
    """A film or picture: the element that shows it (``video`` or ``img``) and a ``data:`` address with all of it."""

    caption: str
    source: str
    tag: str


@dataclass(frozen=True)
class Films:
    """Films and pictures side by side."""

    kind: ClassVar[str] = "films"
    media: Sequence[Medium]


Block = DataTable | Panels | Paragraphs | Code | Drawing | Films


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The anchor of links within the page."""
        return self.title.lower().replace(" ", "-")


def number(value: float | None) -> str:
    """Four figures, or all of them before the decimal point."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def interval(bounds: Iterable[float] | None) -> str:
    """Two numbers as from and to."""
    return "–" if bounds is None else " to ".join(number(bound) for bound in bounds)


def duration(seconds: float) -> str:
    """Seconds for people: ``48 s``, ``12 min``, ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def breakable(name: str) -> Markup:
    """The name of a run, which may break behind ``_``, ``-`` and ``/``, and so not inside a word or number."""
    return name if isinstance(name, Markup) else Markup("<wbr>").join(re.split(r"(?<=[_/-])(?=[^_/-])", name))


def shorter(text: str, most: int) -> str:
    """The text, its end left out where it is too long."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
