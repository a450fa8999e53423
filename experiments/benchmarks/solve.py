"""Measures how long ``agent=ppo env=cartpole`` takes to solve CartPole, one process and one thread per seed.

    python -m experiments.benchmarks.solve

Solved means a mean return of at least 475 over 100 greedy episodes at the end of the run. Wall-clock and CPU times are
given for the whole process (start-up, imports, self-check, training, evaluation, checkpoint and files), for a process
that only imports, and for the training with its evaluation. The result goes to ``results/solve.json``.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.runs import logged

from .timing import write

OVERRIDES = ["agent=ppo", "env=cartpole", "device=cpu", "logger=csv", "eval.episodes=100"]
SEEDS, SOLVED = 5, 475


def seconds(*arguments: str) -> dict[str, float]:
    """Returns wall-clock and CPU seconds of a process of Python with these arguments."""
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - wall, "cpu": cpu}


def measure(seed: int, run: Path) -> dict[str, Any]:
    """Returns the scores and times of one run."""
    process = seconds("-m", "rlstack.train", f"seed={seed}", f"run_dir={run}", *OVERRIDES)
    last = logged(run, "eval/return")[-1]
    training = {"wall": last["time/seconds"], "cpu": last["time/cpu_seconds"]}
    result = {"seed": seed, "return": last["eval/return"], "frames": int(last["frames"])}
    return {**result, "process": process, "training": training}


if __name__ == "__main__":
    importing = [seconds("-c", "import rlstack.training.loop")]
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(seed, Path(folder) / f"seed{seed}") for seed in range(SEEDS)]
    importing.append(seconds("-c", "import rlstack.training.loop"))
    parts = {part: [run[part] for run in runs] for part in ("process", "training")}
    for part, times in {**parts, "imports": importing}.items():
        columns = {clock: sorted(entry[clock] for entry in times) for clock in ("wall", "cpu")}
        shown = (f"{name} {statistics.median(x):.1f} s ({x[0]:.1f} to {x[-1]:.1f})" for name, x in columns.items())
        print(f"{part:<9}", ", ".join(shown))
    print(f"solved    {sum(run['return'] >= SOLVED for run in runs)} of {len(runs)}")
    print(json.dumps(write("solve", {"imports": importing, "runs": runs}, threads=1)))
