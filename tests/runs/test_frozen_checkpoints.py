"""Checkpoints of an earlier version load, act as they did then, and go on training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchrl.envs.utils import step_mdp

import rlstack
from rlstack.runs.checkpoint import read_checkpoint
from rlstack.runs.run_directory import RunDirectory

FROZEN = Path(__file__).parents[1] / "fixtures" / "checkpoints"
CASES = sorted(path.stem for path in FROZEN.glob("*.pt"))


def greedy_actions(path: Path) -> np.ndarray[Any, Any]:
    """Returns the greedy actions after the first reset of four worlds, and after that step."""
    loaded = rlstack.load(path, agent={"greedy": "mode"} if path.stem == "rocket" else None)  # its recipe samples
    env = loaded.make_env(4, seed=11)
    policy = loaded.agent.policy(explore=False)
    group = loaded.agent.interface.group
    key = "action" if group is None else (group, "action")
    with torch.no_grad():
        first = env.step(policy(env.reset()))
        second = policy(step_mdp(first))
    env.close()
    return torch.stack([first.get(key), second.get(key)]).numpy()


def test_ten_are_kept() -> None:
    assert len(CASES) == 10


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_an_earlier_version_acts_as_it_did(case: str) -> None:
    expected = np.load(FROZEN / "actions.npz")[case]
    np.testing.assert_allclose(greedy_actions(FROZEN / f"{case}.pt"), expected, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_an_earlier_version_goes_on(case: str, tmp_path: Path) -> None:
    state = read_checkpoint(FROZEN / f"{case}.pt")
    run = RunDirectory.create(str(tmp_path / "run"), case, 3)
    run.write_config(state["config"])
    (run.path / "checkpoints").mkdir()
    shutil.copy(FROZEN / f"{case}.pt", run.path / "checkpoints" / f"checkpoint_{state['frames']:012d}.pt")
    trained = rlstack.train(resume=str(run.path), total_frames=500, quiet=True)
    assert rlstack.load(trained).frames >= 500
