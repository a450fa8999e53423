"""Training runs of experiments: each in one process, evaluated afterwards in another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError, to_plain
from rlstack.config.allowed import names_in
from rlstack.runs.run_directory import is_taken
from rlstack.training.environment import ENVIRONMENT
from rlstack.training.loggers import METRICS_FILE, read_metrics

Job = tuple[int, Path, Sequence[str]]
"""Seed of a run, folder of its own folder ``seed<n>``, and overrides of ``rlstack.train``."""


def train(jobs: Sequence[Job], parallel: int = 1) -> list[Path]:
    """Trains runs unless they are complete already; the output of each goes to ``<run>.log``.

    The settings of a run are kept in ``<run>.yaml``. An interrupted run continues from its last checkpoint.

    Args:
        jobs: the runs.
        parallel: runs at once.

    Raises:
        SystemExit: see :func:`check`; or a run failed.
    """
    settings = check(jobs)
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(_train, jobs, settings))


def check(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Returns the settings of runs: the configuration that their overrides and ``conf/`` compose.

    Raises:
        SystemExit: overrides are wrong, a run is being trained, or its folder holds a run with other settings.
    """
    from rlstack.train import command

    found = []
    for seed, folder, overrides in jobs:
        run = folder / f"seed{seed}"
        words = [f"seed={seed}", f"run_dir={run}", *overrides]
        try:
            now = command.call(to_plain, words, {}, quiet=True)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from None
        if is_taken(run):
            raise SystemExit(f"{run} is being trained by another process")
        if _saved(run):
            _compare(run, now, overrides)
        found.append(now)
    return found


def _compare(run: Path, now: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuses a run with other settings; an option that is newer than the run counts if the overrides name it."""
    if not settings_file(run).is_file():
        raise SystemExit(f"{run} was not trained by an experiment; move it away, or name another --folder")
    named = {word.lstrip("+").partition("=")[0] for word in overrides}
    had, given = _flat(OmegaConf.to_container(OmegaConf.load(settings_file(run)))), _flat(dict(now))

    def newer(key: str) -> bool:
        parts = key.split(".")
        above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        return not above & had.keys() and not any(name in above for name in named if "." in name)

    differing = [
        f"{key}: {had.get(key, 'absent')} there, {given.get(key, 'absent')} here"
        for key in sorted(had.keys() | given.keys())
        if (key in had) != (key in given) or had.get(key) != given.get(key)
        if key != "run_dir" and not newer(key)
    ]
    if differing:
        shown = "; ".join(differing[:3])
        raise SystemExit(f"{run} holds a run with other settings ({shown}); move it away, or name another --folder")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a configuration by their dotted keys."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    parts = (_flat(inner, f"{prefix}.{key}" if prefix else str(key)) for key, inner in value.items())
    return {key: leaf for part in parts for key, leaf in part.items()}


def _train(job: Job, settings: Mapping[str, Any]) -> Path:
    seed, folder, overrides = job
    run = folder / f"seed{seed}"
    if complete(run):
        return run
    begun = _saved(run)
    if begun:
        words = [f"resume={run}", f"allow=[{','.join(names_in(settings))}]"]
    else:
        words = [f"seed={seed}", f"run_dir={run}", *overrides]
        shutil.rmtree(run, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        settings_file(run).write_text(OmegaConf.to_yaml(settings))
    log = run.with_suffix(".log")
    with open(log, "a" if begun else "w") as stream:
        command = [sys.executable, "-m", "rlstack.train", *words]
        status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT).returncode
    if status != 0:
        told = log.read_text().strip().splitlines()
        raise SystemExit(f"{run}: training failed ({told[-1] if told else f'status {status}'}); see {log}")
    return run


def settings_file(run: Path) -> Path:
    """Path of the configuration that a run was started with, values such as ``auto`` unresolved."""
    return run.with_suffix(".yaml")


def trained_on(run: Path) -> str:
    """Describes the machine, or machines, of a run's training: cores, processor, instruction set, threads."""
    starts = json.loads((run / ENVIRONMENT).read_text())
    machines = dict.fromkeys(f"{one['cores']} cores, {one['processor']}, {one['instruction_set']}" for one in starts)
    threads = OmegaConf.load(run / "config.yaml")["threads"]
    return f"{' and then '.join(machines)}, {'one thread' if threads == 1 else f'{threads} threads'}"


def other_seeds(file: Path, seeds: Sequence[int], frames: float, **setting: int) -> dict[str, Any]:
    """Returns the results of other seeds in a result file, which new ones join.

    Args:
        seeds: to be measured.
        frames: for which they train.
        setting: entries that the file must share, such as the number of games.

    Raises:
        SystemExit: they trained for other frames (by more than 1 %), or with another setting.
    """
    earlier: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"seeds": {}, **setting}
    others = {seed: found for seed, found in earlier["seeds"].items() if int(seed) not in seeds}
    told = [f"{earlier.get(name)} {name}, not {value}" for name, value in setting.items() if earlier.get(name) != value]
    lengths = {found["frames"] for found in others.values()}
    told += [f"{length:,.0f} frames, not {frames:,.0f}" for length in lengths if abs(length / frames - 1) > 0.01]
    if others and told:
        raise SystemExit(f"{file} holds other seeds with {' and '.join(told)}; move it away, or name another --out")
    return others


def _saved(run: Path) -> bool:
    """Returns whether the run can be continued."""
    return (run / "config.yaml").is_file() and any((run / "checkpoints").glob("checkpoint_*.pt"))


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
        allow: what the run's files may name beyond data.
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
