"""Runs of experiments: one of the same command goes on where it was interrupted, any other begins anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import against, runs


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces training by a process that is interrupted half-way, or reaches its end when it is resumed."""
    called: list[list[str]] = []

    def stopped(command: list[str], **options: Any) -> None:
        called.append(command[3:])
        run = Path(next(word.split("=", 1)[1] for word in command if word.startswith(("run_dir=", "resume="))))
        resumed = any(word.startswith("resume=") for word in command)
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / f"checkpoint_{100 if resumed else 50:012d}.pt").touch()
        (run / "config.yaml").write_text("total_frames: 100\n")
        if not resumed:
            (run / "environment.json").write_text(json.dumps([{"command": command[1:]}]))

    monkeypatch.setattr(runs.subprocess, "run", stopped)
    return called


def test_an_interrupted_run_goes_on_and_a_complete_one_is_kept(commands: list[list[str]], tmp_path: Path) -> None:
    for _ in range(3):
        run = runs.train(1, tmp_path, ["agent=ppo"])
    assert commands == [["seed=1", f"run_dir={run}", "agent=ppo"], [f"resume={run}"]]


def test_a_run_of_another_command_begins_anew(commands: list[list[str]], tmp_path: Path) -> None:
    runs.train(1, tmp_path, ["agent=ppo"])
    (tmp_path / "seed1" / "old").touch()
    run = runs.train(1, tmp_path, ["agent=a2c"])
    assert commands[1] == ["seed=1", f"run_dir={run}", "agent=a2c"] and not (run / "old").exists()


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
