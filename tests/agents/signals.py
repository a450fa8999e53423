"""A world in which an agent's rewards depend on what only the others see."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded

from rlstack.envs.world import World

ENDS = ("done", "terminated", "truncated")


class Signals(World):
    """Every agent sees a cue of its own, -1 or 1 and new at every step; it is paid the mean cue of its living others.

    Observation ``[2]``: the cue, and a tenth of the time. Actions change nothing. The dead see zeros, and are
    ``terminated`` in the step of their death alone. When a world is cut off nobody is active any more, and its true
    last observations are shown.

    Args:
        deaths: how probably an agent dies in a step.
        length: steps after which a world is cut off.
    """

    def __init__(
        self,
        num_worlds: int = 4,
        agents: int = 3,
        deaths: float = 0.1,
        length: int = 10,
        seed: int = 0,
        dtype: Any = torch.float64,
    ) -> None:
        super().__init__(num_worlds, "cpu", dtype, seed)
        self.deaths, self.length = deaths, length
        lead = (num_worlds, agents)

        def root(entries: dict[str, Any], **rest: Any) -> Composite:
            return Composite({"agents": Composite(entries, shape=lead), **rest}, shape=(num_worlds,))

        def flag(*shape: int) -> Binary:
            return Binary(shape[-1], shape=shape, dtype=torch.bool)

        self.observation_spec = root({"observation": Unbounded((*lead, 2), dtype=dtype), "active": flag(*lead)})
        self.action_spec = root({"action": Categorical(2, shape=lead)})
        self.reward_spec = root({"reward": Unbounded((*lead, 1), dtype=dtype)})
        self.done_spec = root({key: flag(*lead, 1) for key in ENDS}, **{key: flag(num_worlds, 1) for key in ENDS})
        self.time = torch.zeros(num_worlds, dtype=torch.int64)
        self.cue, self.alive = torch.zeros(lead), torch.ones(lead, dtype=torch.bool)

    def _drawn(self) -> Tensor:
        return torch.randint(2, self.cue.shape, generator=self.generator).to(self.float_dtype) * 2 - 1

    def _observed(self, alive: Tensor) -> Tensor:
        seen = torch.stack((self.cue, (self.time[:, None] / 10).expand_as(self.cue)), -1)
        return (seen * alive[..., None]).to(self.float_dtype)

    def _current(self) -> TensorDict:
        agents = {"observation": self._observed(self.alive), "active": self.alive.clone()}
        return TensorDict({"agents": TensorDict(agents, self.cue.shape)}, self.batch_size)

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        before, cue = self.alive, self.cue * self.alive
        others = (before.sum(1, keepdim=True) - before.long()).clamp(min=1)
        reward = (cue.sum(1, keepdim=True) - cue) / others * before
        self.alive = before & (torch.rand(cue.shape, generator=self.generator) >= self.deaths)
        self.time, self.cue = self.time + 1, self._drawn()
        extinct = ~self.alive.any(1)
        cut = (self.time == self.length) & ~extinct
        over = (extinct | cut)[:, None]
        terminated, truncated = (before & ~self.alive)[..., None], (cut[:, None] & self.alive)[..., None]
        ends = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
        agents = {"observation": self._observed(before), "active": self.alive & ~over}
        agents |= {"reward": reward[..., None].to(self.float_dtype), **ends}
        root = {"done": over, "terminated": extinct[:, None], "truncated": cut[:, None]}
        return TensorDict({"agents": TensorDict(agents, cue.shape), **root}, self.batch_size)

    def _restart(self, worlds: Tensor | None) -> None:
        chosen = torch.arange(self.num_worlds) if worlds is None else worlds
        drawn = self._drawn()
        self.time, self.cue, self.alive = self.time.clone(), self.cue.to(drawn.dtype, copy=True), self.alive.clone()
        self.time[chosen], self.cue[chosen], self.alive[chosen] = 0, drawn[chosen], True

    def _state_to_save(self) -> dict[str, Any]:
        return {"time": self.time, "cue": self.cue, "alive": self.alive}

    def _load_state(self, state: dict[str, Any]) -> None:
        self.time, self.cue, self.alive = state["time"], state["cue"], state["alive"]
