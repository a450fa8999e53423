"""The results of an evaluation: numbers of each episode, their summary with intervals, and the file format."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from rlstack.envs.foundation.files import write_text
from rlstack.files.safe_load import first_line, load_json
from rlstack.runs import versions

from .figures import OF_SUCCESSES, print_rows
from .statistics import wilson_interval

FORMAT, VERSION = "rlstack-evaluation", 1

DEFINITIONS = {
    "success": "share of episodes that the world counts as a success",
    "success_low": "lower bound of the 95 % Wilson score interval of success",
    "success_high": "upper bound of the 95 % Wilson score interval of success",
    "return": "mean over all episodes of the discounted return if the world reports one, otherwise of the return; "
    "an episode with several agents counts with the mean over its agents",
    "time": "mean time in s over successful episodes only; null when there is none",
    "energy": "mean energy in J over successful episodes only; null when there is none",
    "collision": "share of episodes with a collision",
    "length": "mean number of steps over all episodes",
    "path": "mean distance sailed in m over successful episodes only; null when there is none",
    "closest": "mean over all robots of the smallest gap to anything in m, hulls taken as circles",
    "near_miss": "share of robots that came closer than 2 m to anything without a collision",
    "rule_time": "mean time in s during which a rule of the road required a robot to turn to starboard",
    "violation_time": "the part of rule_time during which the robot did not turn to starboard",
}
"""Meanings of the numbers in a summary; any other statistic of a world is averaged over all episodes."""

_MOST_COLUMNS, _FEW_COLUMNS = 16, 10  # in a printed table
Row = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Results of one policy on one set of episodes.

    Attributes:
        episodes: float64 ``[E]`` for each statistic of the world, at the end of each episode.
        levels: level of each episode, in ascending difficulty; all ``"all"`` in a world without levels.
        world: name of the world.
        options: constructor options of the world.
        seed: seed of episodes, perception and sampling policies.
        policy: origin of the policy.
        recordings: the world's own recordings, by index of the episode.
        cut: number of episodes that had not ended after ``max_steps`` and are scored as they stood.
        max_steps: number of steps after which an episode was cut.
        faults: description of the first observation, action or reward that is not finite, by episode.
    """

    episodes: dict[str, Tensor]
    levels: list[str]
    world: str
    options: dict[str, Any]
    seed: int
    policy: str = ""
    recordings: dict[int, Any] = field(default_factory=dict)
    cut: int = 0
    max_steps: int | None = None
    faults: dict[int, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Returns the table."""
        text = StringIO()
        self.print_table(text)
        return text.getvalue().rstrip()

    @property
    def non_finite(self) -> dict[int, str]:
        """Returns the episodes that cannot be averaged, with the reason: a number in them is not finite."""
        returns = self.episodes.get("return", torch.zeros(0))
        unbounded = (~torch.isfinite(returns)).nonzero().flatten().tolist()
        return {index: f"the return is {float(returns[index])}" for index in unbounded} | self.faults

    def in_words(self) -> str:
        """Returns success and return in one line, with a warning if something is wrong."""
        summary = self.summary()
        words = [f"return {summary['eval/return']:.2f}" if "eval/return" in summary else "no return"]
        if "eval/success" in summary:
            low, high = summary["eval/success_low"], summary["eval/success_high"]
            words.insert(0, f"success {summary['eval/success']:.3f} [{low:.3f}, {high:.3f}]")
        endless = f"no episode ended within {self.max_steps:,} steps" if self.cut == len(self.levels) else ""
        return "; ".join(part for part in (", ".join(words), endless, self.trouble()) if part)

    def trouble(self) -> str:
        """Returns one line about :attr:`non_finite`; empty if there are no such episodes."""
        if not (bad := self.non_finite):
            return ""
        first = min(bad)
        return f"not finite in {len(bad)} of {len(self.levels)} episodes: {bad[first]} of episode {first}"

    def summary(self) -> dict[str, float]:
        """Returns numbers for a logger, named ``eval/...``; undefined ones (time without success) are left out.

        ``eval/non_finite`` counts the episodes that cannot be averaged, if there are any.
        """
        *levels, overall = self.table()
        numbers = {f"eval/{name}": value for name, value in overall.items() if name not in ("level", "episodes")}
        numbers |= {f"eval/success_level{row['level']}": row.get("success") for row in levels}
        numbers["eval/non_finite"] = float(len(self.non_finite)) or None
        return {name: value for name, value in numbers.items() if value is not None}

    def rank(self, tie_breaker: str = "return") -> list[float]:
        """Returns a key that sorts better evaluations last: success, then ``tie_breaker``; without success, the return.

        The return is also the tie breaker where the world shows no such statistic, as to a learner on either side. All
        values are -inf, the worst, if an episode cannot be averaged.
        """
        second = tie_breaker if tie_breaker in self.episodes else "return"
        names = ("eval/success", f"eval/{second}") if "success" in self.episodes else ("eval/return",)
        summary = {} if self.non_finite else self.summary()
        return [summary.get(name, -math.inf) for name in names]

    def table(self) -> list[Row]:
        """Returns one row per level, if there are several, and one for all; see :data:`DEFINITIONS`."""
        names = list(dict.fromkeys(self.levels))
        chosen = [("all", torch.ones(len(self.levels), dtype=torch.bool))]
        if len(names) > 1:
            chosen[:0] = [(name, torch.tensor([level == name for level in self.levels])) for name in names]
        rows = []
        for level, mask in chosen:
            values = {name: value[mask] for name, value in self.episodes.items()}
            success = values.pop("success", None)
            returns, discounted = values.pop("return", None), values.pop("discounted_return", None)
            row: Row = {"level": level, "episodes": int(mask.sum())}
            if success is not None:
                low, high = wilson_interval(int((success > 0).sum()), len(success))
                row |= {"success": float((success > 0).double().mean()), "success_low": low, "success_high": high}
            row["return"] = _mean(returns if discounted is None else discounted)
            for name, value in values.items():
                row[name] = _mean(value[success > 0] if name in OF_SUCCESSES and success is not None else value)
            rows.append(row)
        return rows

    def print_table(self, stream: TextIO | None = None) -> None:
        """Prints :meth:`table` to a stream (default: stdout): with rich to a terminal, otherwise as aligned ASCII.

        If there are many statistics, the first are columns and each of the others follows in its own row.
        """
        rows, stream = self.table(), stream or sys.stdout
        names = list(rows[0])
        first, rest = (names, []) if len(names) <= _MOST_COLUMNS else (names[:_FEW_COLUMNS], names[_FEW_COLUMNS:])
        print_rows([{name: row[name] for name in first} for row in rows], stream)
        if rest:
            print(file=stream)
            print_rows([{"statistic": name, **{str(row["level"]): row[name] for row in rows}} for name in rest], stream)

    def to_json(self) -> str:
        """Returns everything except the recordings as JSON, which :meth:`from_json` reads."""
        episodes = [
            {"level": level, **{name: _finite(float(value[index])) for name, value in self.episodes.items()}}
            for index, level in enumerate(self.levels)
        ]
        content = {
            "format": FORMAT,
            "version": VERSION,
            "policy": self.policy,
            "world": self.world,
            "seed": self.seed,
            "cut": self.cut,
            "max_steps": self.max_steps,
            "non_finite": {str(index): what for index, what in self.non_finite.items()},
            "summary": self.summary(),
            "levels": self.table(),
            "definitions": DEFINITIONS,
            "options": {name: _plain(value) for name, value in self.options.items()},
            "versions": versions(),
            "episodes": episodes,
        }
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Reads the result of :meth:`to_json`; options have JSON's types.

        Raises:
            ValueError: the text is not an evaluation of this format.
        """
        content = load_json(text)
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"not an evaluation: need format {FORMAT!r}, version {VERSION}")
        try:
            rows = [dict(row) for row in content["episodes"]]
            levels = [row.pop("level") for row in rows]
            columns = {
                name: torch.tensor([math.nan if row[name] is None else row[name] for row in rows], dtype=torch.float64)
                for name in rows[0]
            }
            read = cls(columns, levels, *(content[key] for key in ("world", "options", "seed", "policy")))
            faults = {int(index): str(what) for index, what in content.get("non_finite", {}).items()}
            if any(value.dim() != 1 for value in columns.values()) or not all(isinstance(name, str) for name in levels):
                raise ValueError("an episode holds something other than a level and numbers")
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"not a complete evaluation ({type(error).__name__}: {first_line(error)})") from None
        return replace(read, cut=content.get("cut", 0), max_steps=content.get("max_steps"), faults=faults)

    def save(self, path: str | Path) -> None:
        """Writes :meth:`to_json` to a file, which it replaces atomically; creates missing folders."""
        write_text(path, self.to_json())


def _mean(values: Tensor | None) -> float | None:
    return None if values is None or not len(values) else _finite(float(values.mean()))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    """Returns a constructor option in JSON's types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    return str(value).removeprefix("torch.")
