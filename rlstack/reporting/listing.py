"""Lists the runs below a folder as rows with agent, world, progress, state and score."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlstack.evaluation.statistics import by_mean
from rlstack.runs.run_directory import is_taken

from .blocks import duration, number
from .differences import compared_by, grouped
from .runs import StoredRun, find


def listed(folder: Path) -> list[dict[str, Any]]:
    """Returns a row of plain values for every run in or below a folder, the most recently changed first.

    A row has ``run`` (its path), ``configuration`` (equal for runs that differ only in their seed), ``agent``,
    ``world``, ``seed``, ``frames``, ``total_frames``, ``state`` and ``why`` (see :func:`state_of`), ``metric`` and
    ``score`` (its last value), ``seconds`` of training, and ``age`` in seconds since the run last wrote a file. Unknown
    values are None.
    """
    runs, _ = find(folder, whole=False)
    rows = []
    named = [(group.label.replace(" · ", ", "), run) for group in grouped(runs) for run in group.runs]
    for configuration, run in named:
        env, metric, (state, why) = run.part("env"), compared_by([run]), state_of(run)
        files = (run.path / name for name in ("metrics.csv", "config.yaml", "environment.json"))
        row = {
            "run": str(run.path),
            "configuration": configuration,
            "agent": run.part("agent").get("name"),
            "world": env.get("id") or env.get("name"),
            "seed": run.seed,
            "frames": run.frames,
            "total_frames": run.total_frames,
            "state": state,
            "why": why,
            "metric": metric,
            "score": None if metric is None else run.last(metric),
            "seconds": run.last("time/seconds"),
            "age": max(time.time() - max(path.stat().st_mtime for path in files if path.is_file()), 0.0),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: row["age"])


def state_of(run: StoredRun) -> tuple[str, str]:
    """Returns the state of a run and its reason, which may be empty.

    ``running``: a process holds its folder; ``finished``: all frames are done; ``failed``: an error ended it, be it in
    the last evaluation; ``interrupted``: by Ctrl-C, or the process was killed; ``stopped``: it ended without an error
    before its last frame.
    """
    if is_taken(run.path):
        return "running", ""
    ended = run.environment[-1].get("ended") if run.environment else None
    if run.complete and not (isinstance(ended, Mapping) and ended.get("how") in ("failed", "interrupted")):
        return "finished", ""
    if not isinstance(ended, Mapping):
        return "interrupted", "its process was killed without recording why"
    how, why = str(ended.get("how")), str(ended.get("why") or "")
    return how, "Ctrl-C, or a signal" if how == "interrupted" else why


def configurations(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Formats the scores of finished runs that differ in their seed alone, in each world the highest mean first."""
    worlds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["state"] == "finished" and row["score"] is not None:
            groups = worlds.setdefault((str(row["world"]), row["metric"]), {})
            groups.setdefault(row["configuration"], []).append(row["score"])
    return [
        {"configuration": name, "seeds": line.pop("seeds"), "score": metric, **{k: number(v) for k, v in line.items()}}
        for (_, metric), groups in sorted(worlds.items())
        for name, line in by_mean(groups).items()
        if len(groups[name]) > 1
    ]


def shown(rows: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, str]]:
    """Formats the rows of :func:`listed` for a table."""
    metrics = {row["metric"] for row in rows} - {None}
    (head,) = metrics if len(metrics) == 1 else ("score",)
    formatted = []
    for row in rows:
        path, score = Path(row["run"]), number(row["score"])
        total = "" if row["total_frames"] is None else f" of {_count(row['total_frames'])}"
        cells = {
            "run": path.name if path == folder else path.relative_to(folder).as_posix(),
            **{name: "-" if row[name] is None else str(row[name]) for name in ("agent", "world", "seed")},
            "frames": f"{_count(row['frames'])}{total}",
            "state": row["state"],
            head: score if row["metric"] in (head, None) else f"{row['metric']} {score}",
            "age": duration(row["age"]),
        }
        formatted.append({name: cell.replace("–", "-") for name, cell in cells.items()})
    return formatted


def _count(frames: float) -> str:
    """Formats a number of frames with three digits: ``950``, ``12.4k``, ``215k``, ``36M``."""
    frames = float(f"{frames:.3g}")
    unit, size = next(((unit, size) for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if frames >= size), ("", 1))
    return f"{frames / size:.3g}{unit}"
