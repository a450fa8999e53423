"""Checks that RAM stays constant over ten and twenty million frames: ``python -m experiments.benchmarks.soak``.

Each run is one process with evaluations and checkpoints: AC-IQN in MarineNav with its replay buffer, then PPO in Arena.
The RAM of the process (``system/memory_mb`` in ``metrics.csv``) is read every 100,000 frames; its growth is the slope
of a line through the second half of the run, when the replay buffer is full. The result goes to ``results/soak.json``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.results import markdown
from experiments.runs import logged, train

from .speed import circumstances

RESULT = Path(__file__).parent / "results" / "soak.json"
RUNS = {"marinenav": ["agent=acqn", "env=marinenav"], "arena": ["agent=ppo", "env=arena", "experiment=arena/style1"]}
FRAMES = {"marinenav": 10_000_000, "arena": 20_000_000}
EVERY = 100_000


def growth(frames: list[float], megabytes: list[float]) -> float:
    """MB per million frames, in the second half."""
    half = len(frames) // 2
    return float(np.polyfit(np.array(frames[half:]) / 1e6, megabytes[half:], 1)[0])


def soak(name: str, total: int, folder: Path) -> dict[str, Any]:
    """One run."""
    lengths = [f"total_frames={total}", f"log_every={EVERY}", f"eval.every={total // 10}"]
    (run,) = train([(0, folder / name, [*RUNS[name], *lengths, "logger=csv", "device=cpu"])])
    rows = logged(run, "system/memory_mb")
    frames, megabytes = [row["frames"] for row in rows], [row["system/memory_mb"] for row in rows]
    return {
        "world": name,
        "frames": frames[-1],
        "cpu_seconds": rows[-1]["time/cpu_seconds"],
        "memory_mb": [round(value, 1) for value in megabytes],
        "growth_mb_per_million_frames": growth(frames, megabytes),
    }


def table(result: dict[str, Any]) -> str:
    """Returns the runs of a result file."""
    rows = []
    for row in result["runs"]:
        megabytes = row["memory_mb"]
        parts = [f"{megabytes[int(share * (len(megabytes) - 1))]:,.0f}" for share in (0, 0.25, 0.5, 0.75, 1)]
        rows.append([row["world"], f"{row['frames']:,.0f}", *parts, f"{row['growth_mb_per_million_frames']:+.2f}"])
    return markdown("world | frames | 0 % | 25 % | 50 % | 75 % | 100 % | MB per million frames, second half", rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [soak(name, FRAMES[name], Path(folder)) for name in RUNS]
    result = {**circumstances("soak"), "runs": runs}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
