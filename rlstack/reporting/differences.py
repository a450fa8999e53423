"""Groups runs by the options that differ, scores the groups, and compares a run with the shipped defaults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlstack.config import ConfigError, to_plain
from rlstack.config.errors import missing_option
from rlstack.config.groups import compose_config, inherited, option_files
from rlstack.config.overrides import override
from rlstack.evaluation.statistics import LEAST, bootstrap_interval, iqm, leader

from .blocks import interval, shorter
from .runs import StoredEvaluation, StoredRun, with_whole_numbers

NAMES = ("agent.name", "env.name", "env.id")
"""The names of agent and world: other options depend on them, and are compared only between equal ones."""


class AbsentKey:
    """The value of a missing key."""

    def __repr__(self) -> str:
        return "–"


ABSENT = AbsentKey()
COLOURS = 8
Row = tuple[Any, ...]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed.

    Attributes:
        runs: the runs.
        values: values of the keys in which the groups of a report differ.
        label: short form of the values.
    """

    runs: list[StoredRun]
    values: dict[str, Any]
    label: str

    @property
    def seeds(self) -> str:
        """Returns the number of seeds in words, such as ``3 seeds``."""
        return f"{len(self.runs)} seeds" if len(self.runs) > 1 else "1 seed"


def grouped(runs: Sequence[StoredRun]) -> list[RunGroup]:
    """Groups the runs by the options that differ, in the order in which they came.

    Names come first in their values; of keys that always change together, only the first is among them.
    """
    classes: dict[Row, list[dict[str, Any]]] = {}
    for run in runs:
        kind = tuple(repr(lookup(run.config, key)) for key in NAMES)
        classes.setdefault(kind, []).append(run.experiment)
    keys = [key for key in NAMES if len({repr(lookup(run.config, key)) for run in runs}) > 1]
    keys += dict.fromkeys(key for configs in classes.values() for key in varied(configs) if key not in keys)
    kept: dict[Row, str] = {}
    for key in keys:
        values_of_key = [repr(lookup(run.config, key)) for run in runs]
        kept.setdefault(tuple(map(values_of_key.index, values_of_key)), key)
    groups: dict[str, tuple[dict[str, Any], list[StoredRun]]] = {}
    for run in runs:
        values = {key: lookup(run.config, key) for key in kept.values()}
        groups.setdefault(repr(values), (values, []))[1].append(run)
    labels = [label_of(values, members) for values, members in groups.values()]
    if len(set(labels)) < len(labels):  # long values, such as paths, which differ where they were cut
        labels = [label_of(values, members, most=None) for values, members in groups.values()]
    return [RunGroup(members, values, label) for (values, members), label in zip(groups.values(), labels)]


def repeated_seeds(groups: Iterable[RunGroup]) -> Iterator[tuple[StoredRun, str]]:
    """Yields each run that has the seed of an earlier one of its group, such as its copy, with a note."""
    for group in groups:
        first: dict[str, StoredRun] = {}
        for run in group.runs:
            other = first.setdefault(repr(run.seed), run)
            if run.seed is not None and other is not run:
                yield run, f"has seed {run.seed}, as {other.name} has: both are counted, though they are one seed"


def label_of(values: Mapping[str, Any], runs: Sequence[StoredRun], most: int | None = 40) -> str:
    """Returns the short form of a group's values; without any, the names of agent and world.

    Args:
        most: greatest number of letters of a value.
    """
    if not values:
        named = [lookup(runs[0].config, key) for key in NAMES]
        return " · ".join(str(value) for value in named if value not in (ABSENT, None)) or runs[0].name
    lasts = [key.rpartition(".")[2] for key in values]
    shown = []
    for key, last, value in zip(values, lasts, values.values()):
        if key in NAMES:
            shown += [] if value is ABSENT else [written(value)]
        else:
            text = written(value) if most is None else shorter(written(value), most)
            shown.append(f"{last if lasts.count(last) == 1 else key}={text}")
    return " · ".join(shown) or "without a configuration"


def worlds_of(runs: Iterable[StoredRun]) -> list[str]:
    """Returns the worlds of runs by name, each once."""
    named = ((lookup(run.config, key) for key in NAMES[1:]) for run in runs)
    return list(dict.fromkeys(" ".join(str(name) for name in names if name not in (ABSENT, None)) for names in named))


def varied(configs: Sequence[Any], above: str = "") -> dict[str, list[Any]]:
    """Returns the keys in which configurations differ, with all values; :data:`ABSENT` stands for a missing key.

    Values that are mappings in all configurations are compared key by key, others as a whole.
    """
    if all(config == configs[0] and type(config) is type(configs[0]) for config in configs):
        return {}
    if not all(isinstance(config, Mapping) for config in configs):
        return {above: list(configs)}
    differing: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for config in configs for key in config):
        differing |= varied([config.get(key, ABSENT) for config in configs], f"{above}.{key}" if above else str(key))
    return differing


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key, or :data:`ABSENT`."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part, ABSENT) if isinstance(value, Mapping) else ABSENT
    return value


def written(value: Any) -> str:
    """Formats a value as on the command line."""
    if value is ABSENT or isinstance(value, str):
        return str(value)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


# -- scores ------------------------------------------------------------------------------------------------------

CANDIDATES = ("eval/success", "eval/return", "train/success", "train/return")


@dataclass(frozen=True)
class GroupScore:
    """The last value of a metric over the runs of a group.

    Attributes:
        values: values of the runs that have one, in order.
        mean, iqm: their mean, and their interquartile mean (Agarwal et al., NeurIPS 2021).
        interval: 95 % interval of the mean over at least five seeds, or of a single run over its episodes; or None.
    """

    values: list[float]
    mean: float
    iqm: float
    interval: tuple[float, float] | None

    @property
    def spread(self) -> str:
        """The interval in words, or the range of few seeds."""
        if self.interval is not None:
            return f"{interval(self.interval)} (95\N{NO-BREAK SPACE}%)"
        few = f"{interval((min(self.values), max(self.values)))} in {len(self.values)} seeds"
        return few if len(self.values) > 1 else "one seed"

    @classmethod
    def of(cls, runs: Sequence[StoredRun], metric: str) -> GroupScore | None:
        """Scores a group; returns None if no run has logged the metric."""
        values = [value for run in runs if (value := run.last(metric)) is not None]
        if not values:
            return None
        bounds = bootstrap_interval(values) if len(values) >= LEAST else None
        if len(values) == 1:  # Wilson's, as the run has logged them
            (run,) = (run for run in runs if run.last(metric) is not None)
            low, high = (run.last(f"{metric}_{end}") for end in ("low", "high"))
            bounds = None if low is None or high is None else (low, high)
        return cls(values, float(np.mean(values)), iqm(values), bounds)


def returns_of(evaluation: StoredEvaluation) -> list[tuple[str, float]]:
    """Returns level and return of every episode; empty if the file lacks them."""
    episodes = evaluation.content.get("episodes")
    rows = [row for row in episodes if isinstance(row, dict)] if isinstance(episodes, list) else []
    name = "discounted_return" if any("discounted_return" in row for row in rows) else "return"
    known = [row for row in rows if isinstance(row.get(name), int | float) and math.isfinite(row[name])]
    return [(str(row.get("level", "")), float(row[name])) for row in known]


def compared_by(runs: Sequence[StoredRun]) -> str | None:
    """Returns the metric to compare by: success if all evaluated runs have it, otherwise return.

    Without evaluations it is that of training episodes; None if no run has either.
    """
    for prefix in ("eval/", "train/"):
        having = [run for run in runs if f"{prefix}return" in run.curves or f"{prefix}success" in run.curves]
        for metric in CANDIDATES:
            if having and metric.startswith(prefix) and all(metric in run.curves for run in having):
                return metric
    return None


@dataclass(frozen=True)
class GroupComparison:
    """The groups of a report and the metric that compares them.

    Attributes:
        groups: the groups, in the order in which their runs came.
        metric: metric of the scores; None if no run has one.
    """

    groups: list[RunGroup]
    metric: str | None

    @classmethod
    def of(cls, groups: list[RunGroup], metric: str | None = None) -> GroupComparison:
        """Compares groups by a metric; None: by :func:`compared_by`."""
        return cls(groups, metric or compared_by([run for group in groups for run in group.runs]))

    @property
    def runs(self) -> list[StoredRun]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def scores(self) -> dict[str, GroupScore | None]:
        """The scores of the groups by label."""
        metric = self.metric
        return {group.label: None if metric is None else GroupScore.of(group.runs, metric) for group in self.groups}

    @cached_property
    def worlds(self) -> list[str]:
        """The worlds of all runs; scores of different worlds do not compare."""
        return worlds_of(self.runs)

    @cached_property
    def leader(self) -> tuple[str, str, str] | None:
        """Label, title and reason of the group with the highest mean (:func:`rlstack.evaluation.statistics.leader`).

        None without scores, or in different worlds.
        """
        values = {label: score.values for label, score in self.scores.items() if score is not None}
        return leader(values) if values and len(self.worlds) == 1 else None

    @cached_property
    def ranked(self) -> list[RunGroup]:
        """The groups, in one world those with the highest mean first, and those without a score last."""
        if len(self.worlds) > 1:
            return self.groups
        means = {label: -math.inf if score is None else score.mean for label, score in self.scores.items()}
        return sorted(self.groups, key=lambda group: -means[group.label])

    @cached_property
    def colours(self) -> dict[str, int | None]:
        """The groups' colours by label; with more groups than colours, only those with the highest means have one."""
        chosen = self.groups if len(self.groups) <= COLOURS else self.ranked[:COLOURS]
        return {group.label: chosen.index(group) if group in chosen else None for group in self.groups}

    @cached_property
    def first(self) -> list[str]:
        """The two most important metrics."""
        points: dict[str, int] = {}
        for name in (self.metric, *CANDIDATES):
            lengths = [len(run.curves[name].values) for run in self.runs if name in run.curves]
            points |= {name: max(lengths)} if name is not None and lengths else {}
        return sorted(points, key=lambda name: points[name] < 2)[:2]  # a single point does not make a curve


# -- the shipped defaults ----------------------------------------------------------------------------------------


def from_default(run: StoredRun, folders: Sequence[Path] = ()) -> tuple[str, dict[str, list[Any]]]:
    """Returns the nearest options of ``rlstack train``, and by key the default and the run's value where they differ.

    Args:
        folders: folders with further yaml files, as given by ``--config-dir``.

    Raises:
        ConfigError: there is no such default; the message says why.
    """
    agent, world = (lookup(run.config, key) for key in ("agent.name", "env.name"))
    if ABSENT in (agent, world):
        raise ConfigError("the run does not say which agent and world it is of")
    agents, worlds = (option_files(group, folders) for group in ("agent", "env"))
    named = {name: [content["name"] for _, content in inherited(name, worlds) if "name" in content] for name in worlds}
    envs = [name for name in worlds if named[name][:1] == [world]]
    if agent not in agents:
        raise ConfigError(missing_option("agent", str(agent), list(agents)))
    if not envs:
        raise ConfigError(missing_option("env", str(world), list(worlds)))
    path = [override("hydra.searchpath", [f"file://{folder.absolute()}" for folder in folders])] if folders else []
    candidates = []
    for env in envs:
        overrides = [f"agent={agent}", f"env={env}"]
        default = to_plain(compose_config("train", [*overrides, *path]))
        options, decided = default["agent"], lookup(run.config, "agent.precision")
        decisions = ("float32", "bfloat16") if options.get("bfloat16_pays") else ("float32",)
        if options.get("precision") == "auto" and decided in decisions:  # a run stores the decision of auto
            options["precision"] = decided
        pairs = [{key: value for key, value in config.items() if key != "run_dir"} for config in (default, run.config)]
        candidates.append((" ".join(overrides), varied(with_whole_numbers(pairs))))
    return min(candidates, key=lambda entry: len(entry[1]))
