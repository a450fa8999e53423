"""When a stage is passed: bounds on means of the latest episodes, on frames, and any or all of several such rules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlstack.config import ConfigError
from rlstack.config.errors import unknown_key

FRAMES, STAGE_FRAMES = "frames", "stage_frames"
CLOCKS = (FRAMES, STAGE_FRAMES)
"""Metrics of the run itself: its frames, and those since the stage began."""
OF_SUCCESSES = "_if_success"
"""Ending of a metric that only successful episodes count for."""


@dataclass(frozen=True)
class Standing:
    """What a rule judges.

    Attributes:
        episodes: how many are known; at least as many as any rule asks for, once there were so many.
        mean: of a metric, over the latest episodes; not a number where none counts.
    """

    episodes: int
    mean: Callable[[str], float]


class Rule(ABC):
    """Whether a stage is passed.

    Attributes:
        metrics: what it asks for, in the order of the configuration.
        most_episodes: the largest number of episodes that it waits for.
    """

    metrics: list[str]
    most_episodes: int

    @abstractmethod
    def holds(self, standing: Standing) -> bool:
        """The stage is passed."""


@dataclass(frozen=True)
class Bounds:
    """``low <= value <= high``; a value that is not a number is outside."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class Thresholds(Rule):
    """All bounds hold, and so many episodes are known."""

    def __init__(self, episodes: int, bounds: Mapping[str, Bounds]) -> None:
        self.metrics, self.most_episodes, self._bounds = list(bounds), episodes, bounds

    def holds(self, standing: Standing) -> bool:
        if standing.episodes < self.most_episodes:
            return False
        return all(standing.mean(metric) in bounds for metric, bounds in self._bounds.items())


class Several(Rule):
    """Any, or all, of several rules.

    Args:
        combine: ``any`` or ``all``.
    """

    def __init__(self, combine: Callable[[Any], bool], rules: list[Rule]) -> None:
        self._combine, self._rules = combine, rules
        self.metrics = list(dict.fromkeys(metric for rule in rules for metric in rule.metrics))
        self.most_episodes = max(rule.most_episodes for rule in rules)

    def holds(self, standing: Standing) -> bool:
        return self._combine(rule.holds(standing) for rule in self._rules)


_COMBINED = {"any": any, "all": all}


def parse_rule(entries: Any, where: str, window: int) -> Rule:
    """A rule from its configuration.

    ``{episodes: 50, success: {min: 0.9}, length: {max: 300}}`` waits for 50 episodes and for both means;
    ``{any: [...]}`` and ``{all: [...]}`` hold further rules. Metrics are the world's episode statistics,
    ``<statistic>_if_success`` (of successful episodes alone), ``frames`` of the run and ``stage_frames`` of the stage.

    Args:
        entries: the mapping.
        where: the key under which it stands, for messages.
        window: how many episodes it waits for if it asks for means and does not say.

    Raises:
        ConfigError: another form, naming the key under ``where``.
    """
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError(f"{where}: expected a mapping of metrics to bounds, got {entries!r}")
    for name, combine in _COMBINED.items():
        if name in entries:
            return Several(combine, _parts(entries, name, where, window))
    bounds = {key: _bounds(value, f"{where}.{key}") for key, value in entries.items() if key != "episodes"}
    waits = entries.get("episodes", window if set(bounds) - set(CLOCKS) else 0)
    if isinstance(waits, bool) or not isinstance(waits, int) or waits < 0:
        raise ConfigError(f"{where}.episodes: expected a number of episodes, got {waits!r}")
    return Thresholds(waits, bounds)


def _parts(entries: Mapping[str, Any], name: str, where: str, window: int) -> list[Rule]:
    rules = entries[name]
    if len(entries) > 1:
        raise ConfigError(f"{where}: {name!r} stands alone; put the other conditions into a rule of its list")
    if not isinstance(rules, list | tuple) or not rules:
        raise ConfigError(f"{where}.{name}: expected a list of rules, got {rules!r}")
    return [parse_rule(rule, f"{where}.{name}[{index}]", window) for index, rule in enumerate(rules)]


def _bounds(value: Any, where: str) -> Bounds:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"{where}: expected {{min: ...}}, {{max: ...}} or both, got {value!r}")
    for key, bound in value.items():
        if key not in ("min", "max"):
            raise ConfigError(unknown_key(f"{where}.{key}", ("min", "max")))
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            raise ConfigError(f"{where}.{key}: expected a number, got {bound!r}")
    bounds = Bounds(value.get("min", -math.inf), value.get("max", math.inf))
    if bounds.low > bounds.high:
        raise ConfigError(f"{where}: min {bounds.low:g} is above max {bounds.high:g}")
    return bounds
