"""The typed configuration of a curriculum: what a file of ``conf/curriculum`` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from rlstack.config import ConfigError, Interval

from .rules import Rule, parse_rule

_WHERE = "curriculum"


@dataclass
class StageConfig:
    """One stage.

    Attributes:
        name: for people.
        level: which of the world's own stages it is; None is its place in the list.
        advance: when it is passed, see :func:`~.rules.parse_rule`; None is the curriculum's own rule. The last stage
            has none: it does not end.
        opponents: who is met in it, of a world with ``opponents``: ``random``, players of the world's own (``rule``),
            ``self``, ``checkpoint`` (the learner as it was when the stage began, or its newest snapshot since), and
            those of ``env.opponents.players`` by name; None is all of the latter.
    """

    name: str
    level: Annotated[int | None, Interval(low=0)] = None
    advance: dict[str, Any] | None = None
    opponents: list[str] | None = None

    def __post_init__(self) -> None:
        if self.opponents == []:
            raise ValueError("opponents: [] is nobody, give one at least, or null")


@dataclass
class CurriculumConfig:
    """Stages, and when each is passed.

    Attributes:
        window: the latest episodes that means are taken over.
        forget: episodes of earlier stages do not count; False judges a new stage by the old one's episodes too, so that
            several stages can be passed one check after the other.
        stages: in order.
        advance: when a stage without a rule of its own is passed.
        named: stages are those of the world that have their names; the others are left out, in a world too small for
            them.
    """

    window: Annotated[int, Interval(low=1)]
    forget: bool
    stages: list[StageConfig]
    advance: dict[str, Any] | None = None
    named: bool = False

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages: a curriculum has one stage at least")
        self.rules()

    def rules(self) -> list[Rule]:
        """When the stages are passed, of all but the last.

        Raises:
            ConfigError: one is missing, or of no known form.
        """
        found = []
        for index, stage in enumerate(self.stages[:-1]):
            own = f"{_WHERE}.stages[{index}].advance"
            if stage.advance is None and self.advance is None:
                raise ConfigError(f"{own}: missing, and there is no {_WHERE}.advance")
            entries, where = (self.advance, f"{_WHERE}.advance") if stage.advance is None else (stage.advance, own)
            found.append(parse_rule(entries, where, self.window))
        if self.stages[-1].advance is not None:
            raise ConfigError(f"{_WHERE}.stages[{len(found)}].advance: the last stage does not end")
        return found

    def within(self, names: Sequence[str]) -> CurriculumConfig:
        """Where stages are ``named``, those that a world has which calls its own so; the last of them does not end.

        Raises:
            ConfigError: it has none of them.
        """
        if not self.named:
            return self
        kept = [replace(stage, level=names.index(stage.name)) for stage in self.stages if stage.name in names]
        if not kept:
            listed = ", ".join(stage.name for stage in self.stages)
            known = f"they are {', '.join(names)}" if names else "they have no names"
            raise ConfigError(f"{_WHERE}.stages: none of the world's stages is called {listed}; {known}")
        return replace(self, stages=[*kept[:-1], replace(kept[-1], advance=None)])

    @property
    def levels(self) -> list[int]:
        """Which of the world's stages each one is."""
        return [index if stage.level is None else stage.level for index, stage in enumerate(self.stages)]
