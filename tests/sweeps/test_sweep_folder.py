"""Each sweep has its own folder, and one command makes a report of it."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlstack import report, train
from rlstack.config import ConfigError
from rlstack.sweeps.folder import SweepPlace, announced, sweep_folder, telling
from rlstack.training.distributed import Ranks
from rlstack.training.progress import Progress
from tests.reporting.made_runs import config, make_run, score_rows

GROUPS = {"agent": "acqn", "env": "marinenav"}


def place(*arguments: str) -> tuple[list[str], Path | None]:
    with sweep_folder(arguments, GROUPS) as (given, folder):
        if folder is not None:
            (folder / "0_run").mkdir(parents=True)
        return given[len(arguments) :], folder


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-m", "seed=0,1"], "acqn_marinenav"),
        (["agent=ppo,sac", "--multirun", "env=gymnasium", "env.id=CartPole-v1"], "ppo-sac_CartPole-v1"),
        (["-m", "experiment=arena/style1", "seed=0,1"], "arena-style1"),
    ],
)
def test_the_folder_says_what_is_swept(
    arguments: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [place(*arguments) for _ in range(2)]  # possibly within the same second
    for added, folder in folders:
        assert folder is not None and folder.match(f"runs/{name}_sweep_*")
        assert added == [f"hydra.sweep.dir='{folder}'"] and folder.is_dir()
    assert folders[0][1] != folders[1][1]


def test_folders_are_left_alone_where_there_is_no_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place("-m", "seed=0,1", "--cfg=job") == ([], None)
    assert place("-m", "hydra/sweeper=pbt") == (["hydra.sweep.dir=${hydra.sweeper.folder}/.jobs"], None)
    assert list(tmp_path.iterdir()) == []
    assert place("-m", "hydra.sweep.dir='mine'") == ([], Path("mine"))
    with pytest.raises(ConfigError, match=r"^run_dir: all runs of -m would have this folder"):
        place("-m", "seed=0,1", "run_dir=mine")


@contextmanager
def stand_in(plain: dict[str, Any], hooks: list[Any]) -> Iterator[SimpleNamespace]:
    """Stands in for a run with a low score, for which a report plots the logarithm of nothing."""
    folder = Path(plain["run_dir"])
    score = -1.0 - plain["seed"]
    make_run(folder, config(plain["seed"], agent=plain["agent"]["name"]), score_rows(score))
    yield SimpleNamespace(run=SimpleNamespace(path=folder), ranks=Ranks(), execute=lambda: None)


def test_the_last_line_reports_on_the_runs_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlstack.training.run.begun", stand_in)
    words = ["train", "-m", "agent=ppo,sac", "env=cartpole", "seed=0,1", "hydra.sweep.dir='a sweep'"]
    monkeypatch.setattr(sys, "argv", words)
    train.main()
    folder = tmp_path / "a sweep"
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert runs == ["0_ppo_cartpole_seed0", "1_ppo_cartpole_seed1", "2_sac_cartpole_seed0", "3_sac_cartpole_seed1"]
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("rlstack report 'a sweep'")
    monkeypatch.setattr(sys, "argv", shlex.split(line.partition("rlstack ")[2]))
    report.main()
    assert "4 runs in 2 groups" in capsys.readouterr().out and (folder / "report.html").is_file()


def test_a_sweep_without_a_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for words, told in (
        (["seeds=0,1"], "seeds: unknown key"),
        (["seed=0,1", "hydra.sweep.dir=file/x"], "hydra.sweep.dir: file/x cannot be made (Not a directory)"),
    ):
        monkeypatch.setattr(sys, "argv", ["train", "-m", "agent=ppo", *words])
        with pytest.raises(SystemExit):
            train.main()
        assert told in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agent=ppo", "agent.lr=1e-3,1e-4", "seed=range(3)"], (6, ["agent.lr", "seed"])),
        (["agent=ppo", "agent.hidden=[64,64]"], (1, [])),
        (["agent=glob(*)"], None),
        (["hydra/sweeper=search", "agent.lr=interval(0,1)"], None),
    ],
)
def test_jobs_are_told_how_many_there_are(words: list[str], told: tuple[int, list[str]] | None) -> None:
    with announced(words):
        content = json.loads(os.environ.get("RLSTACK_SWEEP", "null"))
    assert "RLSTACK_SWEEP" not in os.environ
    assert (None if content is None else (content["runs"], content["keys"])) == told


def test_the_panel_shows_the_place_of_a_run_in_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    job = SimpleNamespace(
        job=SimpleNamespace(num=1),
        overrides=SimpleNamespace(task=["agent.lr=1e-4", "seed=0"]),
        launcher={"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"},
    )
    monkeypatch.setattr("rlstack.sweeps.folder.HydraConfig.get", lambda: job)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1000.0)
    progress = Progress(100, io.StringIO())
    training: Any = SimpleNamespace(frames=0, last_frame=100, progress=progress)
    with announced(["agent.lr=1e-3,1e-4"]):
        SweepPlace().on_start(training)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1090.0)
    training.frames = 60  # 1.6 runs of 2 in 90 s
    assert progress.rows["sweep"]() == "run 2 of 2, lr=1e-4, 0:00:22 left of all"
    job.overrides.task[0] = "agent.lr=0.0009490243844384462"
    with telling(4, ["agent.lr", "agent.gamma"], first=1):  # a trial of a search that continues at 60 frames
        SweepPlace().on_start(training)
    monkeypatch.setattr("rlstack.sweeps.folder.time.time", lambda: 1100.0)
    training.frames = 80  # half of what was left of it, of 3 trials that are left
    assert progress.rows["sweep"]() == "run 2 of 4, lr=0.000949, 0:00:50 left of all"
