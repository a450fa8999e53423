"""Shows the results: final scores and evaluations by group and by run, and leagues beside the runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import check_regular
from rlstack.evaluation.statistics import LEAST, bootstrap_interval, iqm

from .blocks import Block, DataTable, Panels, Paragraphs, Section, duration, interval, number
from .charts import Chart, Line, Parallel, over_option, thinned
from .curves import FIRST, other_rewards, panels
from .differences import GroupComparison, RunGroup, returns_of, written
from .runs import CPU_SECONDS, Curve, StoredEvaluation, StoredRun

_CURVES, _CROSSED = 8, 20
"""Numbers of best players of a league whose curves are drawn, and who are in the cross table."""
_RECORD = ("games", "wins", "draws", "losses", "decided_win_rate")
_HIDDEN = ("level", "episodes", "success_low", "success_high")


def results(comparison: GroupComparison) -> Section:
    """Shows curves of the scores, and tables."""
    blocks: list[Block] = []
    if drawn := panels(comparison, comparison.first):
        caption = " ".join(filter(None, (_told(comparison), other_rewards(comparison, comparison.first))))
        blocks.append(Panels(drawn, caption=caption, big=True))
    if comparison.metric is not None:
        blocks += _compared(comparison)
    blocks += _judged(comparison)
    return Section("Results", blocks or [Paragraphs(["There are no numbers to show."])])


def _told(comparison: GroupComparison) -> str:
    """Returns a line that explains the bands."""
    if any(len(group.runs) > 1 for group in comparison.groups):
        return "Mean over seeds; the band shows their range."
    bounded = any(f"{name}_low" in run.curves for name in comparison.first for run in comparison.runs)
    return "The band shows the 95 % Wilson interval over the episodes." if bounded else ""


def _compared(comparison: GroupComparison) -> Iterator[Block]:
    metric, groups, scores = str(comparison.metric), comparison.ranked, comparison.scores
    if len(comparison.runs) == 1:
        return
    keys = list(groups[0].values)
    several = any(len(group.runs) > 1 for group in groups)
    bounded = any(score is not None and score.interval for score in scores.values())
    spread = ["mean", "IQM", "minimum", "maximum"] if several else [metric]
    spread += ["95 % interval"] if bounded else []
    head = [*(keys or ["runs"]), "seeds", *spread, "frames", "CPU time a run" if several else "CPU time"]
    rows = [_row(comparison, group, keys, spread) for group in groups]
    caption = [f"{metric} at the end of each run."]
    if len(comparison.worlds) > 1:
        caption.append("Scores of different worlds do not compare.")
    elif comparison.leader is not None and len(groups) > 1:
        label, title, why = comparison.leader
        caption.append(f"{title.capitalize()}: {label}, {why}.")
    caption += ["Intervals: over five seeds or more, or over the episodes of a single run."] if bounded else []
    yield DataTable(head, rows, text=max(len(keys), 1), caption=" ".join(caption))
    scored = [(group, score.mean) for group in groups if (score := scores[group.label]) is not None]
    if keys and len(scored) > 1 and len(comparison.worlds) == 1:
        if len(keys) == 1:
            yield Panels([over_option(comparison, keys[0])], caption=f"A dot for each run, over {keys[0]}.", big=True)
            return
        values = [[group.values[key] for key in keys] for group, _ in scored]
        about = f"One line for each group of runs, coloured by its mean {metric}; drag along an axis to select some."
        yield Panels([Parallel(keys, values, metric, [score for _, score in scored])], caption=about, big=True)


def _row(comparison: GroupComparison, group: RunGroup, keys: Sequence[str], spread: Sequence[str]) -> list[Any]:
    score = comparison.scores[group.label]
    cells = [written(group.values[key]) for key in keys] or [group.label]
    colour = comparison.colours[group.label]
    swatch = Markup('<i class="swatch {}"></i>').format("grey" if colour is None else f"c{colour}")
    cells[0] = swatch + escape(cells[0])
    seconds = [value for run in group.runs if (value := run.last(CPU_SECONDS)) is not None]
    frames = [run.frames for run in group.runs]
    reached = number(frames[0]) if len(set(map(number, frames))) == 1 else interval((min(frames), max(frames)))
    figures: dict[str, str] = {}
    if score is not None:
        figures = {"IQM": number(score.iqm), "95 % interval": interval(score.interval)}
        figures |= {"minimum": number(min(score.values)), "maximum": number(max(score.values))}
        figures |= {"mean": number(score.mean), str(comparison.metric): number(score.mean)}
    shown = [figures.get(name, "–") for name in spread]
    return [*cells, len(group.runs), *shown, reached, duration(sum(seconds) / len(seconds)) if seconds else "–"]


# -- evaluations -------------------------------------------------------------------------------------------------


def _judged(comparison: GroupComparison) -> Iterator[Block]:
    """Tabulates evaluations: the last one of a single run and later ones by level, or the last ones of several runs."""
    runs, several = comparison.runs, len(comparison.runs) > 1
    last = None if several else runs[0].last_evaluation
    if last is None and any(run.last("eval/return") is not None for run in runs):
        yield _all_runs(runs)
    later = [(run, entry) for run in runs for entry in run.evaluations if entry.frames is None]
    entries = [] if last is None else [(runs[0], last._replace(name=f"at {last.frames:,} frames"))]
    entries += [(run, entry) for run, entry in later if "opponents" not in entry.content]
    levels = [(run, entry, level) for run, entry in entries for level in entry.content["levels"]]
    names = _statistics([level for *_, level in levels])
    if levels:
        first = [name for name in names if name in FIRST]
        rows = [
            [run.name, entry.name, str(level.get("level", "")), number(level.get("episodes")), *_cells(level, first)]
            for run, entry, level in levels
        ]
        caption = "Evaluations at the end of training and by rlstack evaluate, with 95 % intervals of success."
        yield DataTable.of_runs(["run", "evaluation", "level", "episodes", *first], rows, several, 3, caption=caption)
    if last is not None:
        if (spread := _spread(last)) is not None:
            yield spread
        if rest := [name for name in _statistics(last.content["levels"]) if name not in FIRST]:
            columns = [_cells(level, rest) for level in last.content["levels"]]
            head = ["", *(str(level.get("level", "")) for level in last.content["levels"])]
            fold = f"{len(rest)} more statistics of the last evaluation"
            yield DataTable(head, [list(row) for row in zip(rest, *columns)], fold=fold)
    if games := [(run, entry) for run, entry in later if "opponents" in entry.content]:
        yield _games(games, several)


def _spread(evaluation: StoredEvaluation) -> DataTable | None:
    """Tabulates the distribution of the episodes' returns."""
    returns = returns_of(evaluation)
    levels = list(dict.fromkeys(level for level, _ in returns))
    parts = {level: [value for name, value in returns if name == level] for level in levels}
    if len(levels) > 1:
        parts["all"] = [value for _, value in returns]
    rows = []
    for name, values in parts.items():
        spread = interval(bootstrap_interval(values, iqm)) if len(values) >= LEAST else "–"
        ends = [number(float(value)) for value in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
        rows.append([name, number(len(values)), number(float(np.mean(values))), number(iqm(values)), spread, *ends])
    head = ["level", "episodes", "mean return", "IQM", "95 % interval"]
    head += ["minimum", "lower quartile", "median", "upper quartile", "maximum"]
    caption = "Returns of these episodes; the interval is a bootstrap of their interquartile mean (IQM)."
    return DataTable(head, rows, caption=caption) if rows else None


def _all_runs(runs: Sequence[StoredRun]) -> DataTable:
    names = [name for name in FIRST if any(f"eval/{name}" in run.curves for run in runs)]
    rows = []
    for run in runs:
        logged = {key.removeprefix("eval/"): run.last(key) for key in run.curves if key.startswith("eval/")}
        values = {name: value for name, value in logged.items() if value is not None}
        frames = f"{run.frames:,}" + ("" if run.complete else " (incomplete)")
        rows.append([run.name, str(run.seed), frames, *_cells(values, names)])
    fold = None if len(runs) < 13 else "Every run"
    caption = "The last evaluation of every run."
    return DataTable.of_runs(["run", "seed", "frames", *names], rows, len(runs) > 1, caption=caption, fold=fold)


def _games(entries: Sequence[tuple[StoredRun, StoredEvaluation]], several: bool) -> DataTable:
    rows = []
    for run, entry in entries:
        for row in entry.content["opponents"]:
            rating = number(row.get("elo_after"))
            rows.append([run.name, entry.name, str(row.get("opponent", "")), *_cells(row, _RECORD), rating])
    head = ["run", "evaluation", "opponent", "games", "won", "drawn", "lost", "of decided (95 %)", "rating"]
    return DataTable.of_runs(head, rows, several, 3, caption="Games against opponents.")


def _statistics(levels: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for level in levels for name in level if name not in _HIDDEN)
    return [*(name for name in FIRST if name in names), *(name for name in names if name not in FIRST)]


def _cells(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Formats statistics, each with its interval if it has one."""
    cells = []
    for name in names:
        bounds = [values.get(f"{name}{end}") for end in ("_low", "_high")]
        cells.append(number(values.get(name)) + ("" if None in bounds else f" ({interval(bounds)})"))
    return cells


# -- leagues -----------------------------------------------------------------------------------------------------


def leagues(folders: list[Path], notes: list[tuple[str, str]]) -> list[Section]:
    """Returns a section with all leagues, or no section without leagues. One that cannot be read gets a note."""
    blocks: list[Block] = []
    for folder in folders:
        try:
            blocks += _league(folder)
        except ConfigError as error:
            notes.append((folder.name, str(error)))
    return [Section("League", blocks)] if blocks else []


def _league(folder: Path) -> list[Block]:
    # Imported here, since players and worlds import torch, which takes seconds.
    from rlstack.play.league import League
    from rlstack.play.results import cross_table, rating_curves, standings

    league = League.open(folder)
    rows = []
    for row in standings(league):
        described = [str(row[key] or "–") for key in ("kind", "commander")]
        rated = [number(row["rating"]), number(row.get("deviation"))]
        rows.append([row["player"], *described, *rated, *_cells(row, _RECORD)])
    name = f"{folder.name}: {len(league.members)} players, {len(league.games):,} games, {league.ratings.kind}"
    if not rows:
        return [Paragraphs([f"{name}. It has no players yet."])]
    head = ["player", "kind", "commander", "rating", "deviation", "games", "won", "drawn", "lost", "of decided (95 %)"]
    blocks: list[Block] = [DataTable(head, rows, 3, name)]
    if league.games:
        names = [row[0] for row in rows if row[5] != "0"]
        cross = cross_table(league.games, names[:_CROSSED])
        caption = "Wins, draws and losses of the row against the column."
        blocks.append(DataTable(list(cross[0]), [list(row.values()) for row in cross], caption=caption))
        curves, lines = rating_curves(league), []
        for index, player in enumerate(names[:_CURVES]):
            values = np.array(curves[player])
            lines.append(Line(player, index, *thinned(Curve(np.arange(1.0, len(values) + 1), values))))
        drawn = Chart("rating over a player's games", lines, "rating", "games of the player")
        blocks.append(Panels([drawn]))
    return blocks


# -- explanations ------------------------------------------------------------------------------------------------------


EXPLANATION = "explanation.json"
_OF_FINDINGS = ("title", "measured", "usual", "change")


def explained_runs(runs: Sequence[StoredRun]) -> Section:
    """Shows what ``rlstack explain`` found: without blocks if no run has a file of it; a damaged one adds a note."""
    rows, clean = [], []
    for run in runs:
        if not (path := run.path / EXPLANATION).is_file():
            continue
        try:
            findings = json.loads(check_regular(path).read_text(encoding="utf-8"))["findings"]
            rows += [[run.name, *(str(finding.get(name, "")) for name in _OF_FINDINGS)] for finding in findings]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            run.notes.append(f"{EXPLANATION} cannot be read")
            continue
        clean += [] if findings else [f"{run.name}: nothing that usually keeps an agent from learning"]
    head = ["run", "finding", "measured", "usual", "change"]
    blocks: list[Block] = [DataTable.of_runs(head, rows, len(runs) > 1, text=5)] if rows else []
    return Section("Why it does or does not learn", blocks + ([Paragraphs(clean)] if clean else []))
