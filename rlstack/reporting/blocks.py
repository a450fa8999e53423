"""What a page is made of; how each of them looks is the template's business."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from markupsafe import Markup

from .media import Medium


@dataclass(frozen=True)
class Table:
    """Rows of cells; text is escaped, :class:`Markup` is not.

    Attributes:
        text: how many of the first columns hold words, not numbers.
        fold: shown as this line, with the table inside; None: always shown.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    text: int = 1
    caption: str = ""
    fold: str | None = None


@dataclass(frozen=True)
class Panels:
    """Charts side by side, with one legend: ``(label, class of the colour)``; those in ``more`` are folded."""

    kind: ClassVar[str] = "panels"
    items: Sequence[tuple[str, Markup]]
    more: Sequence[tuple[str, Markup]] = ()
    legend: Sequence[tuple[str, str]] = ()
    caption: str = ""
    big: bool = False


@dataclass(frozen=True)
class Text:
    """Lines of text, as a list where there are several."""

    kind: ClassVar[str] = "text"
    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Text as it is, in a box that opens."""

    kind: ClassVar[str] = "code"
    title: str
    text: str


@dataclass(frozen=True)
class Picture:
    """One wide drawing, which scrolls inside its box."""

    kind: ClassVar[str] = "picture"
    drawing: Markup
    caption: str = ""


@dataclass(frozen=True)
class Films:
    """Films and pictures side by side."""

    kind: ClassVar[str] = "films"
    media: Sequence[Medium]


Block = Table | Panels | Text | Code | Picture | Films


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def id(self) -> str:
        """For links within the page."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Tile:
    """A figure at the head of the page, and a line about it."""

    name: str
    value: str
    about: str = ""


def number(value: float | None) -> str:
    """Four figures, or all of them before the decimal point."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def interval(bounds: Iterable[float] | None) -> str:
    """Two numbers as from and to."""
    return "–" if bounds is None else " to ".join(number(bound) for bound in bounds)
