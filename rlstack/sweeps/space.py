"""The options that vary in a population or a search: ranges and choices, in the syntax of Hydra's sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Transformer

from rlstack.config import ConfigError

VARIABLE = ("agent.", "env.")
"""Prefixes of options that may vary in a population, whose runs continue with other values."""


@dataclass(frozen=True)
class RangeDimension:
    """Numbers from ``low`` to ``high``, drawn uniformly or, with ``log``, uniformly in their logarithm."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, rng: Random) -> float:
        """Draws a value."""
        if self.log:
            return self._fit(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return rng.randint(int(self.low), int(self.high)) if self.whole else rng.uniform(self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Returns whether this is a value of the dimension."""
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def perturb(self, value: float, factors: Sequence[float], rng: Random) -> float:
        """Returns the value times one of the factors, within the bounds; integers change by at least one."""
        factor = rng.choice(factors)
        new = value * factor
        if self.whole and round(new) == value and factor != 1:
            new = value + math.copysign(1, factor - 1)
        return self._fit(new)

    def _fit(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.whole else float(inside)


@dataclass(frozen=True)
class ChoiceDimension:
    """One of several ordered values; perturbing moves to a neighbour."""

    values: tuple[Any, ...]

    def draw(self, rng: Random) -> Any:
        """Draws a value."""
        return rng.choice(self.values)

    def holds(self, value: Any) -> bool:
        """Returns whether this is a value of the dimension."""
        return value in self.values

    def perturb(self, value: Any, factors: Sequence[float], rng: Random) -> Any:
        """Returns the next value if the factor is above 1, otherwise the previous one."""
        step = 1 if rng.choice(factors) > 1 else -1
        return self.values[min(max(self.values.index(value) + step, 0), len(self.values) - 1)]


Space = dict[str, RangeDimension | ChoiceDimension]


def split(arguments: Sequence[str], may_vary: tuple[str, ...] = VARIABLE) -> tuple[Space, list[str]]:
    """Splits a command line into the options that vary, by key, and the rest.

    Args:
        arguments: overrides.
        may_vary: prefixes of the keys that may vary.

    Raises:
        ConfigError: no option varies, or one that must not.
    """
    space: Space = {}
    fixed: list[str] = []
    for override, text in zip(OverridesParser.create().parse_overrides(list(arguments)), arguments):
        key = override.key_or_group
        if not override.is_sweep_override():
            fixed.append(text)
            space.pop(key, None)  # the command line fixes an option that the yaml varies
            continue
        if not key.startswith(may_vary):
            raise ConfigError(f"{key}: cannot vary in a population; only options in {' and '.join(may_vary)} can")
        value = override.value()
        if not isinstance(value, IntervalSweep):
            space[key] = ChoiceDimension(tuple(override.sweep_iterator(transformer=Transformer.encode)))
            continue
        low, high, log = value.start, value.end, "log" in value.tags
        assert low is not None and high is not None
        if not low < high or (log and low <= 0):
            raise ConfigError(f"{key}: {text} is not a range{'; log needs one above zero' if log else ''}")
        space[key] = RangeDimension(low, high, log, isinstance(low, int) and isinstance(high, int))
    if not space:
        raise ConfigError("nothing varies; set ranges, such as 'agent.lr=tag(log, interval(1e-4, 1e-2))'")
    return space, fixed


def assignment(key: str, value: Any) -> str:
    """Returns the override that sets an option to a value; groups and top-level keys exist already."""
    return f"{'++' if '.' in key else ''}{key}={'null' if value is None else value}"


def check_values(path: Path, kind: str, space: Space, values: Mapping[str, Any]) -> None:
    """Raises a :class:`ConfigError` if values of a file, which become a command line, lie outside the space."""
    if values.keys() != space.keys() or not all(space[key].holds(values[key]) for key in values):
        raise ConfigError(f"{path}: not a {kind} (hyperparameters {values} are none of what varies)")
