"""Trains runs that are spoiled in twelve ways and three healthy ones, and lets ``rlstack explain`` find the cause.

python -m experiments.explain.study                       # all; writes study.json beside this file
python -m experiments.explain.study "dead ReLU" "entropy 0"
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import rlstack
from experiments.explain.spoiled import FRAMES, HEALTHY, SPOILED
from experiments.results import markdown
from rlstack.diagnostics import checks, evidence

RESULTS = Path(__file__).with_name("study.json")
COMMON = ["logger=csv", "device=cpu", "threads=1", "eval.every=1e9", "eval.episodes=5", "log_every=512"]
ALLOWED = ["experiments.explain.spoiled"]


def explained(name: str, folder: Path) -> dict[str, Any]:
    """Trains one of the runs and explains it; returns the checks that found something, in their order."""
    wanted, words, hooks = SPOILED.get(name) or (None, HEALTHY.get(name, []), list)
    algorithm = "dqn" if any("DQN" in word or word == "agent=dqn" for word in words) else "ppo"
    length = [] if name in HEALTHY else [f"total_frames={FRAMES[algorithm]}"]
    run = folder / "run"
    began = time.perf_counter()
    rlstack.train(*words, *length, *COMMON, f"run_dir={run}", hooks=hooks(), quiet=True)
    trained = time.perf_counter() - began
    known = evidence.gather(run)
    found = checks.findings(known)
    first = found[0] if found else None
    return {
        "wanted": wanted,
        "found": [finding.name for finding in found],
        "title": first.title if first else "nothing",
        "measured": first.measured if first else "",
        "learned": known.learned,
        "training_seconds": round(trained, 1),
        "seconds": round(known.seconds, 1),
    }


def table(results: dict[str, Any]) -> str:
    """Returns the table of ``experiments/README.md``."""
    rows = []
    for name, row in results.items():
        others = ", ".join(row["found"][1:]) or "none"
        rows.append([name, row["title"], row["measured"], others, f"{row['seconds']:.0f} s"])
    return markdown("run|first finding|measured|other findings|time", rows)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="names of runs; default: all")
    names = parser.parse_args().names
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in names or [*SPOILED, *HEALTHY]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = explained(name, Path(folder))
        row = results[name]
        right = (row["found"][:1] or [None])[0] == row["wanted"]
        print(f"{'right' if right else 'WRONG'}  {name}: {row}", flush=True)
        ordered = {key: results[key] for key in (*SPOILED, *HEALTHY) if key in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
