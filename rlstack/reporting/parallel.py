"""Parallel coordinates: what was swept against what came of it, a line for every group of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from .charts import brief, ticks
from .differences import shorter, written

_HEIGHT, _TOP, _BOTTOM = 300.0, 44.0, 282.0
_LEFT, _APART = 70.0, 150.0
_WIDE = 50.0
"""Positive numbers that span this ratio are shown on a logarithmic axis."""


class Axis:
    """A vertical axis: places of values in [0, 1] from below, and what is written beside it.

    Numbers have a scale, or a place each in their order where there are only a few; anything else has a place each.
    """

    def __init__(self, name: str, values: Sequence[Any]) -> None:
        self.name, self._values = name, values
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
        self.scale = "numbers" if numbers and len(set(values)) > 1 else "names"
        if self.scale == "numbers":
            self._low, self._high = float(min(values)), float(max(values))
            if self._low > 0 and self._high / self._low >= _WIDE:
                self.scale = "log"
        self._names = list(dict.fromkeys(map(written, values)))

    def place(self, value: Any) -> float:
        """Of a value."""
        if self.scale == "names":
            return (self._names.index(written(value)) + 0.5) / len(self._names)
        if self.scale == "log":
            return (math.log(value) - math.log(self._low)) / (math.log(self._high) - math.log(self._low))
        return (value - self._low) / (self._high - self._low)

    def marks(self) -> list[tuple[float, str]]:
        """Places and what stands there."""
        if self.scale == "names":
            return [((index + 0.5) / len(self._names), shorter(name, 18)) for index, name in enumerate(self._names)]
        chosen = sorted(set(self._values))
        if len(chosen) > 6 and self.scale == "log":
            powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
            chosen = [10.0**power for power in powers if self._low <= 10.0**power <= self._high]
        elif len(chosen) > 6:
            chosen = ticks((self._low, self._high), 6)
        return [(self.place(value), brief(value)) for value in chosen]


def parallel(keys: Sequence[str], rows: Sequence[Sequence[Any]], score: str, scores: Sequence[float]) -> Markup:
    """The picture.

    Args:
        keys: names of what was swept, an axis each.
        rows: a value for every key, of each group.
        score: name of the last axis.
        scores: of each group; lines are coloured by it, the best in front.
    """
    axes = [Axis(key, [row[index] for row in rows]) for index, key in enumerate(keys)]
    last = Axis(score, list(scores))
    low, high = min(scores), max(scores)
    width = 2 * _LEFT + _APART * len(axes)
    lines = []
    for row, result in sorted(zip(rows, scores), key=lambda entry: entry[1]):
        places = [axis.place(value) for axis, value in zip(axes, row)] + [last.place(result)]
        points = [(_LEFT + _APART * index, _down(place)) for index, place in enumerate(places)]
        share = (result - low) / (high - low) if high > low else 1.0
        told = ", ".join(f"{key} {written(value)}" for key, value in zip(keys, row))
        lines.append(
            f'<path class="sweep" style="--share:{share:.0%}" d="{_smooth(points)}">'
            f"<title>{escape(told)}: {escape(score)} {result:.4g}</title></path>"
        )
    drawn = "".join(_axis(axis, _LEFT + _APART * index) for index, axis in enumerate([*axes, last]))
    return Markup(
        f'<svg class="chart parallel" viewBox="0 0 {width:g} {_HEIGHT:g}" style="min-width:{0.62 * width:.0f}px;'
        f'max-width:{1.15 * width:.0f}px" role="img" aria-label="parallel coordinates">{"".join(lines)}{drawn}</svg>'
    )


def _axis(axis: Axis, x: float) -> str:
    name = axis.name if len(axis.name) <= 22 else f"…{axis.name[-21:]}"
    parts = [f'<path class="axis" d="M{x:g},{_TOP:g}V{_BOTTOM:g}"/>']
    parts.append(f'<text class="middle name" x="{x:g}" y="{_TOP - 22:g}">{escape(name)}</text>')
    for place, text in axis.marks():
        parts.append(f'<text class="end mark" x="{x - 6:g}" y="{_down(place) + 3.5:.1f}">{escape(text)}</text>')
    return "".join(parts)


def _down(place: float) -> float:
    return _BOTTOM - place * (_BOTTOM - _TOP)


def _smooth(points: Sequence[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:g},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = 0.4 * (x1 - x0)
        path += f"C{x0 + bend:g},{y0:.1f} {x1 - bend:g},{y1:.1f} {x1:g},{y1:.1f}"
    return path
