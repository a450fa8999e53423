"""Compares two groups of runs by the difference of means and the probability of improvement.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. Intervals are
percentile bootstraps that draw the runs of each group or, of two single runs, the episodes of their evaluations.
:func:`rlstack.evaluation.statistics.separation` alone decides whether one group is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.evaluation.figures import OF_SUCCESSES, aligned
from rlstack.evaluation.statistics import LEAST, LEVEL, separation

from .blocks import interval, number, shorter
from .differences import NAMES, compared_by, grouped, repeated_seeds, varied, worlds_of, written
from .runs import EVALUATED, Series, StoredRun, runs_in

_MOST_KEYS = 8
Interval = tuple[float, float]


@dataclass(frozen=True)
class ScoredRuns:
    """One side of a comparison.

    Attributes:
        name: name of the group.
        runs: paths of the runs.
        episodes: number of episodes behind each run's score; 1 if only the score is known.
        scores: score of each run.
        mean: mean of the scores.
    """

    name: str
    runs: list[str]
    episodes: list[int]
    scores: list[float]
    mean: float


@dataclass(frozen=True)
class Improvement:
    """The comparison of the second group of runs with the first.

    Attributes:
        metric: name of the metric, of which more is better.
        first, second: the groups.
        difference: mean of the second minus mean of the first.
        difference_interval: 95 % interval over the episodes of two single runs, or over the seeds of two groups with at
            least five each; otherwise None.
        probability: probability that the second does better than the first; a tie counts half. None if a group has a
            single number, or if the groups played different worlds, whose scores do not compare.
        probability_interval: 95 % interval, where the difference has one.
        p_value: of a permutation test of the runs' scores; None if a group has a single run, and for different worlds.
        between: unit of the probability: ``runs``, or ``episodes`` of two single runs.
        paired: whether two single runs were evaluated on the same episodes.
        worlds: names of the worlds in which the runs trained.
        differences: by key of the configuration, the values in the first run of each group, as on a command line,
            without the keys of :data:`~rlstack.reporting.runs.OF_NO_MATTER`; of these, single runs show ``seed``.
        notes: a line for each missing part.
    """

    metric: str
    first: ScoredRuns
    second: ScoredRuns
    difference: float
    difference_interval: Interval | None
    probability: float | None
    probability_interval: Interval | None
    p_value: float | None
    between: str
    paired: bool
    worlds: list[str]
    differences: dict[str, tuple[str, str]]
    notes: list[str]


def compare(first: Sequence[Path], second: Sequence[Path], score: str | None = None) -> Improvement:
    """Compares the runs in some folders with those in others.

    Args:
        first, second: run directories, or folders with runs below them.
        score: a metric of which more is better; None: success or return, whichever all runs have.

    Raises:
        ConfigError: a folder does not exist or holds no runs, a run is on both sides, or a run has not logged the
            metric.
    """
    sides_given = {"folder": first, "other": second}
    groups = [[run for folder in folders for run in runs_in(key, folder)] for key, folders in sides_given.items()]
    every = [run for group in groups for run in group]
    if len({run.path.resolve() for run in every}) < len(every):
        raise ConfigError("other: a run is given twice; each may be on one side, once")
    metric = score or compared_by(every)
    for run in every:
        if metric is None or run.last(metric) is None:
            if metric in run.curves:
                raise ConfigError(f"score: {metric} is undefined in the last evaluation of {run.path}")
            what = "success or return" if metric is None else repr(metric)
            advice = did_you_mean(metric, run.curves) if metric else ""
            raise ConfigError(f"score: {run.path} has not logged {what}, {advice}logged: {', '.join(run.curves)}")
    metric = str(metric)
    names = [",".join(map(str, folders)) for folders in (first, second)]
    single, worlds, sizes = len(every) == 2, worlds_of(every), [*map(len, groups)]
    sides, values, judged = [], [], set()
    for name, group in zip(names, groups):
        drawn = [_episodes(run, metric) for run in group]
        scores = [float(row.mean()) for _, row in drawn]
        paths = [str(run.path) for run in group]
        sides.append(ScoredRuns(name, paths, [len(row) for _, row in drawn], scores, float(np.mean(scores))))
        values.append(drawn[0][1] if single else np.array(scores))
        judged.add(drawn[0][0])
    paired = single and len(judged) == 1 and "" not in judged
    # The first row is the data itself: each run or episode drawn once.
    differences, probabilities = resampled(values[0], values[1], paired)
    counted = min(map(len, values))
    spread = len(worlds) == 1 and counted >= LEAST
    differing = varied([group[0].experiment for group in groups])
    apart = {key: (_value(one), _value(other)) for key, (one, other) in differing.items()}
    if single and every[0].seed != every[1].seed:
        apart["seed"] = (_value(every[0].seed), _value(every[1].seed))
    notes = []
    for key, group in zip(("first", "second"), groups):
        if len(pooled := grouped(group)) > 1:
            labels = "; ".join(f"{one.label} ({one.seeds})" for one in pooled)
            notes.append(f"{key} pools runs of {len(pooled)} configurations: {labels}")
        notes += [f"{run.path}: {note}" for run, note in repeated_seeds(pooled)]
    held = [options for run in every if (options := _options(run))]
    other = sorted({key for options in held for key in options if {one.get(key) for one in held} != {options[key]}})
    if metric.startswith(EVALUATED) and len(worlds) == 1 and other:
        advice = "check that their scores are comparable"
        notes.append(f"the runs were evaluated with different options of the world ({', '.join(other)}); {advice}")
    notes += [f"{run.path}: {note}" for run in every for note in (*run.notes, *_missing(run, metric))]
    return Improvement(
        metric,
        sides[0],
        sides[1],
        difference=sides[1].mean - sides[0].mean,
        difference_interval=_ends(differences) if spread else None,
        probability=float(probabilities[0]) if len(worlds) == 1 and counted > 1 else None,
        probability_interval=_ends(probabilities) if spread else None,
        p_value=separation(*(side.scores for side in sides))[0] if len(worlds) == 1 and 1 not in sizes else None,
        between="episodes" if single else "runs",
        paired=paired,
        worlds=worlds,
        differences=apart,
        notes=notes,
    )


def _value(value: Any) -> str:
    """Formats a value as on the command line, a whole number without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else written(value)


def _episodes(run: StoredRun, metric: str) -> tuple[str, Series]:
    """Returns the identity of a run's evaluation, and a metric's value in each episode of the last one in training.

    If the file lacks them, or is of an evaluation before the last one, the identity is empty, and the last logged value
    stands for the episodes.
    """
    group, _, name = metric.partition("/")
    last, value = run.last_evaluation, run.last(metric)
    single = "", np.array([np.nan if value is None else value])
    rows = last.content.get("episodes") if last is not None and group == "eval" else None
    if last is None or not isinstance(rows, list) or not rows or name in OF_SUCCESSES or _missing(run, metric):
        return single
    if not all(isinstance(row, dict) for row in rows):
        return single
    name = "discounted_return" if name == "return" and "discounted_return" in rows[0] else name
    values = [row.get(name) for row in rows]
    if not all(isinstance(value, int | float) and np.isfinite(value) for value in values):
        return single
    levels, options = [row.get("level") for row in rows], _options(run)
    return repr((last.content.get("world"), last.content.get("seed"), levels, options)), np.array(values, dtype=float)


def _missing(run: StoredRun, metric: str) -> list[str]:
    """Returns a note if a run's files of evaluations end before its last logged one."""
    if not metric.startswith(EVALUATED):
        return []
    last, frames = run.last_evaluation, run.curves[metric].frames[-1]
    if last is not None and last.frames is not None and last.frames >= frames:
        return []
    return [f"the file of the evaluation at {frames:,.0f} frames is missing"]


def _options(run: StoredRun) -> dict[str, str]:
    """Returns the options of the world in which a run was evaluated last, in the order of their names."""
    options = run.last_evaluation.content.get("options") if run.last_evaluation is not None else None
    return {key: repr(options[key]) for key in sorted(options)} if isinstance(options, dict) else {}


def resampled(first: Series, second: Series, paired: bool, count: int = 2000, seed: int = 0) -> tuple[Series, Series]:
    """Computes differences of means and probabilities of improvement for the data and ``count`` bootstrap samples.

    Args:
        first, second: a score for each run of a group, or for each episode of a run.
        paired: whether both have the same episodes, which then share each draw.
        seed: seed of the draws.

    Returns both ``[1 + count]``.
    """
    rng = np.random.default_rng(seed)

    def drawn(size: int) -> Series:
        """Returns the share of each of ``size`` items in every sample, ``[1 + count, size]``."""
        times = rng.multinomial(size, np.full(size, 1 / size), count)
        return np.concatenate([np.ones((1, size)), times]) / size

    one = two = drawn(len(first))
    if paired:
        chances = two @ _wins(second, first)
    else:
        two = drawn(len(second))
        chances = np.einsum("na,nb,ab->n", two, one, _wins(second[:, None], first), optimize=True)
    return two @ second - one @ first, chances.clip(0, 1)


def _wins(values: Series, others: Series) -> Series:
    apart = values - others
    ties = np.abs(apart) <= 1e-12 * (np.abs(values) + np.abs(others))  # means of the same numbers differ by rounding
    return np.where(ties, 0.5, apart > 0)


def _ends(samples: Series) -> Interval:
    low, high = np.quantile(samples[1:], (0.025, 0.975))
    return float(low), float(high)


def in_words(improvement: Improvement) -> list[str]:
    """Describes a comparison in lines of text."""
    several = max(len(side.scores) for side in (improvement.first, improvement.second)) > 1
    rows = [["", "runs", "episodes per run", "mean", *(["minimum", "maximum"] if several else [])]]
    for name, side in (("first", improvement.first), ("second", improvement.second)):
        counts = sorted(set(side.episodes))
        episodes = "-" if counts == [1] else " to ".join(map(str, (counts[0], counts[-1])[: len(counts)]))
        ends = [number(min(side.scores)), number(max(side.scores))] if several else []
        rows.append([name, str(len(side.runs)), episodes, number(side.mean), *ends])
    lines = [*(f"note: {note}" for note in improvement.notes), f"first:  {improvement.first.name}"]
    lines += [f"second: {improvement.second.name}", "", improvement.metric, *aligned(rows), ""]
    if len(improvement.worlds) == 1:
        lines.append(f"second - first: {improvement.difference:+.4g}{_spread(improvement)}")
    if improvement.probability is not None:
        what = "an episode" if improvement.between == "episodes" else "a run"
        event = f"{what} of the second scores higher than one of the first"
        event = "in the same episode, the second scores higher than the first" if improvement.paired else event
        within = _within(improvement.probability_interval)
        lines.append(f"{event} with probability {improvement.probability:.3f}{within}")
    lines.append(f"verdict: {verdict(improvement)}")
    if improvement.differences:
        lines += ["", "configurations differ in:"]
        kept = sorted(improvement.differences.items(), key=lambda entry: entry[0] not in NAMES)[:_MOST_KEYS]
        lines += [f"  {key}: {shorter(one, 60)} -> {shorter(other, 60)}" for key, (one, other) in kept]
        more = len(improvement.differences) - len(kept)
        lines += [f"  and {more} more keys"] if more else []
    return lines


def verdict(improvement: Improvement) -> str:
    """Says which side is better, if its seeds are separated from the other's; of single runs, which one did better."""
    if len(improvement.worlds) > 1:
        return f"different worlds ({', '.join(improvement.worlds)}), whose scores do not compare"
    if improvement.between == "runs":
        p, words = separation(improvement.first.scores, improvement.second.scores)
        better = "second" if improvement.difference > 0 else "first"
        line = f"the {better} is better ({words})" if p < LEVEL else f"not separated ({words})"
        return line if improvement.differences else f"{line}; both sides have the same configuration"
    if not improvement.differences.keys() - {"seed"}:
        return f"two {'seeds' if improvement.differences else 'runs'} of one configuration, so neither is better"
    few = "single seeds cannot tell configurations apart, but four of each can"
    if improvement.difference_interval is None:
        return f"not separated, since the runs have fewer than {LEAST} episodes each; {few}"
    low, high = improvement.difference_interval
    if low <= 0 <= high:
        return f"{'no difference' if low == high else 'not separated'} in these episodes; {few}"
    return f"the {'second' if low > 0 else 'first'} run did better in these episodes; {few}"


def _spread(improvement: Improvement) -> str:
    """Returns the interval of the difference or, for few seeds, the range of the differences between single runs."""
    if improvement.difference_interval is not None or improvement.between == "episodes":
        return _within(improvement.difference_interval)
    first, second = improvement.first.scores, improvement.second.scores
    return f" ({interval((min(second) - max(first), max(second) - min(first)))} between single runs)"


def _within(bounds: Any) -> str:
    return "" if bounds is None else f" (95 % interval: {interval(bounds)})"
