"""Folders of runs that start at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlstack.runs.run_directory import RunDirectory, taken

ROOT = Path(__file__).parents[2]


def new_run() -> Path:
    run = RunDirectory.create(None, "ppo", 1)
    run.write_config({"seed": 0})
    return run.path


def test_runs_that_start_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(16) as threads:
        runs = list(threads.map(lambda _: new_run(), range(64)))
    assert len(set(runs)) == 64
    assert all(run.is_dir() and run.parent == Path("runs") for run in runs)


def test_a_folder_that_nothing_came_to_be_in_is_gone(tmp_path: Path) -> None:
    with taken(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
