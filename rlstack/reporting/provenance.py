"""What was run, with what, where: configurations, versions, machine, commit, time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from rlstack.config import ConfigError

from .blocks import Block, Code, Panels, Section, Table, Text, number
from .curves import Colours, panel
from .differences import OF_NO_MATTER, Group, from_default, shorter, varied, written
from .runs import Run
from .timing import HEAD, duration, row_of, seconds_of

_MOST = 12
"""Groups whose configuration is shown."""
_LONG = 80
_WORDS = {
    "system": "system",
    "processor": "processor",
    "instruction_set": "instructions",
    "cores": "cores",
    "gpu": "GPU",
    "commit": "commit",
}


def time(groups: Sequence[Group], colours: Colours, legend: Sequence[tuple[str, str]]) -> Section:
    """Where the time went, and what the machine gave."""
    runs = [run for group in groups for run in group.runs]
    blocks: list[Block] = []
    parts = {run.name: seconds_of(run) for run in runs}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if names and len(runs) <= _MOST:
        blocks.append(Panels([("Wall-clock time", _bars(parts, names))], legend=_numbered(names)))
    rows = [[run.name, *row_of(run)] for run in runs if run.curves]
    if rows:
        blocks.append(Table(["run", *HEAD], rows, fold=None if len(rows) <= _MOST else "Every run"))
    metrics = dict.fromkeys(
        name for run in runs for name in run.curves if name.startswith(("time/", "system/")) and _tells(name)
    )
    panels = [drawn for name in metrics if (drawn := panel(name, colours, groups)) is not None]
    if panels:
        blocks.append(Panels(panels[:3], panels[3:], legend))
    return Section("Time", blocks or [Text(["No times were logged."])])


def _tells(name: str) -> bool:
    return not name.endswith(("seconds", "_low", "_high"))


def _numbered(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, f"c{index % 8}") for index, name in enumerate(names)]


def _bars(parts: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> Markup:
    """A bar a run, to one scale, of what its time went to."""
    longest = max(sum(part.values()) for part in parts.values()) or 1.0
    rows = []
    for run, part in parts.items():
        pieces = [
            Markup('<i class="c{}" style="width:{:.3f}%" title="{}: {}"></i>').format(
                names.index(name) % 8, 100 * seconds / longest, name, duration(seconds)
            )
            for name, seconds in part.items()
        ]
        rows.append(
            Markup('<div class="bar"><span>{}</span><div>{}</div><b>{}</b></div>').format(
                shorter(run, 40), Markup("").join(pieces), duration(sum(part.values()))
            )
        )
    return Markup('<div class="bars">{}</div>').format(Markup("").join(rows))


def configuration(groups: Sequence[Group]) -> Section:
    """What the groups differ in, and what each has otherwise than it is shipped."""
    blocks: list[Block] = []
    if 1 < len(groups) <= _MOST:
        matters = [
            {key: value for key, value in group.runs[0].config.items() if key not in OF_NO_MATTER} for group in groups
        ]
        rows = [[key, *map(_short, values)] for key, values in varied(matters).items()]
        head = ["key", *(group.label for group in groups)]
        if rows:
            fold = None if len(rows) <= 15 else f"{len(rows)} keys in which the groups differ"
            blocks.append(Table(head, rows, text=len(head), caption="In what the groups differ.", fold=fold))
    for group in groups[:_MOST]:
        blocks += _against_default(group, len(groups) > 1)
    if len(groups) > _MOST:
        blocks.append(Text([f"The configurations of {len(groups) - _MOST} more groups are left out."]))
    return Section("Configuration", blocks)


def _against_default(group: Group, several: bool) -> Iterator[Block]:
    run = group.runs[0]
    if not run.config:
        yield Text([f"{group.label}: no configuration."])
        return
    try:
        given, differences = from_default(run)
        keys = {key: values for key, values in differences.items() if key != "resume"}
        rows = [[key, *map(_short, values)] for key, values in keys.items()]
        caption = f"Otherwise than python -m rlstack.train {given}"
        title = f"{group.label}: {len(rows)} keys otherwise than by default"
        yield Table(["key", "default", "this run"], rows, 3, caption, title if several or len(rows) > 40 else None)
    except ConfigError as error:
        yield Text([f"{group.label}: the default cannot be composed, so no difference from it is shown ({error})."])
    text = yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
    yield Code(f"The whole configuration of {run.name}", text)


def _short(value: Any) -> str:
    return shorter(written(value), _LONG)


# -- environment -------------------------------------------------------------------------------------------------


def environment(runs: Sequence[Run]) -> Section:
    """Versions, machine and commit, a column for each that differs."""
    found: dict[str, tuple[dict[str, str], list[str]]] = {}
    for run in runs:
        for rows in _environments(run):
            names = found.setdefault(repr(rows), (rows, []))[1]
            names += [run.name] if run.name not in names else []
    blocks: list[Block] = []
    columns = list(found.values())
    if columns:
        keys = dict.fromkeys(key for rows, _ in columns for key in rows)
        head = ["", *(_named(names, len(runs)) for _, names in columns)]
        body = [[key, *(rows.get(key, "–") for rows, _ in columns)] for key in keys]
        blocks.append(Table(head, body, text=len(head)))
    if silent := [run.name for run in runs if not run.environment]:
        more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
        blocks.append(Text([f"Machine and commit were not recorded: {', '.join(silent[:5])}{more}."]))
    commands = [
        f"{entry.get('started', '')}  python {shlex.join(map(str, entry['command']))}"
        for run in runs
        for entry in run.environment
        if isinstance(entry.get("command"), list)
    ]
    if commands:
        blocks.append(Code("Commands", "\n".join(dict.fromkeys(commands))))
    return Section("Environment", blocks)


def _environments(run: Run) -> Iterator[dict[str, str]]:
    for entry in run.environment:
        versions = entry.get("versions")
        rows = {label: entry.get(key) for key, label in _WORDS.items()}
        yield {
            **{key: str(value) for key, value in rows.items() if value is not None},
            **{str(key): str(value) for key, value in (versions if isinstance(versions, dict) else {}).items()},
        }
    last = run.last_judgement
    versions = last.content.get("versions") if last is not None and not run.environment else None
    if isinstance(versions, dict):
        yield {str(key): str(value) for key, value in versions.items()}


def _named(names: Sequence[str], of: int) -> str:
    if len(names) == of > 1:
        return f"all {of} runs"
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"


def status(run: Run) -> str:
    """How far a run is, in words."""
    if run.total_frames is None:
        return "of unknown length"
    return "complete" if run.complete else f"{run.frames / run.total_frames:.0%} of {number(run.total_frames)}"
