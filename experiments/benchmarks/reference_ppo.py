"""PPO (Schulman et al. 2017) in one file with only torch and Gymnasium, in the style of single-file libraries.

A reference for :mod:`experiments.benchmarks.peers` that uses nothing of rlstack. It supports discrete actions only, and
treats the time limit as a terminal state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64 tanh units, orthogonal weights."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, own_gain in zip(layers, (math.sqrt(2), math.sqrt(2), gain)):
        nn.init.orthogonal_(layer.weight, own_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


GAMMA, TRACE, CLIP, LIMIT = 0.99, 0.95, 0.2, 0.5
"""Discount, decay of the advantages, range of the ratio, and limit on the gradient's norm."""


class ReferencePPO:
    """The whole algorithm; ``steps`` are those of each environment between two updates."""

    def __init__(
        self, env_id: str, num_envs: int, steps: int = 2048, minibatch: int = 64, epochs: int = 10, lr: float = 3e-4
    ) -> None:
        factories = [lambda: gymnasium.make(env_id)] * num_envs
        self.envs: Any = SyncVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP)
        self.steps, self.minibatch, self.epochs = steps, minibatch, epochs
        size = self.envs.single_observation_space.shape[0]
        self.actor = network(size, self.envs.single_action_space.n, 0.01)
        self.critic = network(size, 1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr, eps=1e-5)
        self.seen = torch.from_numpy(self.envs.reset(seed=0)[0])

    def train(self, frames: int) -> None:
        """Collects and learns for at least ``frames`` further steps of all environments together."""
        for _ in range(math.ceil(frames / (self.steps * len(self.seen)))):
            self.learn(*self.collect())

    @torch.no_grad()
    def collect(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Observations, actions, their log probabilities, advantages and returns of a rollout, flat."""
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(self.steps):
            policy = torch.distributions.Categorical(logits=self.actor(self.seen))
            action, value = policy.sample(), self.critic(self.seen)[:, 0]
            following, reward, terminated, truncated, _ = self.envs.step(action.numpy())
            ended = torch.from_numpy(np.logical_or(terminated, truncated)).float()
            earned = torch.from_numpy(reward).float()
            rows.append((self.seen, action, policy.log_prob(action), value, earned, ended))
            self.seen = torch.from_numpy(following)
        seen, action, log_prob, value, earned, ended = (torch.stack(column) for column in zip(*rows))
        next_value, carried = self.critic(self.seen)[:, 0], torch.zeros(len(self.seen))
        advantage = torch.empty_like(value)
        for t in reversed(range(self.steps)):
            goes_on = 1 - ended[t]
            error = earned[t] + GAMMA * goes_on * next_value - value[t]
            advantage[t] = carried = error + GAMMA * TRACE * goes_on * carried
            next_value = value[t]
        columns = (seen, action, log_prob, advantage, advantage + value)
        return tuple(column.flatten(0, 1) for column in columns)  # type: ignore[return-value]

    def learn(self, seen: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> None:
        """Epochs of minibatches in random order."""
        for _ in range(self.epochs):
            for index in torch.randperm(len(seen)).split(self.minibatch):
                policy = torch.distributions.Categorical(logits=self.actor(seen[index]))
                ratio = (policy.log_prob(action[index]) - old[index]).exp()
                scaled = advantage[index]
                scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
                gain = torch.min(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
                error = (self.critic(seen[index])[:, 0] - target[index]).square().mean()
                self.optimizer.zero_grad()
                (0.5 * error - gain).backward()
                nn.utils.clip_grad_norm_(self.parameters, LIMIT)
                self.optimizer.step()


def reference_ppo(env_id: str, num_envs: int) -> Callable[[int], None]:
    """Trains for so many more steps, at its defaults."""
    return ReferencePPO(env_id, num_envs).train
