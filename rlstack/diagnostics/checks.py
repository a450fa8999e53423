"""Judges the facts about a run by the table in ``checks.yaml``: what is wrong, what is usual, what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .evidence import Evidence

FAULT, SYMPTOM, REMARK = "fault", "symptom", "remark"
_TEXTS = ("title", "measured", "usual", "source", "change")


@dataclass(frozen=True)
class Finding:
    """Something that keeps an agent from learning.

    Attributes:
        name: name of the check.
        severity: ``fault``, ``symptom`` or ``remark``.
        title: what is wrong, in one sentence.
        measured: what was measured.
        usual: what is usual.
        source: who says so.
        change: what to change.
        options: the change as overrides of ``rlstack train``; empty if it cannot be written as options.
    """

    name: str
    severity: str
    title: str
    measured: str
    usual: str
    source: str
    change: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Describes the finding in lines."""
        lines = (
            f"{self.title} ({self.severity})",
            f"  measured: {self.measured}",
            f"  usual:    {self.usual} ({self.source})",
            f"  change:   {self.change}",
        )
        return "\n".join(lines)


def findings(evidence: Evidence) -> list[Finding]:
    """Returns what the checks find, the likeliest cause first.

    Symptoms and remarks are left out where the agent is clearly better than random actions, because agents that learn
    show many of them as well.
    """
    known, made = evidence.facts(), dict[str, Finding]()
    for row in yaml.safe_load(Path(__file__).with_name("checks.yaml").read_text(encoding="utf-8")):
        bounds = [(known[name], *ends) for name, ends in row["outside"].items() if name in known]
        wrong = any(
            (low is not None and value <= low) or (high is not None and value >= high) for value, low, high in bounds
        )
        if wrong and row["name"] not in made and (row["severity"] == FAULT or not evidence.learned):
            texts = {name: row[name].format_map(known) for name in _TEXTS}
            options = _proposed(row.get("options", {}), known, evidence.config)
            made[row["name"]] = Finding(row["name"], row["severity"], **texts, options=options)
    return sorted(made.values(), key=lambda finding: (FAULT, SYMPTOM, REMARK).index(finding.severity))


def _proposed(options: Mapping[str, Any], known: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those options that the run has, and whose values would change."""
    proposed = {}
    for key, value in options.items():
        key = key.format_map(known)
        group, _, name = key.partition(".")
        value = known.get(value[1:-1]) if isinstance(value, str) and value.startswith("{") else value
        ignored = name in ("activation", "layer_norm") and config["agent"].get("network")  # of a network of one's own
        if not ignored and value is not None and name in config[group] and config[group][name] != value:
            proposed[key] = value
    return proposed
