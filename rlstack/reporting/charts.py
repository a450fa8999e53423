"""Line charts as SVG that takes its colours from the page, in the light and in the dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape
from matplotlib.ticker import EngFormatter, MaxNLocator

from .bands import Line, Series

WIDTH, HEIGHT = 400.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 10.0, 24.0
_DOTS = 15
"""Lines of no more points get a dot at each."""
Limits = tuple[float, float]


class Frame:
    """The place of a chart's lines: scales from values to the picture, and the axes around it."""

    def __init__(self, x: Limits, y: Limits, left: float = _LEFT) -> None:
        self.x, self.y, self.left = _widened(x), _widened(y), left

    def across(self, values: Series | float) -> Series:
        """Pixels from the left."""
        share = (np.asarray(values, dtype=float) - self.x[0]) / (self.x[1] - self.x[0])
        return self.left + share * (WIDTH - self.left - _RIGHT)

    def down(self, values: Series | float) -> Series:
        """Pixels from the top."""
        share = (np.asarray(values, dtype=float) - self.y[0]) / (self.y[1] - self.y[0])
        return HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP)

    def path(self, x: Series, y: Series, closed: bool = False) -> str:
        """Through these points, one after the other."""
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.across(x), self.down(y)))
        return f"M{points}Z" if closed else f"M{points}"

    def axes(self, names: Mapping[float, str] | None) -> str:
        """Grid lines and their numbers, or names."""
        right = WIDTH - _RIGHT
        rows = names or labelled(ticks(self.y, 5))
        parts = []
        for value, name in rows.items():
            y = float(self.down(value))
            parts.append(f'<path class="rule" d="M{self.left:g},{y:.1f}H{right:g}"/>')
            parts.append(f'<text class="end" x="{self.left - 6:g}" y="{y + 3.5:.1f}">{escape(name)}</text>')
        for value, name in labelled(ticks(self.x, 5)).items():
            x = float(self.across(value))
            side = "end" if x > right - 12 else "middle"
            parts.append(f'<text class="{side}" x="{x:.1f}" y="{HEIGHT - 8:g}">{name}</text>')
        return "".join(parts)

    @property
    def base(self) -> str:
        """The line below everything."""
        return f'<path class="axis" d="M{self.left:g},{HEIGHT - _BOTTOM:g}H{WIDTH - _RIGHT:g}"/>'

    @property
    def data(self) -> str:
        """For the script that reads values under the pointer."""
        inside = (self.left, WIDTH - _RIGHT, HEIGHT - _BOTTOM, _TOP)
        return " ".join(f"{number:.9g}" for number in (*inside, *self.x, *self.y))


def chart(
    title: str,
    lines: Sequence[Line],
    limits: Limits | None = None,
    step: bool = False,
    names: Mapping[float, str] | None = None,
) -> Markup:
    """A chart of lines, bands and single runs over frames.

    Args:
        title: for those who cannot see it.
        lines: those in the background first.
        limits: of the y axis; None: as the lines need.
        step: a value holds until the next.
        names: of values on the y axis, instead of numbers.
    """
    lines = [_stepped(line) for line in lines] if step else lines
    across = np.concatenate([line.x for line in lines] + [curve.frames for line in lines for curve in line.faint])
    shown = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    y = limits or _range(shown + [curve.values for line in lines for curve in line.faint])
    widest = max((len(name) for name in names.values()), default=0) if names else 0
    frame = Frame((0.0, float(across.max())), y, max(_LEFT, min(130.0, 14 + 6.2 * widest)))
    body = "".join(_drawn(line, frame) for line in lines)
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(title)}" '
        f'data-frame="{frame.data}">{frame.axes(names)}{body}{frame.base}</svg>'
    )


def _drawn(line: Line, frame: Frame) -> str:
    colour = "grey" if line.colour is None else f"c{line.colour}"
    parts = [f'<path class="faint" d="{frame.path(*curve)}"/>' for curve in line.faint if len(curve.frames) > 1]
    if line.low is not None and line.high is not None:
        x, y = np.concatenate([line.x, line.x[::-1]]), np.concatenate([line.low, line.high[::-1]])
        parts.append(f'<path class="band" d="{frame.path(x, y, closed=True)}"/>')
    parts.append(f'<path class="line" d="{frame.path(line.x, line.y)}" data-label="{escape(line.label)}"/>')
    if len(line.x) <= _DOTS and line.colour is not None:
        dots = zip(frame.across(line.x), frame.down(line.y))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in dots]
    for curve in line.faint:
        if len(curve.frames) == 1:
            ((across,), (down,)) = frame.across(curve.frames), frame.down(curve.values)
            parts.append(f'<circle class="faint" cx="{across:.1f}" cy="{down:.1f}" r="2"/>')
    return f'<g class="{colour}">{"".join(parts)}</g>'


def _stepped(line: Line) -> Line:
    faint = [
        curve._replace(frames=_corners(curve.frames)[1:], values=_corners(curve.values)[:-1]) for curve in line.faint
    ]
    if len(line.x) < 2:
        return line
    return Line(line.label, line.colour, _corners(line.x)[1:], _corners(line.y)[:-1], faint=faint)


def _corners(values: Series) -> Series:
    return np.repeat(values, 2)


def ticks(limits: Limits, most: int) -> list[float]:
    """Round numbers within the limits."""
    found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(*limits)
    slack = 1e-9 * (limits[1] - limits[0])
    return [float(value) for value in found if limits[0] - slack <= value <= limits[1] + slack]


def labelled(values: Sequence[float]) -> dict[float, str]:
    """Numbers with as many figures as it takes to tell each exactly."""
    apart = min((b - a for a, b in pairwise(values)), default=1.0)

    def exact(figures: int) -> bool:
        return all(abs(float(f"{value:.{figures}g}") - value) < 1e-3 * apart for value in values)

    figures = next((count for count in range(3, 9) if exact(count)), 9)
    return {value: brief(value, figures) for value in values}


def brief(value: float, figures: int = 4) -> str:
    """A number in a few letters: 0.25, 1.5k, 20M."""
    if abs(value) >= 1000:
        return EngFormatter(sep="")(float(f"{value:.{figures}g}"))
    return f"{value:.{figures}g}"


def _range(parts: Sequence[Series]) -> Limits:
    everything = np.concatenate([part[np.isfinite(part)] for part in parts] or [np.zeros(1)])
    if not len(everything):
        return 0.0, 1.0
    low, high = float(everything.min()), float(everything.max())
    margin = 0.04 * (high - low)
    return (low - margin if low < 0 else max(low - margin, 0.0)), high + margin


def _widened(limits: Limits) -> Limits:
    low, high = limits
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-300) and math.isfinite(high - low):
        return low, high
    half = 0.5 * abs(low) or 0.5
    return low - half, high + half
