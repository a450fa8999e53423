"""A world for policies from elsewhere: random observations, episodes of different lengths, any specs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import EnvBase

MULTI = {"combat_targets": 17, "enemy_count": 1, "mission_progress": 3, "player_state": 7, "spatial_awareness": 4}
"""Keys and sizes of the observations of models of Stable-Baselines3 in ``tests/fixtures/sb3``."""


class Noise(EnvBase):
    """Shows noise. The episodes of world w take 3 + w steps; what is shown depends on the seed and the clock alone.

    Args:
        observation: number of features, or numbers by key.
        action: number of discrete actions, or the spec of one action.
        num_worlds: W.
        agents: how many act in each world, under ``agents``; None for one without a group.
    """

    def __init__(
        self,
        observation: int | Mapping[str, int] = 5,
        action: int | TensorSpec = 4,
        num_worlds: int = 3,
        agents: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(batch_size=[num_worlds], device=device)
        self.lead = (num_worlds,) if agents is None else (num_worlds, agents)
        self.group = agents is not None
        spec = Categorical(action) if isinstance(action, int) else action
        seen: TensorSpec = self._features(observation)
        self.observation_spec = self._placed({"observation": seen})
        self.action_spec = self._placed({"action": spec.expand(*self.lead, *spec.shape)})
        self.reward_spec = self._placed({"reward": Unbounded((*self.lead, 1))})
        ends = {name: Binary(1, shape=(num_worlds, 1), dtype=torch.bool) for name in ("done", "terminated")}
        self.done_spec = Composite(ends, shape=(num_worlds,))
        self.clock = torch.zeros(num_worlds, dtype=torch.long)
        self.generator = torch.Generator().manual_seed(0)

    def _features(self, observation: int | Mapping[str, int]) -> TensorSpec:
        if isinstance(observation, int):
            return Unbounded((*self.lead, observation))
        return Composite({key: Unbounded((*self.lead, size)) for key, size in observation.items()}, shape=self.lead)

    def _placed(self, entries: dict[str, Any]) -> Composite:
        inner = Composite(entries, shape=self.lead)
        return Composite({"agents": inner}, shape=self.lead[:1]) if self.group else inner

    def _show(self) -> TensorDict:
        spec = self.observation_spec
        leaves = sorted(spec.keys(True, True), key=str)
        shown = {key: torch.randn(spec[key].shape, generator=self.generator) for key in leaves}
        return TensorDict(shown, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = torch.ones_like(self.clock, dtype=torch.bool) if mask is None else mask.reshape(-1)
        self.clock = torch.where(chosen, 0, self.clock)
        return self._show()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.clock = self.clock + 1
        done = (self.clock >= 3 + torch.arange(len(self.clock)))[:, None]
        reward = ("agents", "reward") if self.group else "reward"
        return self._show().update({reward: torch.zeros(*self.lead, 1), "done": done, "terminated": done.clone()})

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed or 0)


def box(*bounds: tuple[float, float]) -> Bounded:
    """Returns the spec of one continuous action with these bounds."""
    low, high = torch.tensor(bounds).unbind(-1)
    return Bounded(low, high, shape=low.shape, dtype=torch.float32)
