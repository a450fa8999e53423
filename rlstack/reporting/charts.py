"""Charts as SVG, drawn by matplotlib with the page's colours, light and dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from .blocks import shorter
from .differences import written
from .runs import Curve, Series, StoredRun

MOST = 200
"""Greatest number of points of a drawn line; longer curves average neighbours."""
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
    having = [run for run in runs if metric in run.curves]
    if not having:
        return None
    curves = [run.curves[metric] for run in having]
    if len(curves) > 1:
        grid, values = aligned(curves)
        faint = [thinned(curve) for curve in curves] if single else []
        return Line(label, colour, grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), faint)
    bounds = [having[0].curves.get(metric + end) for end in ("_low", "_high")]
    low, high = (None if b is None or len(b.values) != len(curves[0].values) else thinned(b).values for b in bounds)
    return Line(label, colour, *thinned(curves[0]), low, high)


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
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(400 / 72, 240 / 72), layout="constrained")
        area = figure.subplots()
        for line in lines:
            colour = _GREY if line.colour is None else _COLOURS[line.colour]
            options: dict[str, Any] = {"color": colour, "drawstyle": "steps-post" if step else "default"}
            if line.low is not None and line.high is not None and not step:
                area.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
            for curve in line.faint:
                marker = "o" if len(curve.frames) == 1 else ""
                area.plot(*curve, alpha=0.4, linewidth=0.8, marker=marker, markersize=4, **options)
            background = line.colour is None
            marker = "o" if len(line.x) <= _DOTS and not background else ""
            gid = "" if background else f"line:{line.label}"
            area.plot(line.x, line.y, linewidth=1 if background else 1.8, marker=marker, gid=gid, **options)
        along, up = axes or ("frames", quantity(title))
        area.set_title(up, loc="left", style="italic")
        area.set_xlabel(along, loc="right", style="italic")
        area.grid(axis="y")
        low, high = limits or area.get_ylim()
        positive = all(value >= 0 for value in area.dataLim.intervaly)
        area.set(xlim=(0, max(area.dataLim.x1, 1e-9)), ylim=(max(low, 0.0) if positive else low, high))
        for axis in (area.xaxis, area.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
            axis.set_major_formatter(lambda value, _: brief(value))
        if names:
            area.set_yticks(list(names), list(names.values()))
        return _svg(figure, title)


def brief(value: float) -> str:
    """Formats a number briefly: 0.25, 1.5k, 20M."""
    return EngFormatter(sep="")(value).replace("\N{MINUS SIGN}", "-") if abs(value) >= 1000 else f"{value:.6g}"


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


# -- parallel coordinates ----------------------------------------------------------------------------------------


def parallel(keys: Sequence[str], rows: Sequence[Sequence[Any]], score: str, scores: Sequence[float]) -> Markup:
    """Draws parallel coordinates: an axis for every key and one for the score, a line for every group of runs.

    Args:
        keys: names of the options that differ.
        rows: the values of each group, one for every key.
        score: name of the last axis.
        scores: score of each group; it colours the lines, the best in front.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=((140 + 150 * len(keys)) / 72, 300 / 72))
        area = figure.add_axes((0, 0, 1, 1), xlim=(-0.5, len(keys) + 0.5), ylim=(-0.08, 1.15))
        area.set_axis_off()
        places = []
        for x, (name, values) in enumerate(zip([*keys, score], [*zip(*rows), scores])):
            there, marks = axis_of(values)
            places.append(there)
            area.plot([x, x], [0, 1], color=_DIM, linewidth=1)
            area.text(x, 1.08, name if len(name) <= 22 else f"…{name[-21:]}", ha="center", weight="bold", color=_INK)
            side = {"ha": "left", "x": x + 0.04} if x == len(keys) else {"ha": "right", "x": x - 0.04}
            for place, text in marks:
                area.text(y=place, s=text, va="center", color=_INK, **side)  # type: ignore[arg-type]
        for row, result, *points in sorted(zip(rows, scores, *places), key=lambda entry: entry[1]):
            corners: list[tuple[float, float]] = [(0.0, points[0])]
            for x, (y0, y1) in enumerate(pairwise(points)):
                corners += [(x + 0.4, y0), (x + 0.6, y1), (x + 1.0, y1)]
            outline = Outline(corners, [Outline.MOVETO, *[Outline.CURVE4] * (len(corners) - 1)])
            options = ", ".join(f"{key} {written(value)}" for key, value in zip(keys, row))
            colour = f"#c001{round(100 * points[-1]):02x}"
            gid = f"title:{options}: {score} {result:.4g}"
            area.add_patch(PathPatch(outline, fill=False, edgecolor=colour, linewidth=1.8, gid=gid))
        width = 72 * figure.get_size_inches()[0]
        return _svg(figure, "parallel coordinates", f"min-width:{0.62 * width:.0f}px;max-width:{1.15 * width:.0f}px")


def axis_of(values: Sequence[Any], most: int = 6) -> tuple[list[float], list[tuple[float, str]]]:
    """Returns the places of values on a vertical axis, in [0, 1], and its marks.

    Numbers have a linear or, if they span a ratio of 50, a logarithmic scale; other values have one place each.
    """
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    chosen = sorted(set(values)) if numbers else []
    if len(chosen) < 2:
        names = list(dict.fromkeys(map(written, values)))
        marks = [((index + 0.5) / len(names), shorter(name, 18)) for index, name in enumerate(names)]
        return [marks[names.index(written(value))][0] for value in values], marks
    low, high = chosen[0], chosen[-1]
    logarithmic = low > 0 and high / low >= 50
    scaled = np.log if logarithmic else np.asarray
    if len(chosen) > most:
        locator = LogLocator() if logarithmic else MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])
        chosen = [value for value in locator.tick_values(low, high) if low <= value <= high * (1 + 1e-9)]
    ends = scaled([low, high])
    places, marked = ((scaled(part) - ends[0]) / (ends[1] - ends[0]) for part in (values, chosen))
    legible: list[tuple[float, str]] = []
    for place, value in zip(marked.tolist(), chosen):
        if not legible or place - legible[-1][0] > 0.045:
            legible.append((place, brief(float(f"{value:.4g}"))))
    return places.tolist(), legible


# -- SVG ---------------------------------------------------------------------------------------------------------

_COLOURS = [f"#c0000{index}" for index in range(8)]
_GREY, _DIM, _RULE, _INK = "#c00010", "#c00011", "#c00012", "#c00013"
_VARIABLES = {
    **{colour: f"var(--c{index})" for index, colour in enumerate(_COLOURS)},
    **{_GREY: "var(--grey)", _DIM: "var(--dim)", _RULE: "var(--rule)", _INK: "var(--ink)"},
    **{f"#c001{share:02x}": f"color-mix(in oklab, var(--high) {share}%, var(--low))" for share in range(101)},
}
"""Colours that no chart has otherwise, and what the page puts in their place: its own colours, light or dark."""
_REPLACED = {
    r"<style.*?</style>|<!--.*?-->": "",
    r'font(-family|-size)?: [^;"]*(;|(?="))': "",
    r'transform="rotate\(-0 [^"]*"': "",
    r'<g id="line:([^"]*)">': r'<g data-label="\1">',
    r'<g id="title:([^"]*)">': r'<g class="sweep"><title>\1</title>',
    r'<g id="[^"]*"/>': "",
    r'<g id="[^"]*">': "<g>",
    r"\s+": " ",
}
"""What matplotlib writes into every file, and what stands in its place, as one page holds many."""
_STYLE: Any = {
    **{"svg.fonttype": "none", "svg.hashsalt": "rlstack", "text.parse_math": False, "font.size": 11},
    **{"axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False, "axes.edgecolor": _DIM},
    **{"axes.titlesize": 11, "axes.labelsize": 11, "axes.titlecolor": _DIM, "axes.labelcolor": _DIM},
    **{"xtick.color": _DIM, "ytick.color": _DIM, "xtick.major.size": 0, "ytick.major.size": 0, "grid.color": _RULE},
    **{"lines.markersize": 4, "lines.solid_joinstyle": "round", "axes.ymargin": 0.04, "axes.unicode_minus": False},
}


def _svg(figure: Figure, title: str, style: str = "") -> Markup:
    """Returns a figure as an element of the page: colours and fonts are the page's, and lines carry their labels."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True)
    width, height = 72 * figure.get_size_inches()
    area = figure.axes[0]
    left, bottom, right, top = np.asarray(area.get_position().extents) * (width, height, width, height)
    frame = (left, right, height - bottom, height - top, *area.get_xlim(), *area.get_ylim())
    body = text.getvalue().partition("</metadata>")[2].removesuffix("</svg>\n")
    for pattern, replacement in _REPLACED.items():
        body = re.sub(pattern, replacement, body, flags=re.DOTALL)
    body = re.sub(r"#c00[01][0-9a-f]{2}", lambda colour: _VARIABLES.get(colour[0], colour[0]), body)
    body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), body)
    numbers = " ".join(f"{value:.9g}" for value in frame)  # the page's script reads values under the pointer by these
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}" '
        f'style="{style}" data-frame="{numbers}">{body}</svg>'
    )
