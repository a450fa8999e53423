"""Runs of experiments: one with the same settings goes on where it was interrupted, another one is refused."""

from __future__ import annotations

import json
import re
import shutil
import threading
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import against, results, runs
from rlstack.envs.foundation.files import write_json
from rlstack.runs.run_directory import taken
from tests.refusals import refused

PPO = ["agent=ppo", "env=cartpole"]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces training by a process that is interrupted half-way, or reaches its end when it is resumed."""
    called: list[list[str]] = []

    def stopped(command: list[str], **options: Any) -> SimpleNamespace:
        called.append(command[3:])
        run = Path(next(word.split("=", 1)[1] for word in command if word.startswith(("run_dir=", "resume="))))
        resumed = any(word.startswith("resume=") for word in command)
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / f"checkpoint_{100 if resumed else 50:012d}.pt").touch()
        (run / "config.yaml").write_text("total_frames: 100\n")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(runs.subprocess, "run", stopped)
    return called


def begun(folder: Path, *overrides: str, finished: bool = False) -> Path:
    """A run that was interrupted, or finished."""
    for _ in range(1 + finished):
        (run,) = runs.train([(1, folder, [*PPO, *overrides])])
    return run


def test_an_interrupted_run_goes_on_and_a_complete_one_is_kept(commands: list[list[str]], tmp_path: Path) -> None:
    for _ in range(3):
        (run,) = runs.train([(1, tmp_path, PPO)])
    assert commands == [["seed=1", f"run_dir={run}", *PPO], [f"resume={run}", "allow=[]"]]


@pytest.mark.parametrize(("until", "complete"), [("null", False), (50, True), (51, False), (500, False)])
def test_a_run_that_should_stop_early_is_complete_there(
    until: int | str, complete: bool, commands: list[list[str]], tmp_path: Path
) -> None:
    run = begun(tmp_path)  # to 50 of 100 frames
    (run / "config.yaml").write_text(f"total_frames: 100\nuntil: {until}\n")
    assert runs.complete(run) is complete


def test_code_that_the_overrides_name_may_run_when_the_run_goes_on(commands: list[list[str]], tmp_path: Path) -> None:
    network = "agent.network=my_lab.nets:Net"
    for _ in range(2):
        run = begun(tmp_path, network)
    assert commands[1] == [f"resume={run}", "allow=[my_lab.nets:Net]"]


@pytest.mark.parametrize(
    ("there", "here", "told", "finished"),
    [
        ("agent.lr=0.1", "agent.lr=0.2", "agent.lr: 0.1 there, 0.2 here", True),
        ("agent.lr=0.1", "agent.lr={kind: linear, start: 0.1, end: 0}", "agent.lr: 0.1 there, {kind: linear", False),
        ("agent.rnd=null", "agent.rnd={coefficient: 2}", "agent.rnd: null there, {coefficient: 2", False),
        ("seed=1", "++env.reward_weights.goal=1.0", "env.reward_weights: – there, {goal: 1.0} here", False),
    ],
)
def test_a_run_with_other_settings_is_refused_before_anything_is_trained(
    there: str, here: str, told: str, finished: bool, commands: list[list[str]], tmp_path: Path
) -> None:
    run = begun(tmp_path, there, finished=finished)
    commands.clear()
    with pytest.raises(SystemExit, match=re.escape(f"{run} holds a run with other settings ({told}")):
        runs.train([(0, tmp_path, [*PPO, here]), (1, tmp_path, [*PPO, here])])
    assert commands == [] and list((run / "checkpoints").iterdir())


def test_a_run_that_no_study_began_is_refused(commands: list[list[str]], tmp_path: Path) -> None:
    run = begun(tmp_path)
    runs.settings_file(run).unlink()
    refused(SystemExit, "was not trained by an experiment; move it away, or name another --folder", begun, tmp_path)


def test_wrong_overrides_end_a_study_before_anything_is_trained(commands: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: .*totl_frames"):
        runs.train([(0, tmp_path, PPO), (1, tmp_path, [*PPO, "totl_frames=3"])])
    assert commands == []


def test_no_run_begins_after_one_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, third = list[int](), threading.Event()

    def train(job: runs.Job, settings: Any) -> Path:
        begun.append(job[0])
        if job[0] == 1:
            raise SystemExit("interrupted")
        _ = third.wait(0.5) if job[0] == 0 else third.set()
        return tmp_path

    monkeypatch.setattr(runs, "check", lambda jobs: [{} for _ in jobs])
    monkeypatch.setattr(runs, "_train", train)
    refused(SystemExit, "interrupted", runs.train, [(seed, tmp_path, PPO) for seed in range(3)], 2)
    assert sorted(begun) == [0, 1]


def test_a_run_without_a_checkpoint_begins_anew(commands: list[list[str]], tmp_path: Path) -> None:
    run = begun(tmp_path)
    shutil.rmtree(run / "checkpoints")
    (run / "old").touch()
    begun(tmp_path, "agent.lr=0.1")
    assert commands[1][-1] == "agent.lr=0.1" and not (run / "old").exists()


def test_a_run_that_another_process_trains_is_left_alone(commands: list[list[str]], tmp_path: Path) -> None:
    run = tmp_path / "seed1"
    run.mkdir()
    with taken(run), pytest.raises(SystemExit, match="is being trained by another process"):
        begun(tmp_path)
    assert commands == []


def test_a_training_that_fails_ends_the_study_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], stdout: Any, **options: Any) -> SimpleNamespace:
        stdout.write("begins\nerror: no such world\n")
        return SimpleNamespace(returncode=2)

    monkeypatch.setattr(runs.subprocess, "run", fail)
    refused(SystemExit, r"seed1: training failed \(error: no such world\); see .*seed1\.log", begun, tmp_path)


def test_where_a_run_was_trained(tmp_path: Path) -> None:
    start = {"cores": 2, "processor": "X", "instruction_set": "AVX2"}
    (tmp_path / "environment.json").write_text(json.dumps([start, start, {**start, "processor": "Y"}]))
    (tmp_path / "config.yaml").write_text("threads: 1\n")
    assert runs.trained_on(tmp_path) == "2 cores, X, AVX2 and then 2 cores, Y, AVX2, one thread"


def test_rows_of_other_seeds_stay_in_the_columns_of_now(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    old = [{"seed": "0", "x": "a", "old": "b"}, {"seed": "2", "x": "b", "old": "c"}]
    results.join_csv(file, ["seed"], ["x", "old"], old)
    results.join_csv(file, ["seed"], ["x"], [{"seed": "1", "x": "c"}, {"seed": "0", "x": "d"}])
    assert file.read_text().split() == ["seed,x", "0,d", "1,c", "2,b"]


def test_arms_are_trained_with_every_seed(commands: list[list[str]], tmp_path: Path) -> None:
    given = Namespace(folder=tmp_path, seeds=[3, 4], parallel=1, overrides=["agent.lr=0.1"])
    found = runs.train_arms({"sac: no target": PPO, "ppo": [*PPO, "agent.gamma=0.9"]}, given)
    assert found["sac: no target"] == {seed: tmp_path / "sac_no_target" / f"seed{seed}" for seed in ("3", "4")}
    assert list(found["ppo"]) == ["3", "4"] and len(commands) == 4
    assert commands[3][2:] == [*PPO, "agent.gamma=0.9", "agent.lr=0.1"]


def test_games_are_played_anew_unless_as_many_with_the_same_seed_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[int, int]] = []

    def play(command: list[str], **options: Any) -> None:
        words = dict(word.split("=", 1) for word in command if "=" in word)
        played.append((int(words["episodes"]), int(words["seed"])))
        found = {"total_games": played[-1][0], "seed": played[-1][1], "fitted_elo": 1.0, "opponents": [{}]}
        write_json(Path(words["output"]) / "results.json", found)

    monkeypatch.setattr(runs.subprocess, "run", play)
    monkeypatch.setattr(against, "cost", lambda run: {})
    experiment = against.Experiment(("rule",), 10, (0,), (), "won")
    for games, seed in [(10, 1), (10, 1), (20, 1), (20, 2)]:
        against.judge(tmp_path, experiment, games, seed)
    assert played == [(10, 1), (20, 1), (20, 2)]
