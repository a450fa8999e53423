"""The word ``latest`` in place of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rlstack import convert, evaluate, train, watch
from rlstack.config import ConfigError
from rlstack.config.groups import compose_config
from rlstack.runs.run_directory import named


def run(folder: str, time: int, *files: str) -> None:
    """Makes a run directory with checkpoints of the given time in seconds."""
    path = Path("runs", folder)
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").touch()
    for file in files:
        (path / "checkpoints" / file).touch()
        os.utime(path / "checkpoints" / file, (time, time))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_newest_run_that_has_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    run("begun_first", 100, "checkpoint_000000000100.pt", "best.pt")
    run("sweep/a", 300, "checkpoint_000000000100.pt")
    run("z_older", 200, "checkpoint_000000009999.pt")
    run("no_checkpoint", 400)
    run("being_written", 500, ".checkpoint_000000000100.pt")
    Path("runs/elsewhere/checkpoints").mkdir(parents=True)
    Path("runs/elsewhere/checkpoints/no_run.pt").touch()
    assert named("latest", "resume") == str(Path("runs/sweep/a"))
    assert capsys.readouterr().out == f"resume: latest is {Path('runs/sweep/a')}\n"


def test_other_names_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert [named(path, "resume") for path in ("runs/a", "./latest", "sb3:latest")] == [
        "runs/a",
        "./latest",
        "sb3:latest",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "module", "key"),
    [
        *(("train", train, "resume"), ("train", train, "init")),
        *(("evaluate", evaluate, "checkpoint"), ("watch", watch, "checkpoint"), ("convert", convert, "checkpoint")),
    ],
)
def test_every_command_that_takes_a_run_takes_the_latest(command: str, module: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: latest is the newest run below runs/, where .* set {key}=<run>$"):
        module.run(compose_config(command, [f"{key}=latest"]))
