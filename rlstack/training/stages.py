"""The configuration of a curriculum: its stages, and the rules for passing each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

from rlstack.config import ConfigError, Interval
from rlstack.config.errors import unknown_key

FRAMES, STAGE_FRAMES = "frames", "stage_frames"
CLOCKS = (FRAMES, STAGE_FRAMES)
"""Metrics of the run itself: its frames, and its frames since the stage began."""
OF_SUCCESSES = "_if_success"
"""Suffix of a metric that is averaged over successful episodes only."""
_WHERE = "curriculum"

Mean: TypeAlias = Callable[[str], float]
"""The mean of a metric over the latest episodes; NaN if none counts."""


@dataclass(frozen=True)
class Rule:
    """The condition for passing a stage.

    Attributes:
        metrics: metrics that the rule needs, in the order of the configuration.
        episodes: largest number of episodes that the rule waits for.
        holds: function of the number of known episodes and the means; returns whether the stage is passed.
    """

    metrics: list[str]
    episodes: int
    holds: Callable[[int, Mean], bool]


def parse_rule(entries: Any, where: str, window: int) -> Rule:
    """Reads a rule from its configuration.

    ``{episodes: 50, success: {min: 0.9}, length: {max: 300}}`` waits for 50 episodes and for both means;
    ``{any: [...]}`` and ``{all: [...]}`` hold further rules. Metrics are the world's episode statistics,
    ``<statistic>_if_success`` (successful episodes only), ``frames`` of the run and ``stage_frames`` of the stage.

    Args:
        entries: the mapping.
        where: key of the rule, for messages.
        window: number of episodes that a rule on means waits for by default.

    Raises:
        ConfigError: the mapping has another form; the message names the key.
    """
    if not isinstance(entries, Mapping) or not entries:
        raise ConfigError(f"{where}: expected a mapping of metrics to bounds, got {entries!r}")
    if name := next((name for name in ("any", "all") if name in entries), ""):
        parts, combine = entries[name], any if name == "any" else all
        if len(entries) > 1:
            raise ConfigError(f"{where}: {name!r} stands alone; put the other conditions into a rule of its list")
        if not isinstance(parts, list | tuple) or not parts:
            raise ConfigError(f"{where}.{name}: expected a list of rules, got {parts!r}")
        rules = [parse_rule(part, f"{where}.{name}[{index}]", window) for index, part in enumerate(parts)]
        metrics = list(dict.fromkeys(metric for rule in rules for metric in rule.metrics))
        waits = max(rule.episodes for rule in rules)
        return Rule(metrics, waits, lambda episodes, mean: combine(rule.holds(episodes, mean) for rule in rules))
    bounds = {key: _bounds(value, f"{where}.{key}") for key, value in entries.items() if key != "episodes"}
    waits = entries.get("episodes", window if set(bounds) - set(CLOCKS) else 0)
    if isinstance(waits, bool) or not isinstance(waits, int) or waits < 0:
        raise ConfigError(f"{where}.episodes: expected a number of episodes, got {waits!r}")

    def holds(episodes: int, mean: Mean) -> bool:
        # NaN lies within no bounds.
        return episodes >= waits and all(low <= mean(metric) <= high for metric, (low, high) in bounds.items())

    return Rule(list(bounds), waits, holds)


def _bounds(value: Any, where: str) -> tuple[float, float]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"{where}: expected {{min: ...}}, {{max: ...}} or both, got {value!r}")
    for key, bound in value.items():
        if key not in ("min", "max"):
            raise ConfigError(unknown_key(f"{where}.{key}", ("min", "max")))
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            raise ConfigError(f"{where}.{key}: expected a number, got {bound!r}")
    low, high = value.get("min", -math.inf), value.get("max", math.inf)
    if low > high:
        raise ConfigError(f"{where}: min {low:g} is above max {high:g}")
    return low, high


@dataclass
class StageConfig:
    """One stage of a curriculum.

    Attributes:
        name: name for displays.
        level: number of the stage among the world's own; None is its place in the list.
        advance: rule for passing it, see :func:`parse_rule`; None is the curriculum's rule. The last stage has none,
            since it does not end.
        opponents: opponents in this stage, in a world with ``opponents``: ``random``, the world's players (``rule``),
            ``self``, ``checkpoint`` (the learner as it was when the stage began, or its newest snapshot since), and
            those of ``env.opponents.players`` by name; None is all of the latter.
    """

    name: str
    level: Annotated[int | None, Interval(low=0)] = None
    advance: dict[str, Any] | None = None
    opponents: list[str] | None = None

    def __post_init__(self) -> None:
        if self.opponents == []:
            raise ValueError("opponents: [] names nobody; name at least one, or set null")


@dataclass
class CurriculumConfig:
    """The stages of a curriculum, and when each is passed.

    Attributes:
        window: number of the latest episodes that means are taken over.
        forget: whether a new stage ignores episodes that began in an earlier one; with False they count, so several
            stages can be passed at consecutive checks.
        stages: the stages in order.
        advance: rule for stages without one of their own.
        named: whether stages are found by their names in the world; those that the world lacks are left out.
    """

    window: Annotated[int, Interval(low=1)]
    forget: bool
    stages: list[StageConfig]
    advance: dict[str, Any] | None = None
    named: bool = False

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages: a curriculum has at least one stage")
        self.rules()

    def rules(self) -> list[Rule]:
        """Returns the rules for passing the stages, all but the last.

        Raises:
            ConfigError: a rule is missing, or its form is unknown.
        """
        rules = []
        for index, stage in enumerate(self.stages[:-1]):
            own = f"{_WHERE}.stages[{index}].advance"
            if stage.advance is None and self.advance is None:
                raise ConfigError(f"{own}: missing, and there is no {_WHERE}.advance")
            entries, where = (self.advance, f"{_WHERE}.advance") if stage.advance is None else (stage.advance, own)
            rules.append(parse_rule(entries, where, self.window))
        if self.advance is not None and rules and all(stage.advance is not None for stage in self.stages[:-1]):
            raise ConfigError(f"{_WHERE}.advance: has no effect, since every stage that ends has a rule of its own")
        if self.stages[-1].advance is not None:
            raise ConfigError(f"{_WHERE}.stages[{len(rules)}].advance: the last stage does not end")
        return rules

    def within(self, names: Sequence[str]) -> CurriculumConfig:
        """Returns the curriculum with only the stages that a world has, if stages are ``named``.

        Raises:
            ConfigError: the world has none of them.
        """
        if not self.named:
            return self
        kept = [replace(stage, level=names.index(stage.name)) for stage in self.stages if stage.name in names]
        if not kept:
            listed = ", ".join(stage.name for stage in self.stages)
            known = f"they are {', '.join(names)}" if names else "they have no names"
            raise ConfigError(f"{_WHERE}.stages: none of the world's stages is called {listed}; {known}")
        rule = self.advance if any(stage.advance is None for stage in kept[:-1]) else None
        return replace(self, stages=[*kept[:-1], replace(kept[-1], advance=None)], advance=rule)

    @property
    def levels(self) -> list[int]:
        """Returns the number of each stage among the world's own."""
        return [index if stage.level is None else stage.level for index, stage in enumerate(self.stages)]
