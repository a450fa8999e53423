"""Our parts in scripts of plain TorchRL."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from experiments.plain_torchrl import gymnasium_ppo, iqn, marinenav, pendulum, policy
from tests.conftest import Command
from tests.exhaustive import exhaustive


@pytest.mark.parametrize(
    ("script", "lines"), [(gymnasium_ppo, 75), (iqn, 40), (marinenav, 60), (pendulum, 60), (policy, 60)]
)
def test_the_scripts_are_short(script: ModuleType, lines: int) -> None:
    assert len(Path(script.__file__ or "").read_text().splitlines()) <= lines


@exhaustive("frames", [200, 2000])
def test_iqn_with_our_loss_and_our_replay_learns_in_a_script_of_torchrl(frames: int) -> None:
    """At random a pole stands for 22 steps, and greedily, before anything is learned, for 9."""
    returns = iqn.train(frames=frames, start=100)
    assert 0.75 * frames <= sum(returns) <= frames  # but for the last episode, of at most 500
    assert frames == 200 or sum(returns[-5:]) / 5 > 40


@exhaustive(
    ("script", "batches", "sizes"),
    [
        (marinenav, 2, {"worlds": 4}),
        (gymnasium_ppo, 2, {"worlds": 4, "steps": 8}),
        (marinenav, 16, {"worlds": 32}),
        (gymnasium_ppo, 30, {"worlds": 32, "steps": 32}),
    ],
    quick=2,
)
def test_our_world_teaches_ppos_of_torchrl_and_pytorch(script: Any, batches: int, sizes: dict[str, int]) -> None:
    """Robots that drive at random lose reward at every step, and gain some once they drive to their goals."""
    rewards = script.train(batches=batches, **sizes)
    assert len(rewards) == batches and all(map(math.isfinite, rewards))
    assert batches == 2 or (rewards[0] < 0 and sum(rewards[-3:]) / 3 > 0.1)


@exhaustive("frames", [200, 6000])
def test_our_loss_of_ac_iqn_learns_in_a_script_of_torchrl(frames: int) -> None:
    """At random an episode returns some -1,200; -150 is what a trained agent gets."""
    torch.manual_seed(0)
    returns = pendulum.train(frames=frames, **({"start": 150} if frames == 200 else {}))
    assert len(returns) == frames // 200 and (frames == 200 or sum(returns[-10:]) / 10 > -250)


def test_a_policy_of_a_run_acts_in_a_rollout_of_torchrl(rlstack_command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    rlstack_command("train", "agent=ppo", "env=cartpole", "total_frames=2048", f"run_dir={run}", "eval.episodes=2")
    batch = policy.play(str(run), worlds=4, steps=60)
    goes_on = ~batch["next", "done"][:, :-1, 0]
    assert batch.shape == (4, 60)
    assert torch.equal(batch["next", "observation"][:, :-1][goes_on], batch["observation"][:, 1:][goes_on])
