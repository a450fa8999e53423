"""Collecting many steps at once equals single steps that are stacked."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlstack
from rlstack import envs
from rlstack.data.collector import LeanCollector
from tests.exhaustive import exhaustive


class Turns(gymnasium.Env[dict[str, Any], int]):
    """Nested observations, a mask that changes every step, episodes of 4 to 6 steps; ``info`` is empty."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-9, 9, (2,)), "kind": spaces.Discrete(3), "action_mask": spaces.MultiBinary(4)}
    )
    action_space = spaces.Discrete(4)

    def _observe(self) -> dict[str, Any]:
        mask = np.ones(4, np.int8)
        mask[self.count % 4] = 0
        return {"place": np.array([self.count, self.last], np.float32), "kind": self.count % 3, "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.last, self.length = 0, 0, int(self.np_random.integers(4, 7))
        return self._observe(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert action != self.count % 4, "an action that the mask forbids"
        self.count, self.last = self.count + 1, int(action)
        return self._observe(), float(action), self.count >= self.length, False, {}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"id": "CartPole-v1", "num_envs": 3}, "ppo"),
    ({"id": "CartPole-v1", "num_envs": 1, "max_steps": 15}, "dqn"),
    ({"id": "Pendulum-v1", "num_envs": 2, "max_steps": 20}, "sac"),
    ({"id": f"{__name__}:Turns", "num_envs": 3}, "ppo"),
    ({"id": f"{__name__}:Turns", "num_envs": 2, "workers": 2}, "dqn"),
]


def batches(options: dict[str, Any], agent: str, **collector: Any) -> tuple[Any, list[Any]]:
    """Returns six batches of eight steps."""
    torch.manual_seed(1)
    with envs.make("gymnasium", seed=1, **options) as env:  # type: ignore[attr-defined]
        policy = rlstack.make_agent(agent, env).policy(explore=True)
        gathering = rlstack.make_collector(env, policy, 8, **collector)
        torch.manual_seed(3)
        batch = iter(gathering)
        return gathering, [next(batch) for _ in range(6)]


@exhaustive(("options", "agent"), CASES)
def test_in_one_go_is_as_step_by_step(options: dict[str, Any], agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick, one = batches(options, agent)
    slow, other = batches(options, agent, storing_device="cpu")
    assert isinstance(quick, LeanCollector) and quick._in_one_go and not isinstance(slow, LeanCollector)
    ends = 0
    for got, wanted in zip(one, other):
        keys = set(wanted.keys(True, True))
        assert set(got.keys(True, True)) == keys and got.batch_size == wanted.batch_size
        for key in keys:
            assert got[key].dtype == wanted[key].dtype
            assert torch.equal(got[key], wanted[key]), key
        ends += int(got["next", "done"].sum())
    assert ends > 1, "episodes must have ended for this to prove anything"


def test_a_wrapper_does_not_pass_it_on() -> None:
    env = envs.make("gymnasium", id="CartPole-v1", num_envs=2, frame_stack=2)
    policy = rlstack.make_agent("ppo", env).policy(explore=True)
    batch = next(iter(rlstack.make_collector(env, policy, 4)))
    assert batch["observation"].shape == (2, 4, 8)
