"""Worlds and algorithms with one fault each, and a point world without."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Unbounded

from rlstack.agents.base import AgentPolicy
from rlstack.agents.dqn import DQN
from rlstack.agents.ppo import PPO
from rlstack.envs.cartpole.env import CartPole
from rlstack.envs.world import World
from rlstack.training.hooks import Hook

# -- worlds ----------------------------------------------------------------------------------------------------------


class Reach(World):
    """A point ``[W, 2]`` in [-1, 1] is pushed to the origin; the reward is minus its distance.

    An episode is truncated after ``max_steps``.

    Args:
        scale, offset: the observation is ``scale place + offset``.
        one_sided: True takes pushes below zero as zero.
    """

    def __init__(
        self,
        num_worlds: int = 8,
        max_steps: int = 40,
        scale: float = 1.0,
        offset: float = 0.0,
        one_sided: bool = False,
        device: torch.device | str = "cpu",
        seed: int | None = 0,
    ) -> None:
        super().__init__(num_worlds, device, torch.float32, seed)
        self.max_steps, self.scale, self.offset, self.one_sided = max_steps, scale, offset, one_sided
        self.declare_specs({"observation": Unbounded((num_worlds, 2))}, Bounded(-1.0, 1.0, shape=(num_worlds, 2)))

    def _restart(self, worlds: Tensor | None) -> None:
        if worlds is None:
            worlds = torch.arange(self.num_worlds)
            self._place = torch.zeros(self.num_worlds, 2)
            self._steps, self._total = torch.zeros(self.num_worlds, 1), torch.zeros(self.num_worlds, 1)
        drawn = torch.rand(len(worlds), 2, generator=self.generator) * 2 - 1
        self._place = self._place.index_copy(0, worlds, drawn)
        self._steps, self._total = (value.index_fill(0, worlds, 0.0) for value in (self._steps, self._total))

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        push = self._chosen(tensordict)
        self._place = (self._place + 0.15 * (push.clamp(min=0) if self.one_sided else push)).clamp(-1, 1)
        reward = -self._place.norm(dim=-1, keepdim=True)
        self._steps, self._total = self._steps + 1, self._total + reward
        late = self._steps >= self.max_steps
        ends = {"done": late, "terminated": torch.zeros_like(late), "truncated": late}
        return self._current().update({"reward": reward, **ends})

    def _current(self) -> TensorDict:
        episode = TensorDict({"return": self._total, "length": self._steps}, self.batch_size)
        return TensorDict({"observation": self._place * self.scale + self.offset, "episode": episode}, self.batch_size)

    def _state_to_save(self) -> dict[str, Any]:
        return {"place": self._place, "steps": self._steps, "total": self._total}

    def _load_state(self, state: dict[str, Any]) -> None:
        self._place, self._steps, self._total = state["place"], state["steps"], state["total"]


class TinyRewards(CartPole):
    """Rewards are a ten-thousandth of those of CartPole."""

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        following = super()._advance(tensordict)
        return following.set("reward", 1e-4 * following.get("reward"))


class NoTermination(CartPole):
    """A fall counts as cut by a time limit."""

    _ends = "truncated", "terminated"

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        following = super()._advance(tensordict)
        done, (every, never) = following.get("done"), self._ends
        return following.set(every, done).set(never, torch.zeros_like(done))


class LimitIsDeath(NoTermination):
    """The time limit counts as a fall."""

    _ends = "terminated", "truncated"


class OneSidedMask(CartPole):
    """Only a push to the left is ever legal."""

    def __init__(self, num_worlds: int = 8, device: torch.device | str = "cpu", seed: int | None = 0) -> None:
        super().__init__(num_worlds, device=device, seed=seed)
        mask = Binary(2, shape=(num_worlds, 2), dtype=torch.bool)
        shown = {"observation": Unbounded((num_worlds, 4)), "action_mask": mask}
        self.declare_specs(shown, Categorical(2, shape=(num_worlds,)))

    def _current(self, **more: Tensor) -> TensorDict:
        mask = torch.tensor([True, False]).expand(self.num_worlds, 2).clone()
        return super()._current(action_mask=mask, **more)


# -- algorithms ------------------------------------------------------------------------------------------------------


class StaleDQN(DQN):
    """Stores nothing after its first 500 transitions."""

    def extend(self, sequences: TensorDictBase) -> None:
        if len(self.replay) < 500:
            super().extend(sequences)


class DeadDQN(DQN):
    """Its hidden units never rise above zero."""

    def make_network(self, actions: int) -> nn.Module:
        network = super().make_network(actions)
        hidden = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][:-1]
        for layer in hidden:
            nn.init.constant_(layer.bias, -100.0)
        return network


class RawGreedyPPO(PPO):
    """Its greedy policy, which evaluations use, forgets the normaliser."""

    def policy(self, explore: bool | None = None) -> AgentPolicy:
        if explore is not False:
            return super().policy(explore)

        def act(observation: Any, mask: Tensor | None = None) -> Tensor:
            return self.interface.to_env(self.distribution(observation, mask).mode().clamp(-1, 1))

        return AgentPolicy(self, act, explore=explore)


class LosesStatistics(Hook):
    """Resets the normaliser before each checkpoint, as a run does that saves weights alone."""

    def on_checkpoint(self, training: Any) -> None:
        for moments in training.agent.normalizer.moments:
            moments.set(torch.zeros_like(moments.mean), torch.ones_like(moments.var), torch.zeros_like(moments.count))


# -- the runs --------------------------------------------------------------------------------------------------------

_HERE = "experiments.explain.spoiled"
_CARTPOLE = "env.num_worlds=8 env.max_steps=200"
_PPO = "agent.steps_per_batch=64 agent.minibatch_size=64 agent.epochs=4"
_DQN = "agent.learning_starts=500 agent.batch_size=32 agent.hidden=[64,64]"
_PPO_CARTPOLE = f"agent=ppo {_PPO} agent.lr=1e-3 {_CARTPOLE}"
_DQN_CARTPOLE = f"{_DQN} {_CARTPOLE} agent.frames_per_update=8"
_PPO_REACH = f"{_PPO} agent.lr=1e-3 env={_HERE}:Reach"
_SHIFTED = "env.scale=50 env.offset=300 agent.normalize_observations=true"
_RAW_GREEDY = f"agent={_HERE}:RawGreedyPPO {_PPO_REACH} {_SHIFTED}"

SPOILED = {
    "reward times 1e-4": ("reward_scale", f"agent=dqn env={_HERE}:TinyRewards {_DQN_CARTPOLE}"),
    "gamma 0.3": ("horizon", f"env=cartpole {_PPO_CARTPOLE} agent.gamma=0.3"),
    "actions clipped to one side": ("one_sided_actions", f"agent=ppo {_PPO_REACH} env.one_sided=true"),
    "normaliser lost": ("normalizer", f"agent=ppo {_PPO_REACH} {_SHIFTED}"),
    "learning rate 1": ("learning_rate", f"agent=ppo {_PPO} agent.lr=1.0 env=cartpole {_CARTPOLE}"),
    "entropy 0": ("exploration", f"agent=ppo {_PPO_REACH} agent.initial_std=1e-6"),
    "terminal flags ignored": ("terminations", f"env={_HERE}:NoTermination {_PPO_CARTPOLE}"),
    "one-sided mask": ("masks", f"agent=ppo {_PPO} agent.lr=1e-3 env={_HERE}:OneSidedMask env.num_worlds=8"),
    "stale replay": ("replay", f"agent={_HERE}:StaleDQN env=cartpole {_DQN_CARTPOLE}"),
    "dead ReLU": ("dormant", f"agent={_HERE}:DeadDQN env=cartpole {_DQN_CARTPOLE}"),
    "time limit as death": ("time_limits", f"env={_HERE}:LimitIsDeath {_PPO_CARTPOLE} env.max_steps=20"),
    "evaluation without normaliser": ("greedy_without_normalizer", _RAW_GREEDY),
}
"""The spoiled runs: the check that is to come first, and the arguments of ``rlstack train``."""
HOOKS = {"normaliser lost": [LosesStatistics()]}
FRAMES = {"ppo": 8192, "dqn": 6000}
"""The frames of a spoiled run, by its algorithm."""

HEALTHY = {
    "PPO, CartPole": f"env=cartpole {_PPO_CARTPOLE} total_frames=40000",
    "DQN, CartPole": f"agent=dqn env=cartpole {_DQN} {_CARTPOLE} agent.frames_per_update=4 total_frames=20000",
    "SAC, reaching a point": (
        f"agent=sac env={_HERE}:Reach agent.hidden=[64,64] agent.batch_size=64 agent.learning_starts=500 "
        "agent.random_frames=500 agent.frames_per_update=4 agent.lr_actor=1e-3 agent.lr_critic=1e-3 total_frames=10000"
    ),
}
"""The healthy runs."""
