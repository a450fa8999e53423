"""Checks that RAM stays constant over ten and twenty million frames: ``python -m experiments.benchmarks.soak``.

Each run is one process with evaluations and checkpoints: AC-IQN in MarineNav with its replay buffer, then PPO in Arena.
The RAM of the process (``system/memory_mb`` in ``metrics.csv``) is read every 100,000 frames; its growth is the slope
of a line through the second half of the run, when the replay buffer is full. The result goes to ``results/soak.json``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import markdown
from experiments.runs import logged, train

from .timing import write

RUNS = {
    "marinenav": (10_000_000, ["agent=acqn", "env=marinenav"]),
    "arena": (20_000_000, ["agent=ppo", "env=arena", "experiment=arena/style1"]),
}
"""Frames and overrides by world."""


def soak(name: str, folder: Path) -> dict[str, Any]:
    """Returns the RAM of a run, and its growth in the second half."""
    total, overrides = RUNS[name]
    lengths = [f"total_frames={total}", "log_every=100000", f"eval.every={total // 10}"]
    (run,) = train([(0, folder / name, [*overrides, *lengths, "logger=csv", "device=cpu"])])
    rows = logged(run, "system/memory_mb")
    frames, megabytes = (np.array([row[column] for row in rows]) for column in ("frames", "system/memory_mb"))
    half = len(rows) // 2
    growth = float(np.polyfit(frames[half:] / 1e6, megabytes[half:], 1)[0])
    about = {"world": name, "frames": frames[-1], "cpu_seconds": rows[-1]["time/cpu_seconds"]}
    return {**about, "memory_mb": megabytes.round(1).tolist(), "growth_mb_per_million_frames": growth}


def table(result: dict[str, Any]) -> str:
    """Returns the runs of a result file."""
    rows = []
    for row in result["runs"]:
        megabytes = row["memory_mb"]
        parts = [f"{megabytes[int(share * (len(megabytes) - 1))]:,.0f}" for share in (0, 0.25, 0.5, 0.75, 1)]
        rows.append([row["world"], f"{row['frames']:,.0f}", *parts, f"{row['growth_mb_per_million_frames']:+.2f}"])
    return markdown("world | frames | 0 % | 25 % | 50 % | 75 % | 100 % | MB per million frames, second half", rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        runs = [soak(name, Path(folder)) for name in RUNS]
    print(table(write("soak", {"runs": runs})))
