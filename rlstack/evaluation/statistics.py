"""Intervals and aggregates for evaluation results.

Wilson score interval for success rates: Wilson, "Probable inference, the law of succession, and statistical
inference", JASA 22 (1927). Interquartile mean and stratified bootstrap: Agarwal et al., "Deep Reinforcement
Learning at the Edge of the Statistical Precipice", NeurIPS 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.05
"""Two groups of seeds are separated if the p-value of the difference of their means is smaller."""
LEAST = 5
"""Fewest values that get a 95 % interval; for fewer, the minimum and the maximum are shown."""


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Returns the 95 % score interval of a success rate, in [0, 1]; also valid for few trials and rates near 0 or 1.

    Raises:
        ValueError: ``0 <= successes <= n`` does not hold, or there are no trials.
    """
    if not (n >= 1 and 0 <= successes <= n):
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got successes={successes}, n={n}")
    z = NormalDist().inv_cdf(0.975)
    rate, shrink = successes / n, 1 + z**2 / n
    centre = (rate + z**2 / (2 * n)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2)) / shrink
    # At 0 and 1 the bound is exact; rounding would leave 1e-17.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def iqm(values: ArrayLike) -> float:
    """Returns the interquartile mean of all values, of any shape: the mean without the lowest and highest quarter.

    As in Agarwal et al., ``floor(size / 4)`` values are dropped at each end.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    from scipy.stats import trim_mean  # takes a second to import, and only reports need it

    return float(trim_mean(_finite(values), 0.25, axis=None))


def bootstrap_interval(
    values: ArrayLike, statistic: Callable[[NDArray[np.float64]], float] = np.mean
) -> tuple[float, float]:
    """Returns the 95 % percentile bootstrap interval of ``statistic``, the same for the same values.

    Args:
        values: ``[samples]``, or ``[seeds, tasks]``. In two dimensions the bootstrap is stratified: each task
            resamples its seeds independently of the other tasks.
        statistic: maps an array of the shape of ``values`` to a number.

    Raises:
        ValueError: the values are not finite, or of another shape.
    """
    samples = _finite(values)
    if samples.ndim not in (1, 2):
        raise ValueError(f"values must be [samples] or [seeds, tasks], got shape {samples.shape}")
    rng = np.random.default_rng(0)
    estimates = [
        statistic(np.take_along_axis(samples, rng.integers(len(samples), size=samples.shape), axis=0))
        for _ in range(2000)
    ]
    tail = (1 - 0.95) / 2
    low, high = np.quantile(estimates, (tail, 1 - tail))
    return float(low), float(high)


def permutation_p_value(values: ArrayLike, others: ArrayLike) -> float:
    """Returns the p-value of a two-sided permutation test for a difference of means.

    It is exact up to 20,000 divisions of the values into two groups, and beyond that from as many random ones. The
    smaller of both one-sided p-values counts twice.

    Args:
        values, others: finite numbers, one for each of two or more seeds.
    """
    from scipy.stats import permutation_test

    one, other = _finite(values), _finite(others)
    scale = max(np.abs(one).max(), np.abs(other).max()) or 1.0

    def apart(x: NDArray[np.float64], y: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        return np.round((np.mean(x, axis) - np.mean(y, axis)) / scale, 12)  # equal ones differ by rounding

    return float(permutation_test((one, other), apart, n_resamples=20_000, batch=2_000, rng=0).pvalue)


def separation(values: Sequence[float], others: Sequence[float]) -> tuple[float, str]:
    """Returns the p-value between two groups of seeds (:func:`permutation_p_value`), as a number and in words.

    Where so few seeds can never get below :data:`LEVEL`, the words say so and how many can. With a single seed there is
    no test, and the number is 1.
    """
    counts = len(values), len(others)
    p = 1.0 if min(counts) == 1 else permutation_p_value(values, others)
    words = [f"p = {p:.2g}"] if min(counts) > 1 else []
    if min(counts) == 1 or 2 / math.comb(sum(counts), counts[0]) >= LEVEL:
        words.append(f"{counts[0]} against {counts[1]} seeds cannot reach p < {LEVEL}; 4 against 4 can")
    return p, "; ".join(words)


def leader(groups: Mapping[str, Sequence[float]]) -> tuple[str, str, str]:
    """Returns the group with the highest mean, its title, and the reason in words.

    The title is ``best``, ``highest mean``, or ``highest score`` where every group has a single seed.

    It is the best one only if it is separated from every other group; the reason names the group that comes closest,
    by its p-value. The reason for a single group is empty.

    Args:
        groups: the scores of each group's seeds, by name.
    """
    first, *others = sorted(groups, key=lambda name: -float(np.mean(groups[name])))
    tests = {name: separation(groups[first], groups[name]) for name in others}
    if not tests:
        return first, "mean", ""
    closest = max(tests, key=lambda name: tests[name][0])
    p, words = tests[closest]
    if p < LEVEL:
        return first, "best", f"{words} against {closest}"
    title = "highest mean" if max(map(len, groups.values())) > 1 else "highest score"
    return first, title, f"not separated from {closest} ({words})"


def by_mean(groups: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Returns number of seeds, mean and ends of each group's scores by its name, the highest mean first."""
    ranked = sorted(groups.items(), key=lambda entry: -fmean(entry[1]))
    return {
        name: {"seeds": str(len(scores)), "mean": fmean(scores), "minimum": min(scores), "maximum": max(scores)}
        for name, scores in ranked
    }


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"values must be finite and at least one, got shape {array.shape}")
    return array
