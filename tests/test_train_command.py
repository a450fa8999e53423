"""``python -m rlstack.train`` as a user types it."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlstack.train import run_name
from tests.conftest import Ended
from tests.small_run import SMALL_RUN

ROOT = Path(__file__).parent.parent
TINY = [
    *SMALL_RUN,
    "total_frames=1500",
    "eval.every=1500",
    "checkpoint.every=500",
    "agent.buffer_size=2000",
]


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rlstack.train", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    ("argument", "needles"),
    [
        ("agent=acqnn", ["agent", "did you mean 'acqn'"]),
        ("agent.gama=0.9", ["agent.gama", "gamma"]),
        ("env=gymnasium", ["total_frames: how long", "total_frames=1e5"]),
        ("total_frames=many", ["total_frames", "int", "many"]),
        ("agent.gamma=1.5", ["agent.gamma", "1.5", "[0, 1]"]),
        ("eval.episodes=0", ["eval.episodes", "0"]),
        ("env.num_wordls=3", ["env.num_wordls", "num_worlds"]),
        ("env.continuous_actions=false", ["continuous"]),
        ("env.num_worlds=0", ["num_worlds"]),
        ("env.max_steps=abc", ["env.max_steps", "int", "abc"]),
        ("env.perception_noise=flase", ["env.perception_noise", "bool"]),
        ("env.goal_reward=nan", ["env.goal_reward", "finite"]),
        ("env.name=nomodule:World", ["env.name", "nomodule"]),
        ("device=cuda:7", ["device"]),
        ("resume=nowhere", ["nowhere", "not a run directory"]),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    argument: str, needles: list[str], rlstack_command: Callable[..., Ended], tmp_path: Path
) -> None:
    result = rlstack_command("train", argument)
    assert result.status == 2
    lines = result.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.err
    for needle in needles:
        assert needle in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_a_multirun_over_seeds_with_a_users_own_group(rlstack_command: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "mine" / "agent").mkdir(parents=True)
    (tmp_path / "mine" / "agent" / "small.yaml").write_text("defaults: [acqn, _self_]\nname: small\nhidden: [16, 16]\n")
    result = rlstack_command("train", "--config-dir", "mine", "-m", "agent=small", "seed=0,1", *TINY)
    assert result.status == 0, result.err
    runs = sorted((tmp_path / "runs").iterdir())
    assert [run.name.rpartition("_")[0] for run in runs] == ["small_marinenav_seed0", "small_marinenav_seed1"]
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "runs"}
    assert result.out.count("run finished") == 2
    assert result.out.isascii()


def test_a_run_is_named_after_the_outside_env_it_is_in() -> None:
    outside = {"name": "gymnasium", "id": "my.package:Grid-v0"}
    assert run_name({"name": "dqn"}, outside, 3) == "dqn_my.package-Grid-v0_seed3"


def test_debug_runs_every_part(tmp_path: Path) -> None:
    result = train("debug=true", "run_dir=out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("[OK]") == 4
    with open(tmp_path / "out" / "metrics.csv", newline="") as file:
        assert any(row["loss/critic"] for row in csv.DictReader(file))


def without_clock(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", newline="") as file:
        return [
            {key: row[key] for key in row if not key.startswith(("time/", "system/"))} for row in csv.DictReader(file)
        ]


@pytest.mark.slow
def test_killed_at_any_moment_the_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    """SIGKILL at five different moments, also in the middle of a write; each time the run goes on to the same end."""
    options = [*TINY, "total_frames=6000", "checkpoint.every=200", "eval.every=6000"]
    assert train(*options, "run_dir=straight", cwd=tmp_path).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [*options, "run_dir=killed"]
    for kill in range(5):
        process = subprocess.Popen(
            [sys.executable, "-m", "rlstack.train", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        checkpoints = tmp_path / "killed" / "checkpoints"
        seen = set(checkpoints.glob("checkpoint_*.pt")) if checkpoints.is_dir() else set()
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if checkpoints.is_dir() and set(checkpoints.glob("checkpoint_*.pt")) - seen:
                break
            time.sleep(0.002)
        time.sleep(0.013 * kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["resume=killed"]
    result = train("resume=killed", cwd=tmp_path)
    complete = result.returncode == 2 and "complete" in result.stderr
    assert result.returncode == 0 or complete, result.stderr
    assert without_clock(tmp_path / "killed") == without_clock(tmp_path / "straight")
