"""The sections of the page: results, leagues, curves of all metrics, time, configuration, environment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from markupsafe import Markup, escape

from rlstack.config import ConfigError
from rlstack.config.groups import folder_flags
from rlstack.envs.foundation.files import check_regular
from rlstack.evaluation.statistics import LEAST, bootstrap_interval, iqm

from .blocks import Block, Code, DataTable, Panels, Paragraphs, Section, duration, interval, number, shorter
from .charts import Chart, Line, Parallel, lines_of, mean_of, over_option, quantity, thinned
from .differences import GroupComparison, RunGroup, from_default, returns_of, varied, written
from .runs import CPU_SECONDS, SECONDS, Curve, StoredEvaluation, StoredRun

# -- curves of all metrics, by subject ---------------------------------------------------------------------------------


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


def all_curves(comparison: GroupComparison) -> list[Section]:
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
        if wanted is evaluated and levels and len(comparison.groups) > 1:
            blocks.append(Panels([], panels(comparison, levels), fold="Success by level"))
        elif wanted is evaluated and levels:
            lines = []
            for index, level in enumerate(levels):
                curves = [run.curves[level] for run in comparison.runs if level in run.curves]
                mean = mean_of(curves, f"level {level.rpartition('_level')[2]}", index % 8)
                lines.append(replace(mean, low=None, high=None))
            blocks.append(Panels([Chart("eval/success by level", lines, limits=(0.0, 1.0))]))
        by_subject += [Section(title, blocks)] if blocks else []
    staged = of("curriculum/")
    return [*by_subject, curriculum(comparison, staged)] if staged else by_subject


def _place(metric: str) -> int:
    """Returns a metric's place in its section: the most important first, those that only grow last."""
    name = metric.rpartition("/")[2]
    return FIRST.index(name) if name in FIRST else len(FIRST) + (name in _LAST)


def curriculum(comparison: GroupComparison, metrics: Sequence[str]) -> Section:
    """Draws the metrics of a curriculum, and tabulates when each run first reached each stage."""
    named = [_stage_names(run) for run in comparison.runs if _STAGE in run.curves]
    names = named[0] if named and all(one == named[0] for one in named) else {}  # numbers for different curricula
    drawn = panels(comparison, [_STAGE], step=True, names=names or None)
    drawn += panels(comparison, [name for name in metrics if name != _STAGE])
    blocks: list[Block] = [Panels(drawn[:_SHOWN], drawn[_SHOWN:])]
    runs = [run for run in comparison.runs if _STAGE in run.curves]
    if runs and len(runs) <= 12:
        reached = range(int(max(run.curves[_STAGE].values.max() for run in runs)) + 1)
        rows = []
        for run in runs:
            frames, values = run.curves[_STAGE]
            entered = [frames[values >= stage][:1] for stage in reached]
            rows.append([run.name, *(f"{int(first[0]):,}" if len(first) else "–" for first in entered)])
            rows[-1][1 : 2 + int(values[0])] = ["start"] * (1 + int(values[0]))
        head = ["run", *(names.get(stage, str(stage)) for stage in reached)]
        caption = "Frames at which each run first reached a stage."
        blocks.append(DataTable.of_runs(head, rows, len(comparison.runs) > 1, caption=caption))
    return Section("Curriculum", blocks)


def _stage_names(run: StoredRun) -> dict[float, str]:
    stages = run.part("curriculum").get("stages")
    stages = stages if isinstance(stages, list) else []
    return {float(k): str(stage.get("name", k)) for k, stage in enumerate(stages) if isinstance(stage, dict)}


# -- final scores and evaluations, by group and by run; leagues --------------------------------------------------------


_CURVES, _CROSSED = 8, 20
"""Numbers of best players of a league whose curves are drawn, and who are in the cross table."""
_RECORD = ("games", "wins", "draws", "losses", "decided_win_rate")
_HIDDEN = ("level", "episodes", "success_low", "success_high")


def results(comparison: GroupComparison) -> Section:
    """Shows curves of the scores, and tables."""
    blocks: list[Block] = []
    if drawn := panels(comparison, comparison.first):
        bands = ""
        if any(len(group.runs) > 1 for group in comparison.groups):
            bands = "Mean over seeds; the band shows their range."
        elif any(f"{name}_low" in run.curves for name in comparison.first for run in comparison.runs):
            bands = "The band shows the 95 % Wilson interval over the episodes."
        caption = " ".join(filter(None, (bands, other_rewards(comparison, comparison.first))))
        blocks.append(Panels(drawn, caption=caption, big=True))
    if comparison.metric is not None and len(comparison.runs) > 1:
        blocks += _compared(comparison)
    blocks += _judged(comparison)
    return Section("Results", blocks or [Paragraphs(["There are no numbers to show."])])


def _compared(comparison: GroupComparison) -> Iterator[Block]:
    metric, groups, scores = str(comparison.metric), comparison.ranked, comparison.scores
    keys = list(groups[0].values)
    several = any(len(group.runs) > 1 for group in groups)
    bounded = any(score is not None and score.interval for score in scores.values())
    spread = ["mean", "IQM", "minimum", "maximum"] if several else [metric]
    spread += ["95 % interval"] if bounded else []
    head = [*(keys or ["runs"]), "seeds", *spread, "frames", "CPU time a run" if several else "CPU time"]
    rows = []
    for group in groups:
        cells, colour = [written(group.values[key]) for key in keys], comparison.colours[group.label]
        swatch = Markup('<i class="swatch {}"></i>').format("grey" if colour is None else f"c{colour}")
        cells = [swatch + escape((cells or [group.label])[0]), *cells[1:]]
        seconds = [value for run in group.runs if (value := run.last(CPU_SECONDS)) is not None]
        frames = [run.frames for run in group.runs]
        reached = number(frames[0]) if len(set(map(number, frames))) == 1 else interval((min(frames), max(frames)))
        figures: dict[str, str] = {}
        if (score := scores[group.label]) is not None:
            figures = {"IQM": number(score.iqm), "95 % interval": interval(score.interval)}
            figures |= {"minimum": number(min(score.values)), "maximum": number(max(score.values))}
            figures |= {"mean": number(score.mean), metric: number(score.mean)}
        shown = [figures.get(name, "–") for name in spread]
        took = duration(sum(seconds) / len(seconds)) if seconds else "–"
        known = 0 if score is None else len(score.values)
        seeds = len(group.runs) if known == len(group.runs) else f"{known} of {len(group.runs)}"
        rows.append([*cells, seeds, *shown, reached, took])
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


# -- evaluations -------------------------------------------------------------------------------------------------


def _judged(comparison: GroupComparison) -> Iterator[Block]:
    """Tabulates evaluations: the last one of a single run and later ones by level, or the last ones of several runs."""
    runs, several = comparison.runs, len(comparison.runs) > 1
    last = None if several else runs[0].last_evaluation
    if last is None and any(run.last("eval/return") is not None for run in runs):
        shown = [name for name in FIRST if any(f"eval/{name}" in run.curves for run in runs)]
        rows = []
        for run in runs:
            logged = {key.removeprefix("eval/"): run.last(key) for key in run.curves if key.startswith("eval/")}
            values = {name: value for name, value in logged.items() if value is not None}
            frames = f"{run.frames:,}" + ("" if run.complete else " (incomplete)")
            rows.append([run.name, str(run.seed), frames, *_cells(values, shown)])
        fold, caption = None if len(runs) < 13 else "Every run", "The last evaluation of every run."
        yield DataTable.of_runs(["run", "seed", "frames", *shown], rows, several, caption=caption, fold=fold)
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
    games = []
    for run, entry in later:
        for row in entry.content.get("opponents", ()):
            rating = number(row.get("elo_after"))
            games.append([run.name, entry.name, str(row.get("opponent", "")), *_cells(row, _RECORD), rating])
    if games:
        head = ["run", "evaluation", "opponent", "games", "won", "drawn", "lost", "of decided (95 %)", "rating"]
        yield DataTable.of_runs(head, games, several, 3, caption="Games against opponents.")


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
        drawn = Chart("Elo rating over a player's games", lines, "Elo rating", "games of the player")
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


# -- conditions of the runs --------------------------------------------------------------------------------------------


_MOST = 12
"""Greatest number of groups whose configuration is shown."""
_LONG = 80
_DIGITS = 12
"""Number of digits of a commit that are shown."""
_WORDS = {
    **{"system": "system", "processor": "processor", "instruction_set": "instructions"},
    **{"cores": "cores", "gpu": "GPU", "commit": "commit"},
}


def times(comparison: GroupComparison) -> Section:
    """Shows time by its use, and measurements of the machine."""
    runs = [run for run in comparison.runs if run.curves]
    blocks: list[Block] = []
    parts = {run.name: seconds_of(run) for run in runs}
    uses = list(dict.fromkeys(use for part in parts.values() for use in part))
    rows = []
    for run in runs:
        total, cpu, spent = run.last(SECONDS), run.last(CPU_SECONDS), parts[run.name]
        whole = sum(spent.values())
        shares = [f"{duration(spent[use])} ({spent[use] / whole:.0%})" if use in spent else "–" for use in uses]
        times = ["–" if seconds is None else duration(seconds) for seconds in (total, cpu)]
        rate = busy = "–"
        if total:
            training = max(total - spent.get("evaluating", 0.0), 1e-9)
            rate, busy = f"{run.curves[SECONDS].frames[-1] / training:,.0f}", f"{(cpu or 0.0) / total:.2f}"
        rows.append([run.name, f"{run.frames:,}", *times, busy, rate, *shares])
    if rows:
        head = ["run", "frames", "wall clock", "CPU time", "CPUs busy", "frames/s", *uses]
        fold = None if len(rows) <= _MOST else "Every run"
        blocks.append(DataTable.of_runs(head, rows, len(comparison.runs) > 1, fold=fold))
    metrics = dict.fromkeys(
        name
        for run in runs
        for name in run.curves
        if name.startswith(("time/", "system/")) and not name.endswith(("seconds", "_low", "_high"))
    )
    if drawn := panels(comparison, metrics):
        blocks.append(Panels(drawn[:3], drawn[3:]))
    return Section("Time", blocks or [Paragraphs(["No times were logged."])])


def seconds_of(run: StoredRun) -> dict[str, float]:
    """Returns wall-clock seconds by use: collecting and learning, and logged phases, such as evaluating.

    Phases are metrics ``time/<phase>_seconds``, which grow over the run.
    """
    total = run.last(SECONDS)
    if total is None:
        return {}
    phases = {
        name.removeprefix("time/").removesuffix("_seconds").replace("_", " "): value
        for name in run.curves
        if name.startswith("time/") and name.endswith("_seconds") and name != CPU_SECONDS
        if (value := run.last(name)) is not None
    }
    rest = max(total - sum(phases.values()), 0.0)
    whole = {"everything else" if phases.keys() - {"evaluating"} else "collecting and learning": rest, **phases}
    return {name: seconds for name, seconds in whole.items() if seconds > 0}


def configurations(groups: Sequence[RunGroup], folders: Sequence[Path] = ()) -> Section:
    """Shows the options in which groups differ, and each group's difference from the defaults.

    Args:
        folders: folders with further yaml files.
    """
    blocks: list[Block] = []
    if 1 < len(groups) <= _MOST:
        differences = varied([group.runs[0].experiment for group in groups])
        rows = [[key, *(shorter(written(value), _LONG) for value in values)] for key, values in differences.items()]
        head = ["key", *(group.label for group in groups)]
        if rows:
            fold = None if len(rows) <= 15 else f"{len(rows)} keys in which the groups differ"
            blocks.append(DataTable(head, rows, text=len(head), caption="How the groups differ.", fold=fold))
    for group in groups[:_MOST]:
        blocks += against_default(group, len(groups) > 1, folders)
    if len(groups) > _MOST:
        blocks.append(Paragraphs([f"The configurations of {len(groups) - _MOST} more groups are left out."]))
    return Section("Configuration", blocks)


def against_default(group: RunGroup, several: bool, folders: Sequence[Path]) -> Iterator[Block]:
    """Tabulates how a group differs from the defaults, and shows the whole configuration of its first run."""
    run = group.runs[0]
    if not run.config:
        yield Paragraphs([f"{group.label}: no configuration."])
        return
    try:
        given, differences = from_default(run, folders)
        keys = {key: values for key, values in differences.items() if key != "resume"}
        rows = [[key, *(shorter(written(value), _LONG) for value in values)] for key, values in keys.items()]
        caption = f"Differences from rlstack train {given}"
        title = f"{group.label}: {len(rows)} keys differ from their defaults"
        yield DataTable(["key", "default", "this run"], rows, 3, caption, title if several or len(rows) > 40 else None)
    except ConfigError as error:
        lines = [entry["command"] for entry in run.environment if isinstance(entry.get("command"), list)]
        flags = next((found for line in lines if (found := folder_flags([*map(str, line)]))), "")
        why = f"they cannot be composed ({error})."
        if flags:
            command = f"rlstack report {shlex.quote(str(run.path))}{flags}"
            why = f"the run used your own yaml files; {command} shows them."
        yield Paragraphs([f"{group.label}: no differences from the defaults are shown, since {why}"])
    text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
    yield Code(f"The whole configuration of {run.name}", text)


# -- environment -------------------------------------------------------------------------------------------------


def environments(runs: Sequence[StoredRun]) -> Section:
    """Shows versions, machine and commit, with a column for each that differs."""
    environments: dict[str, tuple[dict[str, str], list[str]]] = {}
    for run in runs:
        described = [dict(entry) for entry in run.environment]
        if run.last_evaluation is not None and not described:
            described = [{"versions": run.last_evaluation.content.get("versions")}]
        for entry in described:
            digits, mark, changes = str(entry.get("commit") or "").partition("+")
            entry["commit"] = f"{digits[:_DIGITS]}{f' {mark} {changes}' if mark else ''}" or None
            versions = entry.get("versions")
            rows = {label: str(entry[key]) for key, label in _WORDS.items() if entry.get(key) is not None}
            rows |= {str(key): str(value) for key, value in versions.items()} if isinstance(versions, dict) else {}
            names = environments.setdefault(repr(rows), (rows, []))[1]
            names += [run.name] if rows and run.name not in names else []
    blocks: list[Block] = []
    columns = [column for column in environments.values() if column[1]]
    if columns:
        keys = dict.fromkeys(key for rows, _ in columns for key in rows)
        head = [""]
        for _, names in columns:
            some = ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"
            whole = "this run" if len(runs) == 1 else f"all {len(runs)} runs"
            head.append(whole if len(names) == len(runs) else some)
        body = [[key, *(rows.get(key, "–") for rows, _ in columns)] for key in keys]
        blocks.append(DataTable(head, body, text=len(head)))
    if silent := [run.name for run in runs if not run.environment]:
        more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        blocks.append(Paragraphs([f"Machine and commit were not recorded: {', '.join(silent[:5])}{more}."]))
    commands = [
        f"{entry.get('started', '')}  python {shlex.join(map(str, entry['command']))}"
        for run in runs
        for entry in run.environment
        if isinstance(entry.get("command"), list)
    ]
    if commands:
        blocks.append(Code("Commands", "\n".join(dict.fromkeys(commands))))
    return Section("Environment", blocks)


def status(run: StoredRun) -> str:
    """Describes the progress of a run, such as ``complete``, or ``50% of 1,000`` frames."""
    if run.total_frames is None:
        return "of unknown length"
    return "complete" if run.complete else f"{run.frames / run.total_frames:.0%} of {number(run.total_frames)}"
