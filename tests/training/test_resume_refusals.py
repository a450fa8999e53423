"""Runs that cannot be resumed: one line says so before anything is done; and what a run's digest covers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from rlstack.config import ConfigError
from rlstack.runs.checkpoint import read_checkpoint, state_digest
from rlstack.runs.run_directory import taken
from rlstack.sweeps.jobs import reached
from rlstack.train import main
from rlstack.training.loggers import read_metrics
from rlstack.training.loop import Training
from tests.exhaustive import exhaustive
from tests.small_run import CARTPOLE_RUN

TINY = [*CARTPOLE_RUN, "eval.every=32", "checkpoint.every=32"]


def train(*words: str) -> None:
    GlobalHydra.instance().clear()
    before, sys.argv = sys.argv, ["train", *words]
    try:
        main()
    finally:
        sys.argv = before


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a run at half of its length, whose best checkpoint is its first or its second."""
    run = tmp_path_factory.mktemp("half") / "run"
    train(*TINY, "until=64", f"run_dir={run}")
    return run


@pytest.fixture(scope="module")
def whole(half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns that run after it has been resumed and has ended."""
    run = Path(shutil.copytree(half, tmp_path_factory.mktemp("whole") / "run"))
    train(f"resume={run}", "until=null")
    return run


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/checkpoint_*.pt"))


@exhaustive(
    ("file", "damage", "message"),
    [
        (
            "metrics.csv",
            (r"\n(.+)", r"\n\1,1,2"),
            r": not a table of metrics \(the row of \d+ frames has \d+ ",
        ),
        (
            "metrics.csv",
            (r"\n", r"\n1,many\n"),
            r": not a table of metrics \(could not convert .*: 'many'\)",
        ),
        ("metrics.csv", None, ": a folder, not a table of metrics; move it elsewhere"),
        ("checkpoints/checkpoint_000000000064.pt", None, ": a folder, not a checkpoint; move it elsewhere"),
    ],
)
def test_a_run_that_cannot_go_on_says_why(
    file: str, damage: tuple[str, str] | None, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damage is a change of the text, or a folder in the file's place."""
    if damage is not None:
        (run / file).write_text(re.sub(*damage, (run / file).read_text(), count=1))
    else:
        (run / file).unlink()
        (run / file).mkdir()
    with pytest.raises(SystemExit) as end:
        train(f"resume={run}", "until=null")
    assert end.value.code == 2
    assert re.search(f"^error: .*{file}{message}", capsys.readouterr().err.splitlines()[-1])


def test_changes_of_the_configuration_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "config.yaml"
    file.write_text(
        file.read_text().replace("gamma: 0.98", "gamma: 0.5").replace("total_frames: 128", "total_frames: 160")
    )
    with pytest.raises(SystemExit):
        train(f"resume={run}", "until=null")
    assert "config.yaml was changed: agent.gamma=0.5 (the checkpoint has 0.98); restore it" in capsys.readouterr().err
    train(f"resume={run}", "until=96", "agent.gamma=0.5")
    assert "\nchanged since the checkpoint: total_frames=160 (the checkpoint has 128)\n" in capsys.readouterr().out


def test_the_last_evaluation_is_made_later_if_it_was_interrupted(
    run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = Training.evaluate

    def interrupted(self: Training) -> Any:
        if self.frames == 128:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "evaluate", interrupted)
        with pytest.raises(SystemExit):
            train(f"resume={run}", "until=null")
    assert f"saved checkpoint_000000000128.pt; continue with: rlstack train resume={run}" in capsys.readouterr().out
    assert not reached(run, 128)
    train(f"resume={run}")
    assert reached(run, 128) and judged(run) == judged(whole)
    assert digest(run) == digest(whole)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        train(f"resume={run}")
    assert "resume: the run is complete (128 frames)" in capsys.readouterr().err


def digest(run: Path) -> str:
    """Returns the digest of a run's newest checkpoint."""
    return state_digest(read_checkpoint(checkpoints(run)[-1]))


def judged(run: Path) -> list[tuple[float, float]]:
    rows = read_metrics(run / "metrics.csv")
    return [(row["frames"], row["eval/return"]) for row in rows if "eval/return" in row]


def test_without_its_checkpoints_a_run_goes_on_from_the_best(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in checkpoints(run):
        path.rename(path.with_name("best.pt"))  # the newest at last
    with pytest.warns(UserWarning, match=r"no checkpoint_\*\.pt, continuing from best\.pt"):
        train(f"resume={run}", "until=96")
    assert "resuming at 64 frames" in capsys.readouterr().out


def test_while_it_trains_a_run_is_taken(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def second(self: Training) -> None:
        with pytest.raises(SystemExit, match=r"^2$"):
            train(f"resume={run}", "until=null")
        raise ConfigError("the first ends here")

    monkeypatch.setattr(Training, "execute", second)
    with pytest.raises(SystemExit):
        train(f"resume={run}", "until=null")
    assert f"error: run_dir: another process trains {run}" in capsys.readouterr().err


def test_a_killed_process_lets_go_of_its_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with taken(tmp_path):
            os.write(writing, b"!")
            signal.pause()
    os.read(reading, 1)
    with pytest.raises(ConfigError, match="another process trains"), taken(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with taken(tmp_path / "."):
        (tmp_path / "kept").touch()


def test_the_digest_is_of_what_was_learned(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest does not depend on how often a run was evaluated, logged or interrupted."""
    train(*TINY, "eval.every=128", "log_every=32", f"run_dir={tmp_path / 'other'}")
    assert digest(tmp_path / "other") == digest(whole)
    assert re.findall(r"sha256 (\w+)", capsys.readouterr().out)[-1] == digest(whole)[:16]
