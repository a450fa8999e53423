"""Training runs of experiments: each in one process, evaluated afterwards in another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from rlstack.training.loggers import METRICS_FILE, read_metrics

Job = tuple[int, Path, Sequence[str]]
"""Seed, folder of the runs, and overrides of ``rlstack.train``."""


def train(jobs: Sequence[Job], parallel: int = 1) -> list[Path]:
    """Trains runs unless they are complete already; the output of each goes to ``<run>.log``.

    An interrupted run continues from its last checkpoint.

    Args:
        jobs: seed, folder of the run's own folder ``seed<n>``, and overrides of ``rlstack.train`` of each run.
        parallel: runs at once.

    Raises:
        SystemExit: a folder holds a run with other settings; raised before anything is trained.
    """
    for job in jobs:
        _check_settings(*job)
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(lambda job: _train(*job), jobs))


def _train(seed: int, folder: Path, overrides: Sequence[str]) -> Path:
    run = folder / f"seed{seed}"
    if complete(run):
        return run
    begun = _saved(run)
    if not begun:
        shutil.rmtree(run, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"seed{seed}.log", "a" if begun else "w") as log:
        words = [f"resume={run}"] if begun else _words(seed, run, overrides)
        subprocess.run(
            [sys.executable, "-m", "rlstack.train", *words], check=True, stdout=log, stderr=subprocess.STDOUT
        )
    return run


def _words(seed: int, run: Path, overrides: Sequence[str]) -> list[str]:
    return [f"seed={seed}", f"run_dir={run}", *overrides]


def _saved(run: Path) -> bool:
    """Returns whether the run can be continued."""
    return (run / "config.yaml").is_file() and any((run / "checkpoints").glob("checkpoint_*.pt"))


def _check_settings(seed: int, folder: Path, overrides: Sequence[str]) -> None:
    """Refuses a saved run whose settings are not those that the overrides and ``conf/`` give now.

    Options that are newer than the run, and those that are resolved only when a run begins (``auto``), do not count.
    """
    run = folder / f"seed{seed}"
    if not _saved(run):
        return
    command = [sys.executable, "-m", "rlstack.train", *_words(seed, run, overrides), "--cfg", "job", "--resolve"]
    composed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    given, had = _flat(OmegaConf.create(composed)), _flat(OmegaConf.load(run / "config.yaml"))
    differing = [
        f"{key}: {had[key]} there, {given.get(key, 'nothing')} here"
        for key in sorted(had.keys() - {"run_dir", "resume"})
        if given.get(key) not in (had[key], "auto")
    ]
    if differing:
        shown = "; ".join(differing[:3])
        raise SystemExit(f"{run} holds a run with other settings ({shown}); move it away, or name another --folder")


def _flat(config: DictConfig | ListConfig) -> dict[str, Any]:
    """Returns the values of a configuration by their dotted keys."""
    leaves: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            leaves[prefix] = value

    add("", OmegaConf.to_container(config, resolve=True))
    return leaves


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
