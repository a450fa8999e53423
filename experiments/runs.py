"""Training runs of experiments: each in one process, evaluated afterwards in another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlstack.training.loggers import METRICS_FILE, read_metrics


def train(seed: int, folder: Path, overrides: list[str]) -> Path:
    """Trains a run unless it is complete already; its output goes to ``<run>.log``.

    An interrupted run of the same command continues from its last checkpoint; one of another command is removed.
    """
    run = folder / f"seed{seed}"
    if complete(run):
        return run
    command = ["-m", "rlstack.train", f"seed={seed}", f"run_dir={run}", *overrides]
    begun = first_command(run) == command and any((run / "checkpoints").glob("checkpoint_*.pt"))
    if not begun:
        shutil.rmtree(run, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"seed{seed}.log", "a" if begun else "w") as log:
        command = ["-m", "rlstack.train", f"resume={run}"] if begun else command
        subprocess.run([sys.executable, *command], check=True, stdout=log, stderr=subprocess.STDOUT)
    return run


def first_command(run: Path) -> list[str] | None:
    """Returns the arguments that started the run; None if there is none."""
    file = run / "environment.json"
    return json.loads(file.read_text())[0]["command"] if file.is_file() else None


def complete(run: Path) -> bool:
    """Returns whether the run has a checkpoint of its last frame, rather than only earlier ones."""
    if not (run / "config.yaml").is_file():
        return False
    total = OmegaConf.load(run / "config.yaml")["total_frames"]
    return any(int(path.stem.partition("_")[2]) >= total for path in (run / "checkpoints").glob("checkpoint_*.pt"))


def final_evaluation(
    run: Path, episodes: int, seed: int, policy: str = "greedy", allow: Sequence[str] = ()
) -> dict[str, Any]:
    """Evaluates the last checkpoint of a run on ``episodes`` per level, greedily or exploring.

    Args:
        allow: code of this folder that the run's files may name.
    """
    output = run / "evaluations" / ("final" if policy == "greedy" else f"final_{policy}")
    options = [f"episodes={episodes}", f"seed={seed}", f"output={output}", "plots=false", "video=false"]
    options += [f"policy={policy}", f"allow=[{','.join(allow)}]"]
    subprocess.run(
        [sys.executable, "-m", "rlstack.evaluate", f"checkpoint={run}", *options], check=True, stdout=subprocess.DEVNULL
    )
    return json.loads((output / "evaluation.json").read_text())


def logged(run: Path, metric: str) -> list[dict[str, float]]:
    """Returns the rows of a run's ``metrics.csv`` that have a metric."""
    return [row for row in read_metrics(run / METRICS_FILE) if metric in row]


def read_curve(run: Path) -> list[dict[str, float]]:
    """Returns the evaluations of a run."""
    return logged(run, "eval/success")


def cost(run: Path) -> dict[str, float]:
    """Returns the cost of a run: ``frames``, ``minutes`` and ``cpu_minutes``."""
    last = logged(run, "time/seconds")[-1]
    minutes = {"minutes": last["time/seconds"] / 60, "cpu_minutes": last["time/cpu_seconds"] / 60}
    return {"frames": last["frames"], **minutes}


def add_options(
    parser: ArgumentParser, folder: Path | None, out: Path, seeds: Sequence[int] | None = (0, 1, 2)
) -> None:
    """Adds the options of an experiment that trains and evaluates seeds.

    Args:
        folder: default folder of the run directories, None where the experiment names it.
        out: default folder of the results.
        seeds: default seeds, None where the experiment names them.
    """
    parser.add_argument("--seeds", type=int, nargs="+", default=None if seeds is None else list(seeds))
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--evaluation-seed", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=folder, help="of the run directories")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("overrides", nargs="*", help="further overrides of rlstack.train")
