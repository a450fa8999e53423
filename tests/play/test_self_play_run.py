"""A run against its own past: snapshots join during training, and a killed run resumes exactly."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import rlstack
from rlstack.config.allowed import sign_copy
from rlstack.runs.checkpoint import read_checkpoint
from tests.play.duel import NAME
from tests.small_run import begun, composed, logged, reopened

SMALL = [
    *("agent=ppo", "env=gymnasium", "agent.hidden=[8]", "agent.steps_per_batch=16", "agent.epochs=1"),
    *("agent.minibatch_size=64", "total_frames=2000", "log_every=200", "eval.every=1000", "eval.episodes=4"),
    *("checkpoint.every=500", "checkpoint.keep=9", "logger=csv", "threads=1", "device=cpu"),
]
OPPONENTS = {
    "players": ["low", "random"],
    "side": "both",
    "sampler": "pfsp",
    "snapshot_every": 300,
    "refresh": 5,
    "evaluation": ["low"],
}


def plain_config() -> dict[str, Any]:
    return {**composed(*SMALL), "env": {"name": NAME, "num_worlds": 8, "opponents": OPPONENTS}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    begun(folder, plain_config()).execute()
    return folder


@pytest.mark.slow
def test_snapshots_join_and_are_met(finished: Path) -> None:
    index = json.loads((finished / "opponents" / "pool.json").read_text())
    frames = [entry["frames"] for entry in index["entries"]]
    assert frames[:2] == [0, 0] and len(frames) >= 6
    assert all(later - earlier >= 300 for earlier, later in pairwise(frames[1:]))
    assert any(entry["games"] for entry in index["entries"][2:])
    rows = logged(finished)
    assert any(float(row["play/win_rate_low"] or 0) > 0.5 for row in rows)
    assert any(float(row["play/elo"] or 0) for row in rows)


@pytest.mark.slow
def test_a_snapshot_is_a_checkpoint_of_the_world_with_both_sides(finished: Path) -> None:
    loaded = rlstack.load(sorted((finished / "opponents").glob("*.pt"))[0])
    assert loaded.make_env(num_worlds=2).observation_spec["agents"].shape == (2, 2)
    whole = rlstack.load(finished)
    assert whole.make_env(num_worlds=2).observation_spec["agents"].shape == (2, 1)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "killed"
    sign_copy(finished, Path(shutil.copytree(finished, copy)))
    checkpoints = sorted((copy / "checkpoints").glob("checkpoint_*.pt"))
    final = read_checkpoint(checkpoints[-1])
    for path in checkpoints[2:]:
        path.unlink()
    torch.manual_seed(54321)
    training = reopened(copy, plain_config())
    training.restore()
    assert training.frames < 1500
    training.execute()
    again = read_checkpoint(sorted((copy / "checkpoints").glob("checkpoint_*.pt"))[-1])
    assert again["env"]["pool"] == final["env"]["pool"]
    assert torch.equal(again["env"]["assignment"], final["env"]["assignment"])
    for name, network in final["agent"]["networks"].items():
        for key, value in network.items():
            assert torch.equal(torch.as_tensor(again["agent"]["networks"][name][key]), torch.as_tensor(value)), key
