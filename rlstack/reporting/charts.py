"""Charts as SVG with the page's colours, light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib.ticker import EngFormatter, MaxNLocator

from .blocks import shorter
from .differences import written
from .runs import Curve, Series, StoredRun

MOST = 200
"""Greatest number of points of a drawn line; longer curves average neighbours."""
WIDTH, HEIGHT = 400.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 22.0, 36.0
_DOTS = 15
"""Lines with at most this many points get a dot at each."""
Limits = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart, for a run or a group of runs.

    Attributes:
        label: label in the legend.
        colour: number of the colour; None is grey, for lines in the background.
        x, y: coordinates ``[N]``.
        low, high: bounds ``[N]`` of the band, or None.
        faint: the single runs behind the mean.
    """

    label: str
    colour: int | None
    x: Series
    y: Series
    low: Series | None = None
    high: Series | None = None
    faint: list[Curve] = field(default_factory=list)


def line_of(
    runs: Sequence[StoredRun], metric: str, label: str, colour: int | None, single: bool = False
) -> Line | None:
    """Returns the metric of one run, with ``_low`` and ``_high`` if they were logged, or mean and range over several.

    Returns None if no run has logged it. ``single`` adds the single runs behind the mean.
    """
    curves = [run.curves[metric] for run in runs if metric in run.curves]
    if not curves:
        return None
    if len(curves) > 1:
        grid, values = aligned(curves)
        faint = [thinned(curve) for curve in curves] if single else []
        return Line(label, colour, grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), faint)
    (curve,) = curves
    bounds = [
        next((run.curves[metric + end] for run in runs if metric + end in run.curves), None)
        for end in ("_low", "_high")
    ]
    low, high = (None if b is None or len(b.values) != len(curve.values) else thinned(b).values for b in bounds)
    return Line(label, colour, *thinned(curve), low, high)


def aligned(curves: Sequence[Curve]) -> tuple[Series, Series]:
    """Interpolates curves linearly onto common frames ``[N]``; the values are ``[C, N]``.

    A curve is NaN before its first and after its last point. The frames end where half of the curves have ended.
    """
    starts, ends = (sorted(float(curve.frames[place]) for curve in curves) for place in (0, -1))
    start, end = starts[len(curves) // 2], ends[(len(curves) - 1) // 2]
    if end <= start:  # the curves do not overlap: draw their points side by side
        return np.array([np.mean(starts)]), np.stack([curve.values[-1:] for curve in curves])
    longest = max(curves, key=lambda curve: len(curve.frames))
    inside = np.unique(longest.frames[(longest.frames > start) & (longest.frames < end)])
    grid = np.concatenate([[start], inside, [end]])
    if len(grid) > MOST:
        grid = np.linspace(start, end, MOST)
    values = [np.interp(grid, curve.frames, curve.values, left=np.nan, right=np.nan) for curve in curves]
    return grid, np.stack(values)


def thinned(curve: Curve) -> Curve:
    """Reduces a curve to at most :data:`MOST` points, each the mean of neighbours."""
    count = len(curve.frames)
    if count <= MOST:
        return curve
    cuts = np.linspace(0, count, MOST + 1).astype(int)[:-1]
    sizes = np.diff([*cuts, count])
    return Curve(*(np.add.reduceat(part, cuts) / sizes for part in curve))


# -- a chart -----------------------------------------------------------------------------------------------------


class ChartArea:
    """The area of a chart's lines, with the scales from values to pixels and the axes."""

    def __init__(self, x: Limits, y: Limits, left: float = _LEFT) -> None:
        self.x, self.y, self.left = _widened(x), _widened(y), left

    def across(self, values: Series | float) -> Series:
        """Returns pixels from the left."""
        share = (np.asarray(values, dtype=float) - self.x[0]) / (self.x[1] - self.x[0])
        return self.left + share * (WIDTH - self.left - _RIGHT)

    def down(self, values: Series | float) -> Series:
        """Returns pixels from the top."""
        share = (np.asarray(values, dtype=float) - self.y[0]) / (self.y[1] - self.y[0])
        return HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP)

    def path(self, x: Series, y: Series, closed: bool = False) -> str:
        """Returns an SVG path through these points in order."""
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(self.across(x), self.down(y)))
        return f"M{points}Z" if closed else f"M{points}"

    def axes(self, names: Mapping[float, str], called: tuple[str, str]) -> str:
        """Draws grid lines with their ``names``, the numbers below, and the titles ``called`` of the axes."""
        right, parts = WIDTH - _RIGHT, list[str]()
        parts.append(f'<text class="unit" x="0" y="10">{escape(called[1])}</text>')
        parts.append(f'<text class="unit end" x="{right:g}" y="{HEIGHT - 5:g}">{escape(called[0])}</text>')
        for value, name in names.items():
            y = float(self.down(value))
            parts.append(f'<path class="rule" d="M{self.left:g},{y:.1f}H{right:g}"/>')
            parts.append(f'<text class="end" x="{self.left - 6:g}" y="{y + 3.5:.1f}">{escape(name)}</text>')
        for value, name in labelled(ticks(self.x, 5)).items():
            x = float(self.across(value))
            side = "end" if x > right - 12 else "middle"
            parts.append(f'<text class="{side}" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 15:g}">{name}</text>')
        return "".join(parts)

    def drawn(self, line: Line) -> str:
        """Draws a line with its band, dots and single runs."""
        parts = [f'<path class="faint" d="{self.path(*curve)}"/>' for curve in line.faint if len(curve.frames) > 1]
        if line.low is not None and line.high is not None:
            x, y = np.concatenate([line.x, line.x[::-1]]), np.concatenate([line.low, line.high[::-1]])
            parts.append(f'<path class="band" d="{self.path(x, y, closed=True)}"/>')
        parts.append(f'<path class="line" d="{self.path(line.x, line.y)}" data-label="{escape(line.label)}"/>')
        if len(line.x) <= _DOTS and line.colour is not None:
            dots = zip(self.across(line.x), self.down(line.y))
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>' for x, y in dots]
        for curve in line.faint:
            if len(curve.frames) == 1:
                ((x,), (y,)) = self.across(curve.frames), self.down(curve.values)
                parts.append(f'<circle class="faint" cx="{x:.1f}" cy="{y:.1f}" r="2"/>')
        return f'<g class="{"grey" if line.colour is None else f"c{line.colour}"}">{"".join(parts)}</g>'


def chart(
    title: str,
    lines: Sequence[Line],
    limits: Limits | None = None,
    step: bool = False,
    names: Mapping[float, str] | None = None,
    axes: tuple[str, str] | None = None,
) -> Markup:
    """Draws a chart of lines, bands and single runs over frames.

    Args:
        title: alternative text.
        lines: the lines, background first.
        limits: limits of the y axis; None fits them to the lines.
        step: whether a value holds until the next.
        names: names of values on the y axis, instead of numbers.
        axes: titles of the axes with units; None: frames, and :func:`quantity` of the title.
    """
    lines = [_stepped(line) for line in lines] if step else lines
    faint = [curve for line in lines for curve in line.faint]
    across = np.concatenate([line.x for line in lines] + [curve.frames for curve in faint])
    shown = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    y = limits or _range(shown + [curve.values for curve in faint])
    names = names or labelled(ticks(_widened(y), 5))
    widest = max(map(len, names.values()), default=0)
    area = ChartArea((0.0, float(across.max())), y, max(_LEFT, min(130.0, 12 + 6.2 * widest)))
    inside = (area.left, WIDTH - _RIGHT, HEIGHT - _BOTTOM, _TOP, *area.x, *area.y)  # read by the page's script
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(title)}" '
        f'data-frame="{" ".join(f"{value:.9g}" for value in inside)}">'
        f"{area.axes(names, axes or ('frames', quantity(title)))}{''.join(map(area.drawn, lines))}"
        f'<path class="axis" d="M{area.left:g},{HEIGHT - _BOTTOM:g}H{WIDTH - _RIGHT:g}"/></svg>'
    )


_QUANTITIES = {
    **dict.fromkeys(("success", "collision", "win_rate"), "share of episodes"),
    **dict.fromkeys(("return", "discounted_return"), "return per episode, sum of rewards"),
    **dict.fromkeys(("near_miss", "lost", "draw"), "share of episodes"),
    **{"length": "env steps per episode", "time": "s per episode", "energy": "J per episode"},
    **{"path": "m per episode", "closest": "m, the least of an episode"},
    **dict.fromkeys(("rule_time", "violation_time"), "s per episode"),
    **{"episodes": "episodes since the last row", "updates": "gradient steps so far", "stage": "stage"},
    **{"level": "mean level of the episodes", "frames_per_second": "frames/s"},
    **{"cpu_percent": "% of a core", "gpu_percent": "% of the GPU"},
    **{"lr": "learning rate", "lr_actor": "learning rate", "lr_critic": "learning rate"},
    **{"epsilon": "probability of a random action", "clip": "bound of the probability ratio's distance from 1"},
    **{"entropy": "entropy, nats", "target_entropy": "entropy, nats", "kl": "KL divergence, nats"},
    **{"clipped": "share of samples", "saturation": "share of actions"},
    **dict.fromkeys(("predicted", "target"), "mean value, discounted return"),
}
"""Titles of axes by the last part of a metric's name."""


def quantity(metric: str) -> str:
    """Returns the title of a metric's axis with its unit: for ``eval/success``, ``share of episodes``."""
    group, _, name = metric.rpartition("/")
    name = name.partition("_level")[0]
    if name.startswith("reward_"):
        return "sum of this term per episode"
    if group == "grad":
        return "norm of the gradient"
    if metric == "time/frames_per_second":
        return "frames/s without evaluations, mean since the start"
    if metric == "system/frames_per_second":
        return "frames/s without evaluations, since the last row"
    if name.endswith(("_seconds", "seconds")):
        return "s"
    if name.endswith(("_mb", "_gb")):
        return name[-2:].upper()
    words = name.replace("_", " ")
    usual = {"loss": f"{words} loss", "train": f"{words} per episode", "eval": f"{words} per episode"}.get(group, words)
    return usual if group == "loss" else _QUANTITIES.get(name, usual)


def _stepped(line: Line) -> Line:
    if len(line.x) < 2:
        return line
    faint = [Curve(np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]) for x, y in line.faint]
    x, y = np.repeat(line.x, 2)[1:], np.repeat(line.y, 2)[:-1]
    return replace(line, x=x, y=y, low=None, high=None, faint=faint)


def ticks(limits: Limits, most: int) -> list[float]:
    """Returns round numbers within the limits."""
    found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(*limits)
    slack = 1e-9 * (limits[1] - limits[0])
    return [float(value) for value in found if limits[0] - slack <= value <= limits[1] + slack]


def labelled(values: Sequence[float]) -> dict[float, str]:
    """Formats numbers with as few digits as represent each exactly."""
    apart = min((b - a for a, b in pairwise(values)), default=1.0)

    def exact(figures: int) -> bool:
        return all(abs(float(f"{value:.{figures}g}") - value) < 1e-3 * apart for value in values)

    figures = next((count for count in range(3, 9) if exact(count)), 9)
    return {value: _brief(value, figures) for value in values}


def _brief(value: float, figures: int = 4) -> str:
    """Formats a number briefly: 0.25, 1.5k, 20M."""
    if abs(value) >= 1000:
        return EngFormatter(sep="")(float(f"{value:.{figures}g}")).replace("\N{MINUS SIGN}", "-")
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


# -- parallel coordinates ----------------------------------------------------------------------------------------

_TALL, _FIRST, _LAST = 300.0, 44.0, 282.0  # px: height of the picture, and the ends of an axis
_MARGIN, _APART = 70.0, 150.0
_CLOSE = 11.0 / (_LAST - _FIRST)
"""Least distance between two legible marks, as a share of the axis."""
_WIDE = 50.0
"""Positive numbers that span this ratio get a logarithmic axis."""


class ParallelAxis:
    """A vertical axis: positions of values in [0, 1] from below, and marks beside it.

    Numbers have a linear or logarithmic scale; other values have one position each.
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
        """Returns the position of a value on the axis."""
        if self.scale == "names":
            return (self._names.index(written(value)) + 0.5) / len(self._names)
        if self.scale == "log":
            return (math.log(value) - math.log(self._low)) / (math.log(self._high) - math.log(self._low))
        return (value - self._low) / (self._high - self._low)

    def marks(self) -> list[tuple[float, str]]:
        """Returns positions with the text beside them."""
        if self.scale == "names":
            return [((index + 0.5) / len(self._names), shorter(name, 18)) for index, name in enumerate(self._names)]
        chosen = sorted(set(self._values))
        if len(chosen) > 6 and self.scale == "log":
            powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
            chosen = [10.0**power for power in powers if self._low <= 10.0**power <= self._high]
        elif len(chosen) > 6:
            chosen = ticks((self._low, self._high), 6)
        return [(self.place(value), _brief(value)) for value in chosen]

    def drawn(self, x: float, last: bool = False) -> str:
        """Draws the axis ``x`` pixels from the left; the last one has its marks on the right, clear of lines."""
        name = self.name if len(self.name) <= 22 else f"…{self.name[-21:]}"
        parts = [f'<path class="axis" d="M{x:g},{_FIRST:g}V{_LAST:g}"/>']
        parts.append(f'<text class="middle name" x="{x:g}" y="{_FIRST - 22:g}">{escape(name)}</text>')
        side = f'class="mark" x="{x + 6:g}"' if last else f'class="end mark" x="{x - 6:g}"'
        free = -1.0
        for place, text in sorted(self.marks()):
            if place < free:
                continue  # it would overlap the mark below
            free = place + _CLOSE
            parts.append(f'<text {side} y="{_from_top(place) + 3.5:.1f}">{escape(text)}</text>')
        return "".join(parts)


def parallel(keys: Sequence[str], rows: Sequence[Sequence[Any]], score: str, scores: Sequence[float]) -> Markup:
    """Draws parallel coordinates: an axis for every key and one for the score, a line for every group of runs.

    Args:
        keys: names of the options that differ.
        rows: the values of each group, one for every key.
        score: name of the last axis.
        scores: score of each group; it colours the lines, the best in front.
    """
    axes = [*(ParallelAxis(key, [row[index] for row in rows]) for index, key in enumerate(keys))]
    axes.append(ParallelAxis(score, list(scores)))
    low, high = min(scores), max(scores)
    width = 2 * _MARGIN + _APART * len(keys)
    lines = []
    for row, result in sorted(zip(rows, scores), key=lambda entry: entry[1]):
        places = [axis.place(value) for axis, value in zip(axes, (*row, result))]
        points = [(_MARGIN + _APART * index, _from_top(place)) for index, place in enumerate(places)]
        path = f"M{points[0][0]:g},{points[0][1]:.1f}"
        for (x0, y0), (x1, y1) in pairwise(points):
            bend = 0.4 * (x1 - x0)
            path += f"C{x0 + bend:g},{y0:.1f} {x1 - bend:g},{y1:.1f} {x1:g},{y1:.1f}"
        share = (result - low) / (high - low) if high > low else 1.0
        told = ", ".join(f"{key} {written(value)}" for key, value in zip(keys, row))
        lines.append(
            f'<path class="sweep" style="--share:{share:.0%}" d="{path}">'
            f"<title>{escape(told)}: {escape(score)} {result:.4g}</title></path>"
        )
    drawn = "".join(axis.drawn(_MARGIN + _APART * index, index == len(keys)) for index, axis in enumerate(axes))
    return Markup(
        f'<svg class="chart parallel" viewBox="0 0 {width:g} {_TALL:g}" style="min-width:{0.62 * width:.0f}px;'
        f'max-width:{1.15 * width:.0f}px" role="img" aria-label="parallel coordinates">{"".join(lines)}{drawn}</svg>'
    )


def _from_top(place: float) -> float:
    return _LAST - place * (_LAST - _FIRST)
