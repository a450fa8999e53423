"""Actions that mix numbers and choices: as a vector, in the env's own form, and learned by PPO and A2C."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from rlstack.agents.interface import Interface
from rlstack.data.flatten import flatten_agents
from tests.agents.small_agents import Decisions, small


def action_spec(*lead: int) -> Composite:
    parts = {
        "button": Categorical(3, shape=lead),
        "axes": Bounded(0.0, 4.0, shape=(*lead, 2)),
        "more": MultiCategorical([2, 4], shape=(*lead, 2)),
    }
    return Composite(parts, shape=lead)


class Signs(EnvBase):
    """One decision an episode: a sign is shown, which the button must name and half of which the axis must be.

    Buttons 0 and 1 stand for -1 and 1; button 2 is never allowed and costs much.
    """

    def __init__(self, num_worlds: int = 64) -> None:
        super().__init__(batch_size=[num_worlds])
        lead = (num_worlds,)
        self.lead = lead
        seen = {"observation": Unbounded((*lead, 1)), "action_mask": Binary(3, shape=(*lead, 3), dtype=torch.bool)}
        self.observation_spec = Composite(seen, shape=lead)
        parts = {"axis": Bounded(-1.0, 1.0, shape=(*lead, 1)), "button": Categorical(3, shape=lead)}
        self.action_spec = Composite({"action": Composite(parts, shape=lead)}, shape=lead)
        self.reward_spec = Composite({"reward": Unbounded((*lead, 1))}, shape=lead)
        ends = {name: Binary(1, shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead)
        self.sign = torch.ones(lead)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        self.sign = torch.randint(2, self.lead) * 2.0 - 1
        mask = torch.tensor([True, True, False]).expand(*self.lead, -1)
        return TensorDict({"observation": self.sign[:, None], "action_mask": mask}, self.batch_size)

    def reward(self, action: TensorDictBase) -> Tensor:
        """Returns the reward, at most 1."""
        axis, button = action["axis"][:, 0], action["button"]
        right = (button == (self.sign > 0)).float() - 9 * (button == 2).float()
        return right - (axis - self.sign / 2).square()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        reward, done = self.reward(tensordict["action"])[:, None], torch.ones(*self.lead, 1, dtype=torch.bool)
        ends = {"done": done, "terminated": done, "truncated": ~done}
        return self._reset().update({"reward": reward, **ends})

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_a_dict_of_numbers_and_choices_is_one_vector() -> None:
    env: Any = Decisions(Unbounded(3), action_spec())
    hybrid = Interface.of(env).hybrid
    assert hybrid is not None and hybrid.numbers == 2 and hybrid.counts == (3, 2, 4)
    vector = torch.tensor([[-1.0, 0.5, 2, 1, 3], [7.0, -7.0, 0, 0, 2]])
    action = hybrid.to_env(vector)
    assert action["axes"].tolist() == [[0, 3], [4, 0]]  # within its bounds
    assert action["button"].tolist() == [2, 0] and action["more"].tolist() == [[1, 3], [0, 2]]
    assert action_spec(2).is_in(action)
    assert hybrid.from_env(action).tolist() == [[-1, 0.5, 2, 1, 3], [1, -1, 0, 0, 2]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_agents_learn_numbers_and_choices(name: str) -> None:
    torch.manual_seed(0)
    env = Signs()
    rate = {"ppo": {"lr": 5e-3, "epochs": 4, "minibatch_size": 128}, "a2c": {"lr": 5e-3}}[name]
    agent = small(env, 10**6, name, gamma=0.0, **rate)
    for _ in range(60 if name == "ppo" else 200):
        batch = env.rollout(4, agent.policy(explore=True), break_when_any_done=False)
        agent.learn(flatten_agents(batch, None), 1)
    greedy = agent.policy(explore=False)(env.reset())
    assert env.full_action_spec["action"].is_in(greedy["action"])
    assert env.reward(greedy["action"]).mean() > 0.9


def test_a_memory_acts_and_learns_too() -> None:
    env = Signs(8)
    agent = small(env, name="ppo", recurrent={"kind": "lstm", "size": 8, "sequence_length": 2})
    batch = env.rollout(4, agent.policy(explore=True), break_when_any_done=False)
    metrics = agent.update_once(flatten_agents(batch, None))
    assert metrics and all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
