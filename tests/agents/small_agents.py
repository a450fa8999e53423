"""Small agents and worlds for the tests of AC-IQN."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from rlstack.agents import make_agent

SMALL: dict[str, Any] = {
    "self_features": 8,
    "object_features": [4],
    "hidden": [16, 16],
    "batch_size": 16,
    "buffer_size": 1000,
    "learning_starts": 0,
    "frames_per_update": 10,
    "n_step": 2,
    "candidates": 1,
}


class Detour(EnvBase):
    """Two decisions an episode: the first pays its action at once and costs 1.5 times as much after the second.

    Who looks one step ahead chooses 1, who looks to the end chooses -1. Observation ``[phase, debt]``, action
    ``[1]``; the second action is best at 0.5.
    """

    def __init__(self, num_worlds: int = 32, low: float = -1.0, discrete: bool = False) -> None:
        super().__init__(batch_size=[num_worlds])
        lead = (num_worlds,)
        self.observation_spec = Composite({"observation": Unbounded((*lead, 2))}, shape=lead)
        action = Categorical(3, shape=lead) if discrete else Bounded(low, 1.0, shape=(*lead, 1))
        self.action_spec = Composite({"action": action}, shape=lead)
        self.reward_spec = Composite({"reward": Unbounded((*lead, 1))}, shape=lead)
        ends = {name: Binary(1, shape=(*lead, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(ends, shape=lead)
        self.phase, self.debt = torch.zeros(lead), torch.zeros(lead)

    def _observe(self) -> TensorDict:
        return TensorDict({"observation": torch.stack((self.phase, self.debt), -1)}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = torch.ones_like(self.phase, dtype=torch.bool) if mask is None else mask.reshape(-1)
        self.phase, self.debt = (torch.where(chosen, 0.0, value) for value in (self.phase, self.debt))
        return self._observe()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        action = tensordict["action"][:, 0]
        first = self.phase == 0
        reward = torch.where(first, action, -1.5 * self.debt - (action - 0.5).square())
        self.phase, self.debt = self.phase + 1, torch.where(first, action, self.debt)
        done = ~first[:, None]
        ends = {"done": done, "terminated": done, "truncated": torch.zeros_like(done)}
        return self._observe().update({"reward": reward[:, None], **ends})

    def _set_seed(self, seed: int | None) -> None:
        pass


def small(env: EnvBase | None = None, total_frames: int = 1000, name: str = "acqn", **overrides: Any) -> Any:
    torch.manual_seed(0)
    env = Detour() if env is None else env
    return make_agent(name, env, total_frames, **{**SMALL, **overrides})


def sequences(frames: int) -> TensorDict:
    """``frames`` decisions of one made-up world."""
    following = {
        "observation": torch.randn(1, frames, 2),
        "reward": torch.randn(1, frames, 1),
        "terminated": torch.zeros(1, frames, 1, dtype=torch.bool),
        "done": torch.zeros(1, frames, 1, dtype=torch.bool),
    }
    entries = {
        "observation": torch.randn(1, frames, 2),
        "action": torch.rand(1, frames, 1) * 2 - 1,
        "active": torch.ones(1, frames, dtype=torch.bool),
        "next": following,
    }
    return TensorDict(entries, [1, frames])


def copies(values: list[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def targets(agent: Any) -> list[Tensor]:
    params = (agent.loss.target_actor_network_params, agent.loss.target_critic_network_params)
    return [value for part in params for value in part.values(True, True)]


def online_parameters(agent: Any, name: str) -> list[Tensor]:
    return list(getattr(agent.loss, f"{name}_network_params").values(True, True))
