"""Our parts in scripts of plain TorchRL."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from experiments.plain_torchrl import gymnasium_ppo, iqn, marinenav, pendulum, policy
from tests.conftest import Ended


@pytest.mark.parametrize(
    ("script", "lines"), [(gymnasium_ppo, 75), (iqn, 40), (marinenav, 60), (pendulum, 60), (policy, 60)]
)
def test_the_scripts_are_short(script: ModuleType, lines: int) -> None:
    assert len(Path(script.__file__ or "").read_text().splitlines()) <= lines


def test_iqn_with_our_loss_and_our_replay_runs_in_a_script_of_torchrl() -> None:
    assert 250 <= sum(iqn.train(frames=300, start=100)) <= 300  # but for the last episode


@pytest.mark.slow
def test_iqn_with_our_loss_and_our_replay_learns_in_a_script_of_torchrl() -> None:
    """At random a pole stands for 22 steps, and greedily, before anything is learned, for 9."""
    returns = iqn.train(frames=2000, start=100)
    assert 1500 <= sum(returns) <= 2000  # but for the last episode, of at most 500
    assert sum(returns[-5:]) / 5 > 40


def test_our_world_runs_under_torchrls_ppo() -> None:
    rewards = marinenav.train(batches=2, worlds=4)
    assert len(rewards) == 2 and all(map(math.isfinite, rewards))


@pytest.mark.slow
def test_our_world_teaches_torchrls_ppo() -> None:
    """Robots that drive at random lose reward at every step, and gain some once they drive to their goals."""
    rewards = marinenav.train(batches=16, worlds=32)
    assert rewards[0] < 0
    assert sum(rewards[-3:]) / 3 > 0.1


def test_our_loss_of_ac_iqn_runs_in_a_script_of_torchrl() -> None:
    torch.manual_seed(0)
    assert len(pendulum.train(frames=600, start=400)) == 3


def test_our_world_runs_under_a_ppo_of_plain_pytorch() -> None:
    rewards = gymnasium_ppo.train(batches=2, worlds=4, steps=8)
    assert len(rewards) == 2 and all(map(math.isfinite, rewards))


@pytest.mark.slow
def test_our_world_teaches_a_ppo_of_plain_pytorch() -> None:
    rewards = gymnasium_ppo.train(batches=30, worlds=32, steps=32)
    assert rewards[0] < 0
    assert sum(rewards[-3:]) / 3 > 0.1


@pytest.mark.slow
def test_our_loss_of_ac_iqn_learns_in_a_script_of_torchrl() -> None:
    """At random an episode returns some -1,200; -150 is what a trained agent gets."""
    returns = pendulum.train(frames=6000)
    assert sum(returns[-10:]) / 10 > -250


def test_a_policy_of_a_run_acts_in_a_rollout_of_torchrl(rlstack_command: Callable[..., Ended], tmp_path: Path) -> None:
    run = tmp_path / "run"
    rlstack_command("train", "agent=ppo", "env=cartpole", "total_frames=4096", f"run_dir={run}", "eval.episodes=2")
    batch = policy.play(str(run), worlds=4, steps=60)
    assert batch.shape == (4, 60)
    assert torch.equal(
        batch["next", "observation"][:, :-1][~batch["next", "done"][:, :-1, 0]],
        batch["observation"][:, 1:][~batch["next", "done"][:, :-1, 0]],
    )
