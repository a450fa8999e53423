"""Training runs of experiments: each in one process, evaluated afterwards in another."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError, to_plain
from rlstack.config.allowed import names_in
from rlstack.reporting.differences import varied, written
from rlstack.runs.run_directory import is_taken
from rlstack.training.environment import ENVIRONMENT
from rlstack.training.loggers import METRICS_FILE, read_metrics

Job = tuple[int, Path, Sequence[str]]
"""Seed of a run, folder of its own folder ``seed<n>``, and overrides of ``rlstack.train``."""


def options(
    description: str | None, file: str, folder: str | None = None, seeds: Sequence[int] | None = (0, 1, 2)
) -> ArgumentParser:
    """Returns the command line of an experiment.

    Args:
        file: that of the command, whose folder is the default one of the results.
        folder: default folder of the run directories of an experiment that trains seeds; None: it trains none.
        seeds: default seeds.
    """
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(file).parent, help="folder of the results")
    if folder is not None:
        parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
        parser.add_argument("--parallel", type=int, default=1, help="runs at once, one thread each")
        parser.add_argument("--evaluation-seed", type=int, default=1000)
        parser.add_argument("--folder", type=Path, default=Path(folder), help="of the run directories")
        parser.add_argument("overrides", nargs="*", help="further overrides of rlstack.train")
    return parser


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

    def one(job: Job, given: Mapping[str, Any]) -> Path:
        try:
            return _train(job, given)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # before this thread begins the next run
            raise

    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(one, jobs, settings))


def train_arms(arms: Mapping[str, Sequence[str]], given: Namespace) -> dict[str, dict[str, Path]]:
    """Trains every arm, overrides by name, with the seeds and overrides of :func:`options`; returns its runs by seed.

    The seeds of an arm follow each other, and all arms are checked first; see :func:`train`.
    """
    jobs = [
        (seed, given.folder / re.sub("[ :]+", "_", name), [*words, *given.overrides])
        for name, words in arms.items()
        for seed in given.seeds
    ]
    runs = iter(train(jobs, given.parallel))
    return {name: {str(seed): next(runs) for seed in given.seeds} for name in arms}


def check(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Returns the settings of runs: the configuration that their overrides and ``conf/`` compose.

    Raises:
        SystemExit: overrides are wrong, a run is being trained, or its folder holds a run with other settings.
    """
    from rlstack.train import command

    checked = []
    for seed, folder, overrides in jobs:
        run = folder / f"seed{seed}"
        try:
            settings = command.call(to_plain, [f"seed={seed}", f"run_dir={run}", *overrides], {}, quiet=True)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from None
        if is_taken(run):
            raise SystemExit(f"{run} is being trained by another process")
        if _begun(run):
            if not settings_file(run).is_file():
                raise SystemExit(f"{run} was not trained by an experiment; move it away, or name another --folder")
            differing = varied([OmegaConf.to_container(OmegaConf.load(settings_file(run))), settings])
            differing.pop("run_dir", None)
            if differing:
                shown = [f"{key}: {written(old)} there, {written(new)} here" for key, (old, new) in differing.items()]
                how = f"({'; '.join(shown[:3])}); move it away, or name another --folder"
                raise SystemExit(f"{run} holds a run with other settings {how}")
        checked.append(settings)
    return checked


def _train(job: Job, settings: Mapping[str, Any]) -> Path:
    seed, folder, overrides = job
    run = folder / f"seed{seed}"
    if complete(run):
        return run
    begun = _begun(run)
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
        output = log.read_text().strip().splitlines()
        raise SystemExit(f"{run}: training failed ({output[-1] if output else f'status {status}'}); see {log}")
    return run


def settings_file(run: Path) -> Path:
    """Path of the configuration that a run was started with, values such as ``auto`` unresolved."""
    return run.with_suffix(".yaml")


def _begun(run: Path) -> bool:
    """Returns whether the run can be continued."""
    return (run / "config.yaml").is_file() and any((run / "checkpoints").glob("checkpoint_*.pt"))


def complete(run: Path) -> bool:
    """Returns whether the run has a checkpoint of its last frame, or of ``until``, rather than only earlier ones."""
    if not _begun(run):
        return False
    config = OmegaConf.load(run / "config.yaml")
    last = min(config["total_frames"], config.get("until") or config["total_frames"])
    return any(int(path.stem.partition("_")[2]) >= last for path in (run / "checkpoints").glob("checkpoint_*.pt"))


def trained_on(run: Path) -> str:
    """Describes the machine, or machines, of a run's training: cores, processor, instruction set, threads."""
    starts = json.loads((run / ENVIRONMENT).read_text())
    machines = dict.fromkeys(f"{one['cores']} cores, {one['processor']}, {one['instruction_set']}" for one in starts)
    threads = OmegaConf.load(run / "config.yaml")["threads"]
    return f"{' and then '.join(machines)}, {'one thread' if threads == 1 else f'{threads} threads'}"


def final_evaluation(
    run: Path, episodes: int, seed: int, policy: str = "greedy", allow: Sequence[str] = ()
) -> dict[str, Any]:
    """Evaluates the last checkpoint of a run on ``episodes`` per level, greedily or exploring.

    Args:
        allow: what the run's files may name beyond data.
    """
    output = run / "evaluations" / ("final" if policy == "greedy" else f"final_{policy}")
    words = [f"policy={policy}", "plots=false", "video=false", f"allow=[{','.join(allow)}]"]
    evaluate(run, output, episodes, seed, *words)
    return json.loads((output / "evaluation.json").read_text())


def evaluate(run: Path, output: Path, episodes: int, seed: int, *words: str) -> None:
    """Evaluates the last checkpoint of a run by ``rlstack evaluate`` with these overrides."""
    command = [sys.executable, "-m", "rlstack.evaluate", f"checkpoint={run}", f"output={output}"]
    command += [f"episodes={episodes}", f"seed={seed}", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def logged(run: Path, metric: str) -> list[dict[str, float]]:
    """Returns the rows of a run's ``metrics.csv`` that have a metric."""
    return [row for row in read_metrics(run / METRICS_FILE) if metric in row]


def evaluations(trained: Mapping[str, Mapping[str, Path]], arm: str) -> list[dict[str, Any]]:
    """Returns frames and return of all evaluations of runs, by seed and by arm, whose column is named ``arm``."""
    rows = []
    for name, runs in trained.items():
        for seed, run in runs.items():
            for row in logged(run, "eval/return"):
                rows.append({arm: name, "seed": seed, "frames": int(row["frames"]), "return": row["eval/return"]})
    return rows


def cost(run: Path) -> dict[str, float]:
    """Returns the cost of a run: ``frames``, ``minutes`` and ``cpu_minutes``."""
    last = logged(run, "time/seconds")[-1]
    minutes = {"minutes": last["time/seconds"] / 60, "cpu_minutes": last["time/cpu_seconds"] / 60}
    return {"frames": last["frames"], **minutes}
