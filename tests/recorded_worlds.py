"""Worlds of a few operations, in which every agent can act, for tests of what a GPU would record."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Unbounded

from rlstack.envs.foundation.tensors import GROUP, unchecked
from rlstack.envs.world import Mirror, World


def _flipped(action: Tensor) -> Tensor:
    return -action if action.is_floating_point() else 2 - action


class Drift(World):
    """Points that drift, pushed by actions ``[W, 2]`` or one of three choices, until chance or time ends them."""

    def __init__(self, num_worlds: int = 6, choices: bool = False, masked: bool = False, seed: int | None = 0) -> None:
        super().__init__(num_worlds, "cpu", torch.float32, seed)
        self.masked, self._lead = masked, (num_worlds,)
        shown: dict[str, Any] = {"observation": Unbounded((num_worlds, 3))}
        if masked:
            shown["action_mask"] = Binary(3, shape=(num_worlds, 3), dtype=torch.bool)
        action = Categorical(3, shape=(num_worlds,)) if choices else Bounded(-1.0, 1.0, shape=(num_worlds, 2))
        self.declare_specs(shown, action)

    def mirror(self) -> Mirror:
        return Mirror(torch.neg, _flipped, None)

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            self._place, self._steps = torch.zeros(*self._lead, 3), torch.zeros(self.num_worlds, 1)
        ended = torch.zeros(self.num_worlds, dtype=torch.bool)
        ended[slice(None) if worlds is None else worlds] = True
        self._restart_where(ended)

    def _restart_where(self, ended: Tensor) -> bool:
        drawn = torch.rand(*self._lead, 3, generator=self.generator)
        self._place = torch.where(ended.view(-1, *[1] * len(self._lead)), drawn, self._place)
        self._steps = self._steps * ~ended[:, None]
        return True

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        action = self._chosen(tensordict)
        push = action if action.is_floating_point() else (action - 1.0)[:, None]
        self._place, self._steps = (self._place + 0.1 * push.mean(-1, keepdim=True)).cos(), self._steps + 1
        chance = torch.rand(self.num_worlds, 1, generator=self.generator)
        terminated, late = chance < 0.2, self._steps >= 7
        ends = {"done": terminated | late, "terminated": terminated, "truncated": late & ~terminated}
        return self._current().update({"reward": self._place[:, :1].clone(), **ends})

    def _current(self) -> TensorDict:
        episode = TensorDict({"return": self._steps, "length": self._steps}, self.batch_size)
        shown = TensorDict({"observation": self._place.clone(), "episode": episode}, self.batch_size)
        if self.masked:
            shown.set("action_mask", torch.arange(3) != (self._steps % 3))
        return shown

    def _state_to_save(self) -> dict[str, Any]:
        return {"place": self._place, "steps": self._steps}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._place, self._steps = state["place"], state["steps"]


class Crowd(Drift):
    """Three agents that drift, ``[W, A, 2]`` or choices, each until chance ends it, and all until time does."""

    agents = 3

    def __init__(self, num_worlds: int = 4, choices: bool = False, seed: int | None = 0, state: bool = False) -> None:
        World.__init__(self, num_worlds, "cpu", torch.float32, seed)
        self._lead = lead = (num_worlds, self.agents)
        self.masked, self.shows_state = False, state
        shown: dict[str, Any] = {"observation": Unbounded((*lead, 3))} | (
            {"state": Unbounded((*lead, 3))} if state else {}
        )
        action = Categorical(3, shape=lead) if choices else Bounded(-1.0, 1.0, shape=(*lead, 2))
        self.declare_specs(shown, action, agents=self.agents)

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            self._there = torch.ones(self._lead, dtype=torch.bool)
        super()._restart(worlds)

    def _restart_where(self, ended: Tensor) -> bool:
        self._there = self._there | ended[:, None]
        return super()._restart_where(ended)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        action = self._chosen(tensordict)
        push = action.mean(-1) if action.is_floating_point() else action - 1.0
        self._place, self._steps = (self._place + 0.1 * push.unsqueeze(-1)).cos(), self._steps + 1
        leaves = torch.rand(self.num_worlds, self.agents, generator=self.generator) < 0.2
        terminated = leaves & self._there
        self._there = self._there & ~leaves
        done = (self._steps >= 7) | ~self._there.any(-1, keepdim=True)
        root = self._current()
        agents = root.get(GROUP)
        ends = {"terminated": terminated, "truncated": done & self._there, "done": terminated | ~self._there | done}
        agents.update(
            {"reward": self._place[..., :1].clone(), **{name: flag[..., None] for name, flag in ends.items()}}
        )
        return root.update({"done": done, "terminated": ~self._there.any(-1, keepdim=True), "truncated": done})

    def _current(self) -> TensorDict:
        shown = {"observation": self._place.clone(), "active": self._there.clone()}
        if self.shows_state:
            shown["state"] = -self._place
        episode = unchecked({"return": self._steps, "length": self._steps}, self.batch_size)
        return unchecked({GROUP: unchecked(shown, self._there.shape), "episode": episode}, self.batch_size)

    def _state_to_save(self) -> dict[str, Any]:
        return {**super()._state_to_save(), "there": self._there}

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        self._there = state["there"]
