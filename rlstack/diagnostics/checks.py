"""Judges the facts about a run by the table in ``checks.yaml``, and tries a change in pairs of short runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from omegaconf import OmegaConf
from scipy import stats

from rlstack.config import ConfigError, to_plain
from rlstack.config.allowed import granting
from rlstack.envs.foundation.work import working
from rlstack.runs.seeding import surroundings_untouched
from rlstack.training.loggers import METRICS_FILE, read_metrics
from rlstack.training.run import begun

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
            options = {}  # those that the run has, and whose values would change
            for key, value in row.get("options", {}).items():
                key = key.format_map(known)
                group, _, name = key.partition(".")
                value = known.get(value[1:-1]) if isinstance(value, str) and value.startswith("{") else value
                own_network = name in ("activation", "layer_norm") and evidence.config["agent"].get("network")
                if not own_network and value is not None and evidence.config[group].get(name, value) != value:
                    options[key] = value
            made[row["name"]] = Finding(row["name"], row["severity"], **texts, options=options)
    return sorted(made.values(), key=lambda finding: (FAULT, SYMPTOM, REMARK).index(finding.severity))


_LINES = (
    ("mean return", "{return_random:.4g} at random, {return_explored:.4g} exploring, {return_greedy:.4g} greedy"),
    ("evaluated", "{return_evaluated:.4g} in the run's last evaluation, {return_greedy:.4g} greedy in its worlds"),
    ("episodes", "{episodes_explored}, {rewarded_explored:.0%} with a reward, {cut_explored:.0%} cut by a time limit"),
    ("at random", "{episodes_random}, {rewarded_random:.0%} with a reward, {cut_random:.0%} cut by a time limit"),
    ("returns", "a standard deviation of {return_std:.3g}, discounted"),
    ("values", "explained variance {explained:.2f}, {bias:+.2f} standard deviations off"),
    ("advantages", "a standard deviation of {advantage_std:.3g}, the sign of what followed in {agreement:.0%}"),
    ("hidden units", "at most {dormant:.0%} of a layer dormant, {saturated:.0%} saturated"),
    ("features", "an effective rank of {rank} of {features}"),
    ("KL divergence", "{policy/kl:.3g} a batch"),
    ("clipped", "{policy/clipped:.0%} of probability ratios"),
    ("entropy", "{policy/entropy:.3g}"),
    ("gradients", "a median norm of {median_norm:.3g} ({median_norm_of}), shortened above {max_grad_norm:g}"),
    ("updates", "{updates:,}, each transition drawn {drawn:.3g} times"),
    (
        "replay buffer",
        "{replay_size:,.0f} of {frames:,}, {replay_terminated:.2%} terminal, {replay_rewarded:.0%} rewarded",
    ),
)


def heading(evidence: Evidence, facts: Mapping[str, Any]) -> list[str]:
    """Returns lines about the run, its fresh episodes and its networks."""
    agent, env = evidence.config["agent"], evidence.config["env"]
    better = "better than" if evidence.learned else "not clearly better than"
    world = env.get("id") or env.get("name")
    lines = [f"{agent.get('name')} in {world}, {evidence.frames:,} frames: {better} random actions"]
    for name, text in _LINES:
        with suppress(KeyError):  # what is not known has no line
            lines.append(f"  {name:<14}{text.format_map(facts)}")
    return lines


@dataclass(frozen=True)
class Trial:
    """The result of trying a change.

    Attributes:
        options: the change.
        before, after: mean return of each seed at the end of the runs without and with the change.
        frames: length of each run.
        gain: mean difference within pairs, and the ends of its 95 % interval (Student's t).
        helps: True or False where the interval lies above or below zero; None where it contains zero.
    """

    options: dict[str, Any]
    before: list[float]
    after: list[float]
    frames: int
    gain: float
    low: float
    high: float
    helps: bool | None

    def __str__(self) -> str:
        """Describes the result."""
        change = " ".join(f"{key}={value}" for key, value in self.options.items())
        verdict = {True: "it helps", False: "it does harm", None: "no difference can be told"}[self.helps]
        interval = f"{self.gain:+.4g}, 95 % interval {self.low:+.4g} to {self.high:+.4g}"
        return f"tried {change}: {len(self.before)} pairs of {self.frames:,} frames, return {interval}: {verdict}"


def compare(evidence: Evidence, finding: Finding, minutes: float, seeds: int) -> Trial:
    """Trains with and without the change of a finding, for about ``minutes`` together.

    Raises:
        ConfigError: the change does not fit the run.
    """
    base = to_plain(evidence.config)
    began = time.perf_counter()
    with working("trying the change", "runs", 2 * seeds) as work:
        _, tried = _trained(base, {}, 0, min(int(base["total_frames"]), 2000))
        rate = tried / (time.perf_counter() - began)
        frames = int(min(max(rate * 60 * minutes / (2 * seeds + 1), tried), base["total_frames"]))
        sides: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * seeds):
            seed, changed = divmod(number, 2)
            result, trained = _trained(base, finding.options if changed else {}, seed, frames)
            sides[bool(changed)].append(result)
            work.reach(number + 1)
    return paired(finding.options, sides[False], sides[True], trained)


def paired(options: Mapping[str, Any], before: list[float], after: list[float], frames: int) -> Trial:
    """Returns what pairs of results say about a change."""
    gains = np.subtract(after, before)
    mean, half = float(gains.mean()), float(stats.t.ppf(0.975, len(gains) - 1) * stats.sem(gains))
    helps = True if mean - half > 0 else False if mean + half < 0 else None
    return Trial(dict(options), before, after, frames, mean, mean - half, mean + half, helps)


def _trained(base: Mapping[str, Any], options: Mapping[str, Any], seed: int, frames: int) -> tuple[float, int]:
    """Trains a short run in a temporary folder; returns the mean return over its last quarter, and its frames."""
    nested = OmegaConf.create(dict(base))
    for key, value in options.items():
        OmegaConf.update(nested, key, value, force_add=True)
    with tempfile.TemporaryDirectory(prefix="rlstack-explain-") as folder:
        own = {
            **{"seed": seed, "total_frames": frames, "until": None, "resume": None, "init": None, "notify": None},
            **{"run_dir": str(Path(folder) / "run"), "log_every": max(frames // 40, 1)},
            "eval": {**dict(base["eval"]), "every": 1e9, "episodes": 10},
            "checkpoint": {**dict(base["checkpoint"]), "every": 1e9, "replay": False},
            "logger": {"tensorboard": False, "wandb": "disabled", "mlflow": False, "trackio": False},
        }
        plain = to_plain(OmegaConf.merge(nested, own))
        with surroundings_untouched(), granting([plain]), redirect_stdout(StringIO()), begun(plain) as training:
            training.execute()
            trained = training.frames
        rows = read_metrics(Path(folder) / "run" / METRICS_FILE)
    logged = ([row[name] for row in rows if name in row] for name in ("train/return", "eval/return"))
    if (values := next(filter(None, logged), None)) is None:
        raise ConfigError("try: no episode ended in the runs; give more minutes=")
    last = values[-max(len(values) // 4, 1) :]
    return sum(last) / len(last), trained
