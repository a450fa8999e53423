"""``env=playground`` and ``env=mjlab``: what they refuse, rows that are reset one by one, and terms of rewards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack import envs
from tests.refusals import refused


@pytest.mark.parametrize(("world", "package"), [("playground", "mujoco_playground"), ("mjlab", "mjlab")])
def test_a_missing_package_is_named(world: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstack.envs.torchrl.env.find_spec", lambda name: None if name == package else object())
    refused(ValueError, f"env={world} needs the extra '{world}'", envs.make, world, task="x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "package", "task", "options"),
    [
        ("playground", "mujoco_playground", "CartpoleBalance", {"max_steps": 3}),
        ("mjlab", "mjlab", "Mjlab-Cartpole-Balance", {"max_steps": 3, "observation_keys": ["actor"]}),
    ],
)
def test_rows_begin_anew_one_by_one(world: str, package: str, task: str, options: dict[str, Any]) -> None:
    pytest.importorskip(package)
    refused(ValueError, "task: 'Nothing' is none of", envs.make, world, task="Nothing")
    env = envs.make(world, task=task, num_envs=3, seed=1, **options)
    env.reset()
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    seen = root["observation"].clone()
    lengths = root["episode", "length"].flatten().tolist()
    assert lengths == [1.0, 1.0, 1.0]
    after = env.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(after["observation"][[0, 2]], seen[[0, 2]])
    assert not torch.equal(after["observation"][1], seen[1])
    assert after["episode", "length"].flatten().tolist() == [1.0, 0.0, 1.0]
    names = [name for name in sorted(after["episode"].keys()) if name.startswith("reward_")]
    assert names and all(float(after["episode", name][1]) == 0 for name in names)
    # The rows go on from where they were: the same action moves them as one simulator would have.
    following = env.step(after.set("action", torch.zeros_like(env.rand_action(after)["action"])))["next"]
    assert following["episode", "length"].flatten().tolist() == [2.0, 1.0, 2.0]
    moved = (following["observation"] - after["observation"]).abs().amax(-1)
    assert bool((moved < 0.5).all())  # no row has jumped
    env.close()
