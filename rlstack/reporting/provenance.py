"""Shows the conditions of runs: time, configuration, versions, machine, commit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from rlstack.config import ConfigError
from rlstack.config.groups import folder_flags

from .blocks import Block, Code, DataTable, Panels, Paragraphs, Section, breakable, duration, number, shorter
from .curves import panels
from .differences import OF_NO_MATTER, GroupComparison, RunGroup, from_default, varied, written
from .runs import CPU_SECONDS, EVALUATING_SECONDS, SECONDS, StoredRun

_MOST = 12
"""Greatest number of groups whose configuration is shown."""
_LONG = 80
_DIGITS = 12
"""Number of digits of a commit that are shown."""
_WORDS = {
    **{"system": "system", "processor": "processor", "instruction_set": "instructions"},
    **{"cores": "cores", "gpu": "GPU", "commit": "commit"},
}


def time(comparison: GroupComparison) -> Section:
    """Shows time by its use, and measurements of the machine."""
    runs = comparison.runs
    blocks: list[Block] = []
    parts = {run.name: seconds_of(run) for run in runs}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if names and len(runs) <= _MOST:
        legend_of_time = [(name, f"c{index % 8}") for index, name in enumerate(names)]
        blocks.append(Panels([("Wall-clock time", _bars(parts, names))], legend=legend_of_time))
    rows = [[run.name, *_row_of(run)] for run in runs if run.curves]
    if rows:
        head = ["run", "frames", "wall clock", "CPU time", "CPUs busy", "frames/s", "evaluating"]
        fold = None if len(rows) <= _MOST else "Every run"
        blocks.append(DataTable.of_runs(head, rows, len(runs) > 1, fold=fold))
    metrics = dict.fromkeys(
        name
        for run in runs
        for name in run.curves
        if name.startswith(("time/", "system/")) and not name.endswith(("seconds", "_low", "_high"))
    )
    if drawn := panels(comparison, metrics):
        blocks.append(Panels(drawn[:3], drawn[3:], comparison.legend))
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


def _row_of(run: StoredRun) -> list[str]:
    total, cpu = run.last(SECONDS), run.last(CPU_SECONDS)
    evaluating = run.last(EVALUATING_SECONDS) or 0.0
    return [
        f"{run.frames:,}",
        "–" if total is None else duration(total),
        "–" if cpu is None else duration(cpu),
        "–" if not total or cpu is None else f"{cpu / total:.2f}",
        "–" if not total else f"{run.curves[SECONDS].frames[-1] / max(total - evaluating, 1e-9):,.0f}",
        "–" if not total else f"{evaluating / total:.0%}",
    ]


def _bars(parts: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> Markup:
    """Draws a bar for each run with the time of its parts, on one scale."""
    longest = max(sum(part.values()) for part in parts.values()) or 1.0
    piece = Markup('<i class="c{}" style="width:{:.3f}%" title="{}: {}"></i>')
    bar, rows = Markup('<div class="bar"><span>{}</span><div>{}</div><b>{}</b></div>'), []
    for run, part in parts.items():
        drawn = Markup("").join(
            piece.format(names.index(name) % 8, 100 * seconds / longest, name, duration(seconds))
            for name, seconds in part.items()
        )
        name = breakable(run) if len(parts) > 1 else ""
        rows.append(bar.format(name, drawn, duration(sum(part.values()))))
    return Markup('<div class="bars">{}</div>').format(Markup("").join(rows))


def configuration(groups: Sequence[RunGroup], folders: Sequence[Path] = ()) -> Section:
    """Shows the options in which groups differ, and each group's difference from the defaults.

    Args:
        folders: folders with further yaml files.
    """
    blocks: list[Block] = []
    if 1 < len(groups) <= _MOST:
        matters = [
            {key: value for key, value in group.runs[0].config.items() if key not in OF_NO_MATTER} for group in groups
        ]
        rows = [[key, *map(_short, values)] for key, values in varied(matters).items()]
        head = ["key", *(group.label for group in groups)]
        if rows:
            fold = None if len(rows) <= 15 else f"{len(rows)} keys in which the groups differ"
            blocks.append(DataTable(head, rows, text=len(head), caption="How the groups differ.", fold=fold))
    for group in groups[:_MOST]:
        blocks += _against_default(group, len(groups) > 1, folders)
    if len(groups) > _MOST:
        blocks.append(Paragraphs([f"The configurations of {len(groups) - _MOST} more groups are left out."]))
    return Section("Configuration", blocks)


def _against_default(group: RunGroup, several: bool, folders: Sequence[Path]) -> Iterator[Block]:
    run = group.runs[0]
    if not run.config:
        yield Paragraphs([f"{group.label}: no configuration."])
        return
    try:
        given, differences = from_default(run, folders)
        keys = {key: values for key, values in differences.items() if key != "resume"}
        rows = [[key, *map(_short, values)] for key, values in keys.items()]
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


def _short(value: Any) -> str:
    return shorter(written(value), _LONG)


# -- environment -------------------------------------------------------------------------------------------------


def environment(runs: Sequence[StoredRun]) -> Section:
    """Shows versions, machine and commit, with a column for each that differs."""
    found: dict[str, tuple[dict[str, str], list[str]]] = {}
    for run in runs:
        for rows in _environments(run):
            names = found.setdefault(repr(rows), (rows, []))[1]
            names += [run.name] if run.name not in names else []
    blocks: list[Block] = []
    columns = list(found.values())
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


def _environments(run: StoredRun) -> Iterator[dict[str, str]]:
    for entry in run.environment:
        versions = entry.get("versions")
        rows = {label: entry.get(key) for key, label in _WORDS.items()}
        digits, mark, changes = str(rows["commit"]).partition("+") if rows["commit"] else ("", "", "")
        rows["commit"] = f"{digits[:_DIGITS]}{f' {mark} {changes}' if mark else ''}" or None
        yield {
            **{key: str(value) for key, value in rows.items() if value is not None},
            **{str(key): str(value) for key, value in (versions if isinstance(versions, dict) else {}).items()},
        }
    last = run.last_evaluation
    versions = last.content.get("versions") if last is not None and not run.environment else None
    if isinstance(versions, dict):
        yield {str(key): str(value) for key, value in versions.items()}


def status(run: StoredRun) -> str:
    """Describes the progress of a run, such as ``complete``, or ``50% of 1,000`` frames."""
    if run.total_frames is None:
        return "of unknown length"
    return "complete" if run.complete else f"{run.frames / run.total_frames:.0%} of {number(run.total_frames)}"
