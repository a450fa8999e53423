"""One curve of many seeds: their mean and range over the frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .runs import Curve, Run

MOST = 200
"""Points of a drawn line; of a longer curve, neighbours are averaged."""
Series = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """What a chart draws of a group of runs.

    Attributes:
        label: for the legend.
        colour: number of it; None is grey, for lines in the background.
        x, y: ``[N]``.
        low, high: ``[N]`` of the band, None where there is none.
        faint: the single runs behind the mean.
    """

    label: str
    colour: int | None
    x: Series
    y: Series
    low: Series | None = None
    high: Series | None = None
    faint: list[Curve] = field(default_factory=list)


def line_of(runs: Sequence[Run], metric: str, label: str, colour: int | None, single: bool = False) -> Line | None:
    """The metric of one run, with its ``_low`` and ``_high`` where they were logged; or mean and range over several.

    None where no run has logged it. ``single``: with the single runs behind the mean.
    """
    curves = [run.curves[metric] for run in runs if metric in run.curves]
    if not curves:
        return None
    if len(curves) > 1:
        grid, values = aligned(curves)
        faint = [thinned(curve) for curve in curves] if single else []
        return Line(label, colour, grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0), faint)
    (curve,) = curves
    bounds = [next((run.curves[metric + end] for run in runs if metric + end in run.curves), None) for end in _ENDS]
    drawn = thinned(curve)
    low, high = (None if b is None or len(b.values) != len(curve.values) else thinned(b).values for b in bounds)
    return Line(label, colour, drawn.frames, drawn.values, low, high)


_ENDS = ("_low", "_high")


def aligned(curves: Sequence[Curve]) -> tuple[Series, Series]:
    """Curves on the same frames: ``[N]`` and values ``[C, N]``, between points on a straight line.

    A curve is NaN before its first and after its last point. The frames go as far as half of the curves do.
    """
    ends = sorted(float(curve.frames[-1]) for curve in curves)
    starts = sorted(float(curve.frames[0]) for curve in curves)
    half = len(curves) // 2
    start, end = starts[half], ends[(len(curves) - 1) // 2]
    longest = max(curves, key=lambda curve: len(curve.frames))
    inside = np.unique(longest.frames[(longest.frames > start) & (longest.frames < end)])
    if end <= start:  # each has a point or two of its own: side by side
        grid, shortest = np.array([np.mean(starts)]), [curve.values[-1:] for curve in curves]
        return grid, np.stack(shortest)
    grid = np.concatenate([[start], inside, [end]])
    if len(grid) > MOST:
        grid = np.linspace(start, end, MOST)
    values = [np.interp(grid, curve.frames, curve.values, left=np.nan, right=np.nan) for curve in curves]
    return grid, np.stack(values)


def thinned(curve: Curve) -> Curve:
    """At most :data:`MOST` points, each the mean of neighbours."""
    count = len(curve.frames)
    if count <= MOST:
        return curve
    cuts = np.linspace(0, count, MOST + 1).astype(int)[:-1]
    sizes = np.diff([*cuts, count])
    return Curve(*(np.add.reduceat(part, cuts) / sizes for part in curve))
