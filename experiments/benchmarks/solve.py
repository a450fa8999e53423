"""Measures how long ``agent=ppo env=cartpole`` takes to solve CartPole, one process and one thread per seed.

    python -m experiments.benchmarks.solve [--seeds 5]

Solved means a mean return of at least 475 over 100 greedy episodes at the end of the run. Wall-clock and CPU times are
given for the whole process (start-up, imports, self-check, training, evaluation, checkpoint and files), for a process
that only imports, and for the training with its evaluation. The result goes to ``results/solve.json``.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.runs import logged

from .speed import circumstances

RESULT = Path(__file__).parent / "results" / "solve.json"
OVERRIDES = ["agent=ppo", "env=cartpole", "device=cpu", "logger=csv", "eval.episodes=100"]
SOLVED = 475


def seconds(work: Callable[[], Any]) -> dict[str, float]:
    """Returns wall-clock and CPU seconds of the processes that ``work`` waits for."""
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": time.monotonic() - wall, "cpu": cpu}


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """One run."""
    run = folder / f"seed{seed}"
    command = [sys.executable, "-m", "rlstack.train", f"seed={seed}", f"run_dir={run}", *OVERRIDES]
    process = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    last = logged(run, "eval/return")[-1]
    training = {"wall": last["time/seconds"], "cpu": last["time/cpu_seconds"]}
    result = {"seed": seed, "return": last["eval/return"], "frames": int(last["frames"])}
    return {**result, "process": process, "training": training}


def imports() -> dict[str, float]:
    """A process that imports what a training needs, and ends."""
    return seconds(lambda: subprocess.run([sys.executable, "-c", "import rlstack.training.loop"], check=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    runs, importing = [], [imports()]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seeds):
            runs.append(measure(seed, Path(folder)))
            print(json.dumps(runs[-1]), flush=True)
    importing.append(imports())
    parts = {
        "process": [run["process"] for run in runs],
        "imports": importing,
        "training": [r["training"] for r in runs],
    }
    for part, found in parts.items():
        columns = {clock: sorted(entry[clock] for entry in found) for clock in ("wall", "cpu")}
        shown = (f"{name} {statistics.median(x):.1f} s ({x[0]:.1f} to {x[-1]:.1f})" for name, x in columns.items())
        print(f"{part:<9}", ", ".join(shown))
    print(f"solved    {sum(run['return'] >= SOLVED for run in runs)} of {len(runs)}")
    result = {**circumstances("solve", threads=1), "imports": importing, "runs": runs}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
