"""Where the time of a run went, as far as its log tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .runs import Run

SECONDS, CPU_SECONDS = "time/seconds", "time/cpu_seconds"


def seconds_of(run: Run) -> dict[str, float]:
    """Wall-clock seconds by what they went to: collecting and learning, evaluating, and phases that were logged.

    An evaluation is measured where a line was logged right before it, as one is when ``eval.every`` is a multiple of
    ``log_every``; others count as training. Phases are metrics ``time/<phase>_seconds``, which grow over the run.
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
    evaluating = _evaluating(run)
    rest = max(total - evaluating - sum(phases.values()), 0.0)
    whole = {"collecting and learning" if not phases else "everything else": rest, **phases, "evaluating": evaluating}
    return {name: seconds for name, seconds in whole.items() if seconds > 0}


def _evaluating(run: Run) -> float:
    frames, seconds = run.curves[SECONDS]
    judged = run.curves.get("eval/return")
    if judged is None:
        return 0.0
    again = np.flatnonzero((np.diff(frames) == 0) & np.isin(frames[1:], judged.frames))
    return float(np.diff(seconds)[again].clip(min=0).sum())


def row_of(run: Run) -> Iterator[Any]:
    """Frames, wall-clock, CPU time, CPUs in use, frames a second, share of evaluating: for people."""
    total, cpu = run.last(SECONDS), run.last(CPU_SECONDS)
    rate = run.frames / total if total else None
    yield f"{run.frames:,}"
    yield "–" if total is None else duration(total)
    yield "–" if cpu is None else duration(cpu)
    yield "–" if not total or cpu is None else f"{cpu / total:.2f}"
    yield "–" if rate is None else f"{rate:,.0f}"
    yield "–" if not total else f"{_evaluating(run) / total:.0%}"


HEAD = ("frames", "wall clock", "CPU time", "CPUs busy", "frames/s", "evaluating")


def duration(seconds: float) -> str:
    """Seconds for people: ``48 s``, ``12 min``, ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
