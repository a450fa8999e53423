"""The results of a sweep's runs: each job leaves a small file, and the command shows them as a table.

Files, because jobs may be other processes and machines: all that they share with the command is the sweep's folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from envs.whole_files import write_json
from rlstack.training.notices import concealed


def in_sweep() -> bool:
    """This is a job of ``-m``."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def note(**entries: Any) -> None:
    """Writes a file about this job, such as its ``score``, ``run`` or ``error``; does nothing outside of a sweep."""
    if not in_sweep():
        return
    job = HydraConfig.get()
    path = Path(job.sweep.dir) / f"job_{int(job.job.num):06d}.json"
    write_json(path, {"overrides": overrides_of_job(), **entries})


def overrides_of_job() -> list[str]:
    """The command line of this job."""
    return [entry.lstrip("+~") for entry in concealed(HydraConfig.get().overrides.task)]


def run_of_job(name: str) -> str:
    """The folder of this job's run, in that of the sweep."""
    job = HydraConfig.get()
    return str(Path(job.sweep.dir) / f"{job.job.num}_{name}")


def take(folder: Path) -> list[dict[str, Any]]:
    """Reads the files that the jobs of a folder have left, in their order, and removes them."""
    paths = sorted(folder.glob("job_*.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for path in paths:
        path.unlink()
    return results


def show(results: list[dict[str, Any]], folder: Path) -> None:
    """A table of a sweep's runs, in their order: what differs between them, score and folder, or the error.

    Then how to compare them, where they are in the sweep's folder. Nothing where a single job failed, which the command
    tells anyway.
    """
    if len(results) < 2 and not any("score" in result for result in results):
        return
    from rlstack.evaluation.table import print_rows

    options = [dict(entry.partition("=")[::2] for entry in result["overrides"]) for result in results]
    varied = [key for key in dict.fromkeys(key for given in options for key in given) if _differs(key, options)]
    rows: list[Mapping[str, Any]] = [
        {
            **{key: given.get(key) for key in varied},
            "score": result.get("score"),
            "run": result.get("run") or f"failed: {result.get('error', 'no reason known')}",
        }
        for given, result in zip(options, results)
    ]
    print("\nthe runs of this sweep")
    print_rows(rows, sys.stdout)
    best = [result for result in results if result.get("score") is not None]
    if len(best) > 1:
        low, high = (choose(best, key=lambda result: result["score"]) for choose in (min, max))
        print(f"highest score: {high['score']:g}, {high['run']}\nlowest score:  {low['score']:g}, {low['run']}")
    if any(folder in Path(result.get("run", "")).parents for result in results):
        print(f"compare them: python -m rlstack.report {folder}")


def _differs(key: str, options: list[dict[str, str]]) -> bool:
    return len({given.get(key) for given in options}) > 1
