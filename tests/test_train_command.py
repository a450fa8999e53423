"""``rlstack train`` by the commands that a user types."""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from rlstack.config import ConfigError, build
from rlstack.config.errors import RunError
from rlstack.runs.run_directory import RunDirectory
from rlstack.train import main
from rlstack.training.config import TrainConfig
from rlstack.training.run import debugged, run_name
from rlstack.training.summary import one_line_errors, where_things_are
from tests.conftest import REPO, Command
from tests.exhaustive import exhaustive
from tests.small_run import CARTPOLE_RUN, SMALL_RUN, composed, logged, python

TINY = [*SMALL_RUN, "total_frames=1500", "eval.every=1500", "checkpoint.every=500", "agent.buffer_size=2000"]


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "rlstack.train", *arguments, cwd=cwd)


@pytest.mark.parametrize(
    ("argument", "needles"),
    [
        ("env=gymnasium", ["total_frames: missing", "total_frames=1e5"]),
        ("env.continuous_actions=false", ["continuous"]),
        ("env.num_worlds=0", ["num_worlds"]),
        ("env.goal_reward=nan", ["env.goal_reward", "finite"]),
        ("env.num_robots=0", ["env.num_robots: has no effect, env.curriculum replaces it; set env.curriculum=null"]),
        ("device=cuda:7", ["device"]),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    argument: str, needles: list[str], rlstack_command: Command, tmp_path: Path
) -> None:
    error = rlstack_command("train", argument).refused()
    assert all(needle in error for needle in needles), error
    assert list(tmp_path.iterdir()) == []


def test_networks_of_another_agent_are_refused_before_anything_is_shown(
    rlstack_command: Command, tmp_path: Path
) -> None:
    words = ["debug=100", "device=cpu", "threads=1"]
    assert rlstack_command("train", "agent=ppo", "env=cartpole", "run_dir=first", *words).status == 0
    ended = rlstack_command("train", "init=first", "run_dir=second", *words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.endswith(
        "holds the networks of agent=ppo env=cartpole; write these options instead of agent=acqn\n"
    )
    words += ["agent.hidden=[64,64]", "agent.activation=tanh"]
    other = rlstack_command("train", "init=first", "agent=ppo", "env=arena", "run_dir=second", *words)
    assert (other.status, other.out) == (2, "")
    assert other.err.endswith("; they were made with agent=ppo env=cartpole\n")
    assert {path.name for path in tmp_path.iterdir()} == {"first"}


def test_a_multirun_over_seeds_with_a_users_own_group(rlstack_command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "agent").mkdir(parents=True)
    (tmp_path / "mine" / "agent" / "small.yaml").write_text("defaults: [ppo, _self_]\nname: small\n")
    words = [*(word for word in CARTPOLE_RUN if word != "agent=ppo"), "total_frames=32"]
    result = rlstack_command("train", "--config-dir", "mine", "-m", "agent=small", "seed=0,1", *words)
    assert result.status == 0, result.err
    (sweep,) = (tmp_path / "runs").iterdir()
    names = sorted(path.name for path in sweep.iterdir() if path.is_dir())
    assert names == ["0_small_cartpole_seed0", "1_small_cartpole_seed1"]
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "runs"}
    assert result.out.count("run finished") == 2
    assert all(line.endswith(" --config-dir mine") for line in result.out.splitlines() if "rlstack report" in line)
    assert result.out.isascii()


def test_a_run_is_named_after_the_outside_env_it_is_in() -> None:
    outside = {"name": "gymnasium", "id": "my.package:Grid-v0"}
    assert run_name({"name": "dqn"}, outside, 3) == "dqn_my.package-Grid-v0_seed3"


@pytest.mark.slow
def test_killed_at_any_moment_the_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    """SIGKILL is sent at five moments, also during a write; the run then resumes to the same end each time."""
    options = [*TINY, "total_frames=6000", "checkpoint.every=200", "eval.every=6000"]
    assert train(*options, "run_dir=straight", cwd=tmp_path).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
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
    assert logged(tmp_path / "killed") == logged(tmp_path / "straight")


MOST_AGENTS = {"marinenav": 5, "arena": 1, "rocket": 6, "echelon": 10, "cartpole": 1}
CASES = [
    *(["agent=ppo", f"env={world}"] for world in ("arena", "cartpole", "marinenav")),
    ["agent=ppo", "env=rocket", "env.blue=3", "env.orange=3"],
    ["agent=ppo", "env=echelon", "env.blue=10"],
    ["agent=ppo_published", "env=arena"],
    ["agent=a2c", "env=cartpole"],
    ["agent=acqn", "env=marinenav"],
    ["agent=dqn", "env=cartpole"],
    ["agent=dqn", "env=cartpole", "agent.batch_size=63", "agent.accumulate=3"],
    ["experiment=marinenav_published"],
]


@exhaustive("overrides", CASES, ids=" ".join)
@exhaustive(("debug", "frames"), [("true", 1000), ("5000", 5000)])
def test_debug_obeys_its_frames(overrides: list[str], debug: str, frames: int) -> None:
    """All worlds and agents make at least four batches within these frames, and off-policy agents learn."""
    config = build(TrainConfig, debugged(composed(*overrides, f"debug={debug}")))
    assert config.total_frames == frames
    worlds = config.env["num_worlds"]
    agents = MOST_AGENTS[str(config.env["name"])]
    batch = worlds * config.collector.steps_per_batch * (1 if config.collector.count == "env_steps" else agents)
    assert 4 * batch <= frames
    if "learning_starts" in config.agent:
        updates = (frames - config.agent["learning_starts"]) / config.agent["frames_per_update"]
        assert updates >= 20 and config.agent["batch_size"] <= 32


def test_without_debug_nothing_changes() -> None:
    for debug in ("false", "0"):
        plain = composed(f"debug={debug}")
        assert debugged(plain) == plain
    with pytest.raises(ConfigError, match=r"^debug: -5 is outside \[0, "):
        debugged(composed("debug=-5"))


@pytest.mark.parametrize(
    ("overrides", "end", "hint"),
    [
        (["total_frames=5000", "until=1000"], "stopped at until=1,000", " until=null"),
        (["total_frames=5000"], "stopped at 1,000 of 5,000 frames", ""),
        (["total_frames=1000"], "finished", " total_frames=<more>"),
        (["total_frames=1000", "until=1000"], "finished", " total_frames=<more>"),
        (["imitation.expert=rule", "imitation.only=true"], "finished", " imitation.only=false"),
        (["total_frames=1000", "imitation.expert=callable:os:getcwd"], "finished", " total_frames=<more>"),
    ],
)
def test_the_hint_at_the_end_is_what_the_next_command_takes(
    overrides: list[str], end: str, hint: str, tmp_path: Path
) -> None:
    """A run that has finished, or stopped as requested, continues by the hint's command and not with less."""
    run = RunDirectory(tmp_path)
    config = build(TrainConfig, composed(*overrides))
    text = where_things_are(run, config, 1000)
    assert "wandb" not in text
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    assert f"wandb sync {tmp_path}/wandb/offline-run-*\n" in where_things_are(run, config, 1000)
    label = "train longer:" if end == "finished" else "train to the end, 5,000 frames:\n"
    assert text.startswith(f"run {end}: {tmp_path}\n")
    assert f"{label}  rlstack train resume={tmp_path}{hint}\n" in f"{text}\n"
    if hint == " until=null":
        run.refuse_finished(1000, 5000, 1000)  # the evaluation was interrupted
        run.evaluations.mkdir()
        run.evaluation(1000).write_text("{}")
        with pytest.raises(ConfigError, match="the run is at 1,000 frames; raise until, or set until=null"):
            run.refuse_finished(1000, 5000, 1000)
        run.refuse_finished(1000, 5000, 5000)


def test_a_run_of_a_league_continues_by_the_command_that_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["league", "train", "folder=my league", "agent=ppo"]
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "/bin/rlstack", *typed])
    stopped, ended = (build(TrainConfig, composed(f"total_frames={frames}", "until=1000")) for frames in (5000, 1000))
    told = where_things_are(RunDirectory(tmp_path), stopped, 1000)
    assert told.splitlines()[-1] == "  rlstack league train 'folder=my league' agent=ppo until=null"
    assert f"rlstack train resume={tmp_path} total" in where_things_are(RunDirectory(tmp_path), ended, 1000)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint_000000001000.pt").touch()
    with pytest.raises(RunError, match="continue with: rlstack league train "), one_line_errors(tmp_path):
        raise MemoryError


class _Reached(BaseException):
    """An update has reached its gradients."""


@exhaustive("agent", ["dqn", "ppo", "sac"], quick=2)
def test_eight_functions_of_ours_lead_to_the_gradients(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These functions, in this order, lead from a command to an update."""
    backward = torch.Tensor.backward

    def stop(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        names = [
            frame.name for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(REPO / "rlstack")
        ]
        if "self_check" in names:
            return backward(tensor, *arguments, **options)
        raise _Reached(" ".join(names))

    words = ["debug=true", "compile=false", "logger=csv", "device=cpu", f"run_dir={tmp_path}/run"]
    monkeypatch.setattr(torch.Tensor, "backward", stop)
    monkeypatch.setattr(sys, "argv", ["train", f"agent={agent}", "env=cartpole", *words])
    GlobalHydra.instance().clear()
    with pytest.raises(
        _Reached, match=r"^main job run execute learn (_learn_from|_sample_and_update) update minimize$"
    ):
        main()
