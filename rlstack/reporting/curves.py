"""All curves of the runs, one panel each, in sections by subject."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from .blocks import Block, DataTable, Panels, Section
from .charts import Chart, lines_of, mean_of, quantity
from .differences import GroupComparison
from .runs import StoredRun

SHARES = ("success", "collision", "win_rate")
"""Statistics between 0 and 1."""
_STAGE = "curriculum/stage"
_SHOWN = 6
FIRST = ("success", "return", "length", "time", "energy", "collision")
"""The statistics of an evaluation that are shown first."""
_LAST = ("episodes", "updates")
_APART = ("eval", "train", "curriculum", "play", "time", "system", "imitation", "schedule")


def panels(comparison: GroupComparison, metrics: Iterable[str], **options: Any) -> list[Chart]:
    """Returns a chart of each metric that a run has logged."""
    drawn = []
    for metric in metrics:
        lines = sorted(lines_of(comparison, metric), key=lambda line: line.colour is not None)
        share = metric.rpartition("/")[2].partition("_level")[0] in SHARES
        rate = quantity(metric) == "learning rate" and any((line.y > 0).any() for line in lines)
        if lines:
            limits = (0.0, 1.0) if share else None
            drawn.append(Chart(metric, lines, limits=limits, log="y" if rate else "", **options))
    return drawn


def other_rewards(comparison: GroupComparison, shown: Iterable[str]) -> str:
    """Returns a line on why returns in training and evaluations may differ, if both were logged."""
    if "train/return" not in shown or not any("eval/return" in run.curves for run in comparison.runs):
        return ""
    return (
        "train/return and eval/return may differ in size and even in sign: training sums the rewards that the agent "
        "learns from, shaped by the world's options, while it explores; an evaluation sums the world's own rewards "
        "without exploration, discounted if the world says so."
    )


def sections(comparison: GroupComparison) -> list[Section]:
    """Returns sections of the logged metrics beyond the results, such as evaluations, training, reward and learner.

    A metric is shown if some run has more than one point of it.
    """
    points: dict[str, int] = {}
    for run in comparison.runs:
        points |= {name: max(len(curve.values), points.get(name, 0)) for name, curve in run.curves.items()}
    shown = [name for name in points if not name.endswith(("_low", "_high")) and name not in comparison.first]
    metrics = [name for name in shown if points[name] > 1]

    def of(prefix: str) -> list[str]:
        return sorted((name for name in metrics if name.startswith(prefix)), key=_place)

    rewards = of("train/reward_") or of("eval/reward_")
    levels = of("eval/success_level")
    evaluated = [name for name in of("eval/") if name not in levels and not name.startswith("eval/reward_")]
    learner = [name for name in metrics if name.partition("/")[0] not in _APART]
    trained = [name for name in of("train/") if not name.startswith("train/reward_")]
    chosen = {
        "Evaluations over the run": evaluated,
        "Training": trained,
        "Terms of the reward": rewards,
        "Learner": learner,
        "Schedules": of("schedule/"),
        "Imitation": of("imitation/"),
        "Play": of("play/"),
    }
    by_subject = []
    for title, wanted in chosen.items():
        drawn = panels(comparison, wanted)
        caption = other_rewards(comparison, wanted)
        blocks: list[Block] = [Panels(drawn[:_SHOWN], drawn[_SHOWN:], caption)] if drawn else []
        if wanted is evaluated and levels:
            blocks.append(_by_level(comparison, levels))
        by_subject += [Section(title, blocks)] if blocks else []
    return by_subject + _curriculum(comparison, of("curriculum/"))


def _place(metric: str) -> int:
    """Returns a metric's place in its section: the most important first, those that only grow last."""
    name = metric.rpartition("/")[2]
    return FIRST.index(name) if name in FIRST else len(FIRST) + (name in _LAST)


def _by_level(comparison: GroupComparison, levels: Sequence[str]) -> Panels:
    """Draws success at every level, in one chart for a single group."""
    if len(comparison.groups) > 1:
        return Panels([], panels(comparison, levels), fold="Success by level")
    lines = []
    for index, level in enumerate(levels):
        curves = [run.curves[level] for run in comparison.runs if level in run.curves]
        lines.append(replace(mean_of(curves, f"level {level.rpartition('_level')[2]}", index % 8), low=None, high=None))
    return Panels([Chart("eval/success by level", lines, limits=(0.0, 1.0))])


def _curriculum(comparison: GroupComparison, metrics: Sequence[str]) -> list[Section]:
    if not metrics:
        return []
    stages = comparison.runs[0].part("curriculum").get("stages")
    stages = stages if isinstance(stages, list) else []
    names = {float(k): str(stage.get("name", k)) for k, stage in enumerate(stages) if isinstance(stage, dict)}
    drawn = panels(comparison, [_STAGE], step=True, names=names or None)
    drawn += panels(comparison, [name for name in metrics if name != _STAGE])
    blocks: list[Block] = [Panels(drawn[:_SHOWN], drawn[_SHOWN:])]
    runs = [run for run in comparison.runs if _STAGE in run.curves]
    if runs and len(runs) <= 12:
        reached = range(int(max(run.curves[_STAGE].values.max() for run in runs)) + 1)
        rows = [[run.name, *(_entered(run, stage) for stage in reached)] for run in runs]
        head = ["run", *(names.get(stage, str(stage)) for stage in reached)]
        caption = "Frames at which each run first reached a stage."
        blocks.append(DataTable.of_runs(head, rows, len(comparison.runs) > 1, caption=caption))
    return [Section("Curriculum", blocks)]


def _entered(run: StoredRun, stage: int) -> str:
    frames, values = run.curves[_STAGE]
    inside = frames[values >= stage]
    if values[0] >= stage:
        return "start"
    return f"{int(inside[0]):,}" if len(inside) else "–"
