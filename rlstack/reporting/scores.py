"""By what number runs are compared, and what it comes to over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlstack.evaluation.statistics import bootstrap_interval, iqm

from .runs import Judgement, Run

CANDIDATES = ("eval/success", "eval/return", "train/success", "train/return")


@dataclass(frozen=True)
class Score:
    """The last value of a metric over the runs of a group.

    Attributes:
        values: of the runs that have one, in their order.
        mean, iqm: of them; the interquartile mean of Agarwal et al., NeurIPS 2021.
        interval: 95 %, or None where nothing is known of the spread.
        kind: of the interval, in words.
    """

    values: list[float]
    mean: float
    iqm: float
    interval: tuple[float, float] | None
    kind: str

    @classmethod
    def of(cls, runs: Sequence[Run], metric: str) -> Score | None:
        """None where no run has logged it."""
        having = [run for run in runs if run.last(metric) is not None]
        values = [value for run in having if (value := run.last(metric)) is not None]
        if not values:
            return None
        interval, kind = _interval(having, metric, values)
        return cls(values, float(np.mean(values)), iqm(values), interval, kind)


def _interval(runs: Sequence[Run], metric: str, values: list[float]) -> tuple[tuple[float, float] | None, str]:
    if len(values) > 1:
        return bootstrap_interval(values, iqm), f"bootstrap of the IQM over {len(values)} seeds"
    low, high = runs[0].last(f"{metric}_low"), runs[0].last(f"{metric}_high")
    if low is not None and high is not None:
        return (low, high), "Wilson, over the episodes of one run"
    returns = episode_returns(runs[0]) if metric == "eval/return" else []
    if len(returns) > 1:
        return bootstrap_interval(returns), "bootstrap of the mean over the episodes of one run"
    return None, "one run"


def episode_returns(run: Run) -> list[float]:
    """Of the last evaluation while training: the return that it is summed up by."""
    last = run.last_judgement
    return [] if last is None else [value for _, value in returns_of(last)]


def returns_of(judgement: Judgement) -> list[tuple[str, float]]:
    """The level and the return of every episode; nothing where the file does not tell."""
    episodes = judgement.content.get("episodes")
    rows = [row for row in episodes if isinstance(row, dict)] if isinstance(episodes, list) else []
    name = "discounted_return" if any("discounted_return" in row for row in rows) else "return"
    found = [(str(row.get("level", "")), row.get(name)) for row in rows]
    return [(level, float(value)) for level, value in found if isinstance(value, int | float)]


def compared_by(runs: Sequence[Run]) -> str | None:
    """Of evaluations if there are any: success where all that were evaluated have it, else return.

    The same of episodes while training where no run was evaluated; None where no run has anything.
    """
    for prefix in ("eval/", "train/"):
        having = [run for run in runs if f"{prefix}return" in run.curves or f"{prefix}success" in run.curves]
        for metric in CANDIDATES:
            if having and metric.startswith(prefix) and all(metric in run.curves for run in having):
                return metric
    return None
