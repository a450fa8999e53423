"""Training runs as an experiment makes them: one process each, judged afterwards by another."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf


def train(seed: int, folder: Path, overrides: list[str]) -> Path:
    """One training run, unless it is there already; its output goes to ``<run>.log``."""
    run = folder / f"seed{seed}"
    if complete(run):
        return run
    shutil.rmtree(run, ignore_errors=True)  # what an earlier attempt left
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rlstack.train", f"seed={seed}", f"run_dir={run}", *overrides]
    with open(folder / f"seed{seed}.log", "w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return run


def complete(run: Path) -> bool:
    """The run has a checkpoint of its last frame; there are earlier ones, of the best evaluation or after Ctrl-C."""
    if not (run / "config.yaml").is_file():
        return False
    total = OmegaConf.load(run / "config.yaml")["total_frames"]
    return any(int(path.stem.partition("_")[2]) >= total for path in (run / "checkpoints").glob("checkpoint_*.pt"))


def final_evaluation(run: Path, episodes: int, seed: int, policy: str = "greedy") -> dict[str, Any]:
    """Evaluates the last checkpoint of a run on ``episodes`` per level, greedily or as it explores."""
    output = run / "evaluations" / ("final" if policy == "greedy" else f"final_{policy}")
    options = [f"episodes={episodes}", f"seed={seed}", f"output={output}", "plots=false", "video=false"]
    options.append(f"policy={policy}")
    subprocess.run(
        [sys.executable, "-m", "rlstack.evaluate", f"checkpoint={run}", *options], check=True, stdout=subprocess.DEVNULL
    )
    return json.loads((output / "evaluation.json").read_text())


def read_curve(run: Path) -> list[dict[str, float]]:
    """The evaluations of one run's ``metrics.csv``."""
    with open(run / "metrics.csv", newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
            if row.get("eval/success")
        ]
