"""Charts as data, which the page draws with plotly: lines of runs and groups, and parallel coordinates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import numpy as np

from .blocks import shorter
from .differences import GroupComparison, written
from .runs import CPU_SECONDS, SECONDS, Curve, Series

MOST = 200
"""Greatest number of points of a drawn line; longer curves average neighbours."""
_LOGARITHMIC = 50.0
"""Ratio of the largest to the smallest value from which an axis of options is logarithmic."""
Limits = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line of a chart, for a run, the mean over a group, or anything else.

    Attributes:
        label: label in the legend, and under the pointer.
        colour: number of the colour; None is grey, for lines in the background.
        x, y: coordinates; ``y [N]``, and ``x [N]`` numbers or words.
        low, high: bounds ``[N]`` of the band, or None.
        group: number of the group among those of the report; None: the line has an entry of its own in a legend.
        run: number of the run; None: the mean over its group.
        dots: whether only points are drawn.
    """

    label: str
    colour: int | None
    x: Any
    y: Series
    low: Series | None = None
    high: Series | None = None
    group: int | None = None
    run: int | None = None
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart of lines.

    Attributes:
        title: name of the metric.
        up: title of the y axis; empty: :func:`quantity` of the title.
        along: title of the x axis; empty: frames, or the time that the page's reader chooses.
        limits: limits of the y axis; None fits them to the lines.
        log: axes that begin as logarithmic: ``x``, ``y``, ``xy`` or none.
        step: whether a value holds until the next.
        names: names of values on the y axis, instead of numbers.
    """

    kind: ClassVar[str] = "lines"
    title: str
    lines: Sequence[Line]
    up: str = ""
    along: str = ""
    limits: Limits | None = None
    log: str = ""
    step: bool = False
    names: Mapping[float, str] | None = None

    def data(self, shared: Callable[[list[Any]], int]) -> dict[str, Any]:
        """Returns what the page's script draws.

        Args:
            shared: puts x coordinates among those of all lines, and returns their number.
        """
        lines = []
        for line in self.lines:
            parts = {name: plain(part) for name in ("y", "low", "high") if (part := getattr(line, name)) is not None}
            lines.append({**vars(line), **parts, "x": shared(plain(line.x))})
        names = None if self.names is None else [*self.names.items()]
        return {**vars(self), "kind": self.kind, "up": self.up or quantity(self.title), "names": names, "lines": lines}


@dataclass(frozen=True)
class Parallel:
    """Parallel coordinates: an axis for every key and one for the score, a line for every group of runs.

    Attributes:
        keys: names of the options that differ.
        rows: the values of each group, one for every key.
        title: name of the score.
        scores: score of each group, which colours its line.
    """

    kind: ClassVar[str] = "parallel"
    keys: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str
    scores: Sequence[float]

    def data(self, shared: Callable[[list[Any]], int]) -> dict[str, Any]:
        """Returns what the page's script draws."""
        axes = [axis_of(key, values) for key, values in zip(self.keys, zip(*self.rows))]
        axes.append({"label": self.title, "values": plain(self.scores)})
        return {"kind": self.kind, "title": self.title, "axes": axes, "scores": plain(self.scores)}


def axis_of(name: str, values: Sequence[Any], most: int = 6) -> dict[str, Any]:
    """Returns an axis of options as plotly's ``parcoords`` take it.

    Numbers have a linear axis, or that of their decimal logarithms if they are :func:`spread_out`; other values have
    one place each. Few numbers are marked themselves.
    """
    axis: dict[str, Any] = {"label": name if len(name) <= 22 else f"…{name[-21:]}"}
    if not _numbers(values):
        names = list(dict.fromkeys(map(written, values)))
        places = [names.index(written(value)) for value in values]
        return {**axis, "values": places, "tickvals": [*range(len(names))], "ticktext": [shorter(n, 18) for n in names]}
    logarithmic, chosen = spread_out(name, values), sorted(set(values))
    scaled = math.log10 if logarithmic else float
    axis["values"] = [scaled(value) for value in values]
    if len(chosen) > most and not logarithmic:
        return axis
    if len(chosen) > most:
        first, last = math.floor(math.log10(chosen[0])), math.ceil(math.log10(chosen[-1]))
        chosen, axis["range"] = [10.0**power for power in range(first, last + 1)], [first, last]
    return {**axis, "tickvals": [scaled(value) for value in chosen], "ticktext": [f"{value:.4g}" for value in chosen]}


def over_option(comparison: GroupComparison, key: str) -> Chart:
    """Returns the score of every run over the one option in which groups differ."""
    metric, values = str(comparison.metric), [group.values[key] for group in comparison.groups]
    numeric = _numbers(values)
    lines, means = [], []
    for number, (label, score) in enumerate(comparison.scores.items()):
        if score is not None:
            x, y = values[number] if numeric else written(values[number]), np.array(score.values)
            lines.append(Line(label, comparison.colours[label], [x] * len(y), y, group=number, run=-1, dots=True))
            means.append((x, score.mean))
    if numeric:
        means.sort()
    mean = Line("mean", None, [x for x, _ in means], np.array([y for _, y in means]))
    log = "x" if numeric and spread_out(key, values) else ""
    return Chart(f"{metric} over {key}", [mean, *lines], quantity(metric), key, log=log)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def spread_out(name: str, values: Sequence[float]) -> bool:
    """Returns whether an axis of these values of an option is better logarithmic, as that of learning rates is."""
    rate = name.rpartition(".")[2].partition("_")[0] == "lr"
    return min(values) > 0 and max(values) / min(values) >= (1 + 1e-9 if rate else _LOGARITHMIC)


# -- curves ------------------------------------------------------------------------------------------------------


def lines_of(comparison: GroupComparison, metric: str) -> Iterator[Line]:
    """Yields a line for each run that has logged the metric, and before these the mean and range of their group.

    The line of a run has the bounds ``_low`` and ``_high`` if they were logged.
    """
    places = count()
    # A run's line has fewer points in a page of many runs.
    most = max(min(5 * MOST, 20 * MOST // max(len(comparison.runs), 1)), MOST // 4)
    for number, group in enumerate(comparison.groups):
        having = [(run, place) for run, place in zip(group.runs, places) if metric in run.curves]
        colour, alone = comparison.colours[group.label], len(group.runs) == 1 < len(comparison.groups)
        if len(having) > 1:
            yield mean_of([run.curves[metric] for run, _ in having], group.label, colour, number)
        for run, place in having:
            curve = run.curves[metric]
            bounds = [run.curves.get(metric + end) for end in ("_low", "_high")]
            low, high = (
                None if b is None or len(b.values) != len(curve.values) else thinned(b, most).values for b in bounds
            )
            yield Line(group.label if alone else run.name, colour, *thinned(curve, most), low, high, number, place)


def mean_of(curves: Sequence[Curve], label: str, colour: int | None, group: int | None = None) -> Line:
    """Returns mean and range over curves as a line."""
    grid, values = aligned(curves)
    return Line(label, colour, grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), group)


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


def thinned(curve: Curve, most: int = MOST) -> Curve:
    """Reduces a curve to at most so many points, each the mean of neighbours."""
    length = len(curve.frames)
    if length <= most:
        return curve
    cuts = np.linspace(0, length, most + 1).astype(int)[:-1]
    sizes = np.diff([*cuts, length])
    return Curve(*(np.add.reduceat(part, cuts) / sizes for part in curve))


def plain(values: Iterable[Any]) -> list[Any]:
    """Returns numbers with six digits, and null for those that are not finite; words stay as they are."""
    return [
        value if isinstance(value, str) else float(f"{value:.6g}") if math.isfinite(value) else None for value in values
    ]


def page_data(comparison: GroupComparison, charts: Sequence[Chart | Parallel]) -> str:
    """Returns all charts of a page as JSON: groups, times of the runs by frames, x coordinates, and the charts."""
    pool: dict[str, int] = {}
    times: list[list[Any] | None] = []
    for run in comparison.runs:
        clocks = [thinned(run.curves[name]) for name in (SECONDS, CPU_SECONDS) if name in run.curves]
        timed = [plain(clocks[0].frames), *(plain(clock.values) for clock in clocks)] if len(clocks) == 2 else None
        times.append(timed)
    places, groups = count(), []
    for group in comparison.groups:
        runs = [place for _, place in zip(group.runs, places)]
        groups.append({"label": group.label, "colour": comparison.colours[group.label], "runs": runs})
    drawn = [chart.data(lambda x: pool.setdefault(json.dumps(x), len(pool))) for chart in charts]
    return json.dumps({"groups": groups, "times": times, "xs": [json.loads(x) for x in pool], "charts": drawn})


# -- titles of axes ----------------------------------------------------------------------------------------------

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
    **{"epsilon": "probability of a random action", "clip": "greatest change of a ratio"},
    **{"entropy": "entropy, nats", "target_entropy": "entropy, nats", "kl": "KL divergence, nats"},
    **{"clipped": "share of samples", "saturation": "share of actions"},
    **dict.fromkeys(("predicted", "target"), "mean value, discounted return"),
}
"""Titles of axes by the last part of a metric's name; about 36 letters fit beside a chart."""


def quantity(metric: str) -> str:
    """Returns the title of a metric's axis with its unit: for ``eval/success``, ``share of episodes``."""
    group, _, name = metric.rpartition("/")
    name = name.partition("_level")[0]
    if name.startswith("reward_"):
        return "sum of this term per episode"
    if group == "grad":
        return "norm of the gradient"
    if metric == "time/frames_per_second":
        return "frames/s since the start"
    if metric == "system/frames_per_second":
        return "frames/s since the last row"
    if name.endswith(("_seconds", "seconds")):
        return "s"
    if name.endswith(("_mb", "_gb")):
        return name[-2:].upper()
    words = name.replace("_", " ")
    usual = {"loss": f"{words} loss", "train": f"{words} per episode", "eval": f"{words} per episode"}.get(group, words)
    return usual if group == "loss" else _QUANTITIES.get(name, usual)
