"""Runs of experiments: one with the same settings goes on where it was interrupted, another one is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments import against, runs


def settings(words: list[str]) -> str:
    """The configuration of a command line."""
    return OmegaConf.to_yaml(OmegaConf.from_dotlist(["total_frames=100", *words]))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces training by a process that is interrupted half-way, or reaches its end when it is resumed."""
    called: list[list[str]] = []

    def stopped(command: list[str], **options: Any) -> SimpleNamespace:
        if "--cfg" in command:
            return SimpleNamespace(stdout=settings(command[3:-3]))
        called.append(command[3:])
        run = Path(next(word.split("=", 1)[1] for word in command if word.startswith(("run_dir=", "resume="))))
        resumed = any(word.startswith("resume=") for word in command)
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / f"checkpoint_{100 if resumed else 50:012d}.pt").touch()
        if not resumed:
            (run / "config.yaml").write_text(settings(command[3:]))
        return SimpleNamespace()

    monkeypatch.setattr(runs.subprocess, "run", stopped)
    return called


def test_an_interrupted_run_goes_on_and_a_complete_one_is_kept(commands: list[list[str]], tmp_path: Path) -> None:
    for _ in range(3):
        (run,) = runs.train([(1, tmp_path, ["agent=ppo"])])
    assert commands == [["seed=1", f"run_dir={run}", "agent=ppo"], [f"resume={run}"]]


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_with_other_settings_is_refused_before_anything_is_trained(
    finished: bool, commands: list[list[str]], tmp_path: Path
) -> None:
    for _ in range(1 + finished):
        (run,) = runs.train([(1, tmp_path, ["agent.lr=0.1"])])
    commands.clear()
    message = f"{run} holds a run with other settings (agent.lr: 0.1 there, 0.2 here); move it away"
    with pytest.raises(SystemExit, match=re.escape(message)):
        runs.train([(0, tmp_path, ["agent.lr=0.2"]), (1, tmp_path, ["agent.lr=0.2"])])
    assert commands == [] and list((run / "checkpoints").iterdir())


@pytest.mark.parametrize(("there", "here"), [([], ["agent.eps=1"]), (["device=cpu"], ["device=auto"])])
def test_newer_options_and_resolved_ones_do_not_count(
    there: list[str], here: list[str], commands: list[list[str]], tmp_path: Path
) -> None:
    runs.train([(1, tmp_path, there)])
    (run,) = runs.train([(1, tmp_path, here)])
    assert commands[1] == [f"resume={run}"]


def test_a_run_without_a_checkpoint_begins_anew(commands: list[list[str]], tmp_path: Path) -> None:
    (run,) = runs.train([(1, tmp_path, ["agent=ppo"])])
    shutil.rmtree(run / "checkpoints")
    (run / "old").touch()
    runs.train([(1, tmp_path, ["agent=a2c"])])
    assert commands[1] == ["seed=1", f"run_dir={run}", "agent=a2c"] and not (run / "old").exists()


def test_the_settings_are_those_of_the_command_line_and_conf(tmp_path: Path) -> None:
    words = ["agent=ppo", "env=cartpole", "total_frames=2048", "agent.lr=0.01", "logger=csv", "device=cpu"]
    words += ["env.num_worlds=8", "eval.episodes=2"]
    (run,) = runs.train([(1, tmp_path, words)])
    assert runs.train([(1, tmp_path, words)]) == [run]
    with pytest.raises(SystemExit, match=re.escape("(agent.gamma: 0.98 there, 0.9 here)")):
        runs.train([(1, tmp_path, [*words, "agent.gamma=0.9"])])


@pytest.mark.parametrize(
    ("other", "games", "kept"),
    [({"frames": 1_004.0}, 10, ["0"]), ({"frames": 1_100.0}, 10, []), ({"frames": 1_000.0}, 20, [])],
)
def test_seeds_of_an_earlier_result_are_kept_if_they_are_comparable(
    other: dict[str, float], games: int, kept: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    assert against.kept_seeds(file, {"1": {"frames": 1_000.0}}, games=10) == {}
    file.write_text(json.dumps({"games": games, "seeds": {"0": other, "1": {"frames": 1_000.0}}}))
    assert list(against.kept_seeds(file, {"1": {"frames": 1_000.0}}, games=10)) == kept


def test_rows_of_kept_seeds_stay(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    against.write_rows(file, [], ["x"], [{"seed": "0", "x": "a"}, {"seed": "2", "x": "b"}])
    against.write_rows(file, ["2"], ["x"], [{"seed": "1", "x": "c"}])
    assert file.read_text().split() == ["seed,x", "1,c", "2,b"]
