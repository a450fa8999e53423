"""``rlstack report`` as a user types it, and what runs record for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlstack.command import words_as
from rlstack.reporting.document import render, report
from rlstack.training.environment import commit, record_environment
from rlstack.training.run import train
from tests.conftest import Ended
from tests.reporting.made_runs import config, make_run
from tests.small_run import SMALL_RUN


def test_the_folder_may_be_the_first_word() -> None:
    rewrite = words_as("folder")
    assert rewrite(["runs/x", "films_mb=3"]) == ["folder='runs/x'", "films_mb=3"]
    assert rewrite(["films_mb=3", "it's"]) == ["films_mb=3", "folder='it\\'s'"]
    assert rewrite(["folder=x", "outputt=y"]) == ["folder=x", "outputt=y"]
    assert words_as("first", "second")(["a,b", "json=true", "c", "d"]) == [
        "first='a,b'",
        "json=true",
        "second='c'",
        "d",
    ]


def test_a_page_is_written_beside_the_runs_or_where_it_is_wanted(
    rlstack_command: Callable[..., Ended], tmp_path: Path
) -> None:
    make_run(tmp_path / "my runs/lr=1,a", config(total_frames=300))
    done = rlstack_command("report", "my runs/lr=1,a")
    assert done.status == 0, done.err
    assert (tmp_path / "my runs/lr=1,a/report.html").read_text().startswith("<!DOCTYPE html>")
    assert "note: lr=1,a: incomplete: 200 of 300 frames (67%)" in done.out and "wrote my runs" in done.out
    done = rlstack_command("report", "my runs", "output=deep/page.html")
    assert done.status == 0 and [path.name for path in (tmp_path / "deep").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "error: folder: runs is not a folder"),
        (["folder=."], "error: folder: . holds no runs"),
        (["folder=no"], "error: folder: no is not a folder"),
        (["folder=.", "output=page.pdf"], "error: output: page.pdf is not the name of a page"),
        (["folder=.", "films_mb=-1"], "error: films_mb: -1.0 is outside"),
    ],
)
def test_a_mistake_is_one_line(
    overrides: list[str], message: str, tmp_path: Path, rlstack_command: Callable[..., Ended]
) -> None:
    done = rlstack_command("report", *overrides)
    assert done.status == 2 and done.err.startswith(message) and done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_every_start_of_a_run_is_recorded(tmp_path: Path) -> None:
    record_environment(tmp_path)
    record_environment(tmp_path)
    first, second = json.loads((tmp_path / "environment.json").read_text())
    assert first["instruction_set"].startswith(torch.backends.cpu.get_cpu_capability())
    assert first["versions"]["torch"] and first["cores"] >= 1 and second["started"].endswith("Z")
    (tmp_path / "environment.json").write_text("{")
    record_environment(tmp_path)
    assert len(json.loads((tmp_path / "environment.json").read_text())) == 1


def test_a_commit_is_told_with_whether_files_have_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", "-C", str(tmp_path), *names, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert commit(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{git('rev-parse', 'HEAD')}+changes"


def test_a_real_run_is_reported_whole(tmp_path: Path) -> None:
    from rlstack.config import to_plain
    from rlstack.config.groups import compose_config

    options = [*SMALL_RUN, "total_frames=1000", "eval.every=500", "checkpoint.replay=false", "agent.buffer_size=2000"]
    train(to_plain(compose_config("train", [*options, f"run_dir={tmp_path / 'run'}"])))
    page = report(tmp_path / "run")
    assert page.notes == []
    html = render(page)
    assert {"Results", "Training", "Learner", "Time", "Configuration", "Environment"} <= {
        s.title for s in page.sections
    }
    assert "agent.candidates" in html and "Differences from rlstack train agent=acqn env=marinenav" in html
    assert "processor" in html and "eval/success by level" in html
