"""Trains runs that are spoiled in twelve ways and three healthy ones, and lets ``rlstack explain`` find the cause.

python -m experiments.explain.study                       # all; writes study.json beside this file
python -m experiments.explain.study "dead ReLU" "entropy 0"
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rlstack
from experiments.explain.spoiled import FRAMES, HEALTHY, HOOKS, SPOILED
from experiments.results import join, markdown
from rlstack.diagnostics import checks, evidence

RESULTS = Path(__file__).with_name("study.json")
COMMON = ["logger=csv", "device=cpu", "threads=1", "eval.every=1e9", "eval.episodes=5", "log_every=512"]


def explained(name: str, folder: Path) -> dict[str, Any]:
    """Trains one of the runs and explains it; returns the checks that found something, in their order."""
    wanted, words = SPOILED.get(name) or (None, HEALTHY[name])
    algorithm = "dqn" if "DQN" in words or "agent=dqn" in words else "ppo"
    length = [] if name in HEALTHY else [f"total_frames={FRAMES[algorithm]}"]
    run = folder / "run"
    began = time.perf_counter()
    rlstack.train(*words.split(), *length, *COMMON, f"run_dir={run}", hooks=HOOKS.get(name, []), quiet=True)
    trained = time.perf_counter() - began
    known = evidence.gather(run)
    findings = checks.findings(known)
    found = [finding.name for finding in findings]
    title, measured = (findings[0].title, findings[0].measured) if findings else ("nothing", "")
    told = {"wanted": wanted, "found": found, "title": title, "measured": measured, "learned": known.learned}
    return {**told, "training_seconds": round(trained, 1), "seconds": round(known.seconds, 1)}


def table(results: dict[str, Any]) -> str:
    """Returns the table of ``experiments/README.md``."""
    rows = []
    for name in [*SPOILED, *HEALTHY]:
        row = results[name]
        others = ", ".join(row["found"][1:]) or "none"
        rows.append([name, row["title"], row["measured"], others, f"{row['seconds']:.0f} s"])
    return markdown("run|first finding|measured|other findings|time", rows)


if __name__ == "__main__":
    for name in sys.argv[1:] or [*SPOILED, *HEALTHY]:
        with tempfile.TemporaryDirectory() as folder:
            row = explained(name, Path(folder))
        right = (row["found"][:1] or [None])[0] == row["wanted"]
        print(f"{'right' if right else 'WRONG'}  {name}: {row}", flush=True)
        join(RESULTS, {name: row})
