"""Shows the conditions of runs: time, configuration, versions, machine, commit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlstack.config import ConfigError
from rlstack.config.groups import folder_flags

from .blocks import Block, Code, DataTable, Panels, Paragraphs, Section, duration, number, shorter
from .curves import panels
from .differences import GroupComparison, RunGroup, from_default, varied, written
from .runs import CPU_SECONDS, SECONDS, StoredRun

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


def configuration(groups: Sequence[RunGroup], folders: Sequence[Path] = ()) -> Section:
    """Shows the options in which groups differ, and each group's difference from the defaults.

    Args:
        folders: folders with further yaml files.
    """
    blocks: list[Block] = []
    if 1 < len(groups) <= _MOST:
        differences = varied([group.runs[0].experiment for group in groups])
        rows = [[key, *map(_short, values)] for key, values in differences.items()]
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
    environments: dict[str, tuple[dict[str, str], list[str]]] = {}
    for run in runs:
        for rows in _environments(run):
            names = environments.setdefault(repr(rows), (rows, []))[1]
            names += [run.name] if run.name not in names else []
    blocks: list[Block] = []
    columns = list(environments.values())
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
