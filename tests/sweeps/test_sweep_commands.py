"""Sweeps by the commands that a user types."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CARTPOLE = [
    *(
        "agent=ppo",
        "env=gymnasium",
        "env.id=CartPole-v1",
        "env.num_envs=4",
        "env.workers=0",
        "agent.steps_per_batch=32",
    ),
    *("logger=csv", "threads=1", "device=cpu", "eval.episodes=2", "total_frames=512"),
]


def sweep(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlstack.train", "-m", *CARTPOLE, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def table(output: str) -> dict[str, str]:
    """Returns the lines of the final table by the name of the run's folder."""
    return {match[1]: line for line in output.splitlines() if (match := re.match(r"\d.*\s(\S+_seed\d+)$", line))}


def test_a_population_trains_and_is_complete_then(tmp_path: Path) -> None:
    options = ["hydra/sweeper=pbt", "hydra.sweeper.members=3", "hydra.sweeper.generations=2"]
    options += ["agent.lr=tag(log,interval(1e-4,1e-2))", "agent.gae_lambda=0.9,0.98", "seed=5"]
    first = sweep(*options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "runs" / "population"
    generations = json.loads((folder / "population.json").read_text())["generations"]
    assert [generation["until"] for generation in generations] == [256, 512]
    (copied,) = [index for index, member in enumerate(generations[1]["members"]) if member["copied_from"] is not None]
    for index, member in enumerate(generations[1]["members"]):
        run = folder / f"member_{index}"
        config = (run / "config.yaml").read_text()
        assert f"lr: {member['hyperparameters']['agent.lr']}" in config
        source = member["copied_from"] if index == copied else index
        assert f"seed: {5 + source}\n" in config and "until: null" in config
        assert (run / "checkpoints" / "checkpoint_000000000512.pt").is_file()
        assert isinstance(member["score"], float)
    again = sweep(*options, cwd=tmp_path)
    assert again.returncode == 0 and "frames/s" not in again.stdout
    tables = [done.stdout.partition("population finished")[2] for done in (first, again)]
    assert tables[0] == tables[1] and f"{generations[1]['members'][copied]['copied_from']}" in tables[0]
    other = sweep(*options, "hydra.sweeper.quantile=0.5", cwd=tmp_path)
    assert other.returncode == 2 and "quantile is 0.25, not 0.5" in other.stderr


def test_a_mistake_in_a_population_is_told_before_any_work(tmp_path: Path) -> None:
    for wrong, needle in [
        (["hydra.sweeper.members=1", "agent.lr=interval(0,1)"], "hydra.sweeper.members"),
        (["agent.lr=0.1"], "nothing varies"),
        (["agent.lr=interval(0,1)", "total_frames=many"], "total_frames"),
    ]:
        result = sweep("hydra/sweeper=pbt", *wrong, cwd=tmp_path)
        assert result.returncode == 2 and needle in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_joblib_runs_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    result = sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1", "agent.gamma=0.9,1.5", cwd=tmp_path)
    assert result.returncode == 2 and "agent.gamma: 1.5 is outside [0, 1]" in result.stderr
    runs = table(result.stdout)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {run.name for run in folder.iterdir() if run.is_dir()} == set(runs) and len(runs) == 2
    assert result.stdout.count("failed: agent.gamma") == 2


def trials_in(folder: Path) -> list[Any]:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(folder / "search.jsonl")))
    return storage.get_all_trials(0)


def test_a_search_with_optuna_goes_on_with_more_trials(tmp_path: Path) -> None:
    pytest.importorskip("optuna", minversion="4.0")
    options = ["hydra/sweeper=search", "agent.lr=tag(log,interval(1e-4,1e-2))", "eval.seed=7,8"]
    done = sweep(*options, "hydra.sweeper.n_trials=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "search"
    (first,) = trials_in(folder)
    done = sweep(*options, "hydra.sweeper.n_trials=2", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("run finished") == 1, done.stderr
    trials = trials_in(folder)
    assert len(trials) == 2 and trials[0] == first and [trial.state.name for trial in trials] == ["COMPLETE"] * 2
    for number, trial in enumerate(trials):
        chosen = (folder / f"trial_{number}" / "config.yaml").read_text()
        assert f"lr: {trial.params['agent.lr']}" in chosen
        assert f"seed: {trial.params['eval.seed']}" in chosen
    assert {path.name for path in folder.iterdir()} == {"search.jsonl", "manifest.json", "trial_0", "trial_1", ".jobs"}


def test_submitit_runs_each_in_a_job_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    result = sweep("hydra/launcher=submitit_local", "seed=0,1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(table(result.stdout)) == 2
    (folder,) = (tmp_path / "runs").iterdir()
    assert result.stdout.splitlines()[-1].endswith(f"rlstack report runs/{folder.name}")
    assert (folder / ".submitit").is_dir()
