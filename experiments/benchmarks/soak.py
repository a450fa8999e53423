"""Checks that RAM stays constant over ten and twenty million frames: ``python -m experiments.benchmarks.soak``.

Each run is one process with evaluations and checkpoints: AC-IQN in MarineNav with its replay buffer, then PPO in Arena.
The RAM of the process (``system/memory_mb`` in ``metrics.csv``) is read every 100,000 frames; its growth is the slope
of a line through the second half of the run, when the replay buffer is full. The result goes to ``results/soak.json``.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.runs import train

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
    with open(run / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["system/memory_mb"]]
    frames, megabytes = [float(row["frames"]) for row in rows], [float(row["system/memory_mb"]) for row in rows]
    return {
        "world": name,
        "frames": frames[-1],
        "cpu_seconds": float(rows[-1]["time/cpu_seconds"]),
        "memory_mb": [round(value, 1) for value in megabytes],
        "growth_mb_per_million_frames": growth(frames, megabytes),
    }


def markdown(result: dict[str, Any]) -> str:
    """The runs of a result file for a page."""
    heads = ["world", "frames", "0 %", "25 %", "50 %", "75 %", "100 %", "MB per million frames, second half"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in result["runs"]:
        megabytes = row["memory_mb"]
        parts = [f"{megabytes[int(share * (len(megabytes) - 1))]:,.0f}" for share in (0, 0.25, 0.5, 0.75, 1)]
        cells = [row["world"], f"{row['frames']:,.0f}", *parts, f"{row['growth_mb_per_million_frames']:+.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            results.append(soak(name, FRAMES[name], Path(folder)))
            memory, slope = results[-1]["memory_mb"], results[-1]["growth_mb_per_million_frames"]
            parts = ", ".join(f"{memory[int(share * (len(memory) - 1))]:,.0f}" for share in (0, 0.25, 0.5, 0.75, 1))
            print(f"{name:<10} MB at 0, 25, 50, 75, 100 %: {parts}; {slope:+.2f} MB per million frames", flush=True)
    arguments.out.write_text(json.dumps({**circumstances("soak"), "runs": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
