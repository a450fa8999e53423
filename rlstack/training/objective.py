"""What a sweep optimises: one number of a finished run, out of its ``metrics.csv``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean

from .config import ObjectiveConfig
from .loggers import METRICS_FILE, read_metrics

_DEFAULTS = ("eval/success", "eval/return")
_VALUES: dict[str, Callable[[list[float]], float]] = {
    "last": lambda values: values[-1],
    "max": max,
    "min": min,
    "mean": lambda v: math.fsum(v) / len(v),
}


def score(run: Path | str, objective: ObjectiveConfig) -> float:
    """The objective of a run, so far as it has come; NaN where no evaluation could be summed up.

    Raises:
        ConfigError: the run has not logged such a metric; it says what it has logged.
    """
    path = Path(run) / METRICS_FILE
    rows = read_metrics(path)
    columns = {name for row in rows for name in row}
    metric = objective.metric or next((name for name in _DEFAULTS if name in columns), _DEFAULTS[-1])
    values = [row[metric] for row in rows if metric in row]
    if not values and objective.metric is None and "eval/non_finite" in columns:
        return math.nan  # no evaluation could be summed up
    if not values:
        guess = did_you_mean(metric, columns)
        raise ConfigError(f"objective.metric: {metric!r} is not in {path}, {guess}it has: {', '.join(sorted(columns))}")
    return float(_VALUES[objective.value](values))
