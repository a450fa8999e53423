"""Every curve of the runs, a panel each, in sections by subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from .blocks import Block, DataTable, Panels, Section
from .charts import Line, chart, line_of
from .differences import RunGroup
from .runs import StoredRun

SHARES = ("success", "collision", "win_rate")
"""Statistics between 0 and 1."""
_STAGE = "curriculum/stage"
SINGLE = 3
"""Of no more groups than these, the single runs are drawn, too."""
_SHOWN = 6
FIRST = ("success", "return", "length", "time", "energy", "collision")
"""Of an evaluation's statistics, those that are shown first."""
_LAST = ("episodes", "updates")
_ENDS = ("_low", "_high")
_APART = ("eval", "train", "curriculum", "play", "time", "system", "imitation", "schedule")
Colours = Mapping[str, int | None]


def panel(
    metric: str, colours: Colours, groups: Sequence[RunGroup], title: str | None = None, **options: Any
) -> tuple[str, Markup] | None:
    """A chart of a metric, a line for each group; None where no run has logged it."""
    lines = [line_of(group.runs, metric, group.label, colours[group.label], len(groups) <= SINGLE) for group in groups]
    drawn = sorted((line for line in lines if line is not None), key=lambda line: line.colour is not None)
    share = metric.rpartition("/")[2].partition("_level")[0] in SHARES
    limits = (0.0, 1.0) if share else None
    return (title or metric, chart(metric, drawn, limits, **options)) if drawn else None


def _panels(metrics: Sequence[str], colours: Colours, groups: Sequence[RunGroup]) -> list[tuple[str, Markup]]:
    return [drawn for metric in metrics if (drawn := panel(metric, colours, groups)) is not None]


def sections(
    groups: Sequence[RunGroup], colours: Colours, legend: Sequence[tuple[str, str]], but: Sequence[str] = ()
) -> list[Section]:
    """All that was logged, but some: evaluations, training, terms of the reward, the learner, curriculum, opponents."""
    names = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.curves))
    metrics = [name for name in names if not name.endswith(_ENDS) and name not in but and _is_curve(name, groups)]

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
    found = []
    for title, wanted in chosen.items():
        panels = _panels(wanted, colours, groups)
        blocks: list[Block] = [Panels(panels[:_SHOWN], panels[_SHOWN:], legend)] if panels else []
        if wanted is evaluated and levels:
            blocks.append(_by_level(levels, colours, groups))
        found += [Section(title, blocks)] if blocks else []
    return found + _curriculum(groups, colours, legend, of("curriculum/"))


def _is_curve(metric: str, groups: Sequence[RunGroup]) -> bool:
    """Somewhere it has more than one point."""
    return any(len(run.curves[metric].values) > 1 for group in groups for run in group.runs if metric in run.curves)


def _place(metric: str) -> int:
    """Of a metric among those of its section: first what is asked for first, last what only grows."""
    name = metric.rpartition("/")[2]
    return FIRST.index(name) if name in FIRST else len(FIRST) + (name in _LAST)


def _by_level(levels: Sequence[str], colours: Colours, groups: Sequence[RunGroup]) -> Panels:
    """Success at every level: of one group in one chart."""
    if len(groups) > 1:
        return Panels([], _panels(levels, colours, groups))
    names = [level.rpartition("_level")[2] for level in levels]
    lines = [
        line_of(groups[0].runs, level, f"level {name}", index % 8)
        for index, (level, name) in enumerate(zip(levels, names))
    ]
    drawn = [Line(line.label, line.colour, line.x, line.y) for line in lines if line is not None]
    legend = [(line.label, f"c{line.colour}") for line in drawn]
    return Panels([("eval/success by level", chart("success by level", drawn, (0.0, 1.0)))], legend=legend)


def _curriculum(
    groups: Sequence[RunGroup], colours: Colours, legend: Sequence[tuple[str, str]], metrics: Sequence[str]
) -> list[Section]:
    if not metrics:
        return []
    names = _stage_names(groups[0].runs[0])
    stages = panel(_STAGE, colours, groups, step=True, names=names or None)
    panels = ([stages] if stages else []) + _panels([name for name in metrics if name != _STAGE], colours, groups)
    blocks: list[Block] = [Panels(panels[:_SHOWN], panels[_SHOWN:], legend)]
    runs = [run for group in groups for run in group.runs if _STAGE in run.curves]
    if runs and len(runs) <= 12:
        rows = []
        for stage in range(int(max(run.curves[_STAGE].values.max() for run in runs)) + 1):
            rows.append([names.get(stage, str(stage)), *(_entered(run, stage) for run in runs)])
        head = ["stage", *(run.name for run in runs)]
        blocks.append(DataTable(head, rows, caption="Frames after which a run was first seen in a stage."))
    return [Section("Curriculum", blocks)]


def _stage_names(run: StoredRun) -> dict[float, str]:
    stages = run.part("curriculum").get("stages")
    if not isinstance(stages, list):
        return {}
    return {float(k): str(stage.get("name", k)) for k, stage in enumerate(stages) if isinstance(stage, dict)}


def _entered(run: StoredRun, stage: int) -> str:
    frames, values = run.curves[_STAGE]
    if values[0] >= stage:
        return "start"
    inside = frames[values >= stage]
    return f"{int(inside[0]):,}" if len(inside) else "–"
