"""Munchausen-DQN (Vieillard et al. 2020): DQN whose reward is topped up by the log-probability of the action taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.agents.dqn import DQN, DQNConfig
from rlstack.config.options import Fraction, Positive
from rlstack.losses.dqn import DQNLoss


@dataclass
class MunchausenConfig(DQNConfig):
    """The options of DQN and three more."""

    # targets
    alpha: Fraction = 0.9  # weight of the log-probability in the reward
    temperature: Positive = 0.03  # of the soft policy
    lowest: float = -1.0  # the log-probability is clipped here


class MunchausenLoss(DQNLoss):
    """Huber loss to ``r + alpha clip(t log pi(a | s)) + gamma E_pi[Qbar(s', a') - t log pi(a' | s')]``."""

    def __init__(self, network: Any, config: MunchausenConfig) -> None:
        super().__init__(network, config.gamma)
        self.config = config

    @torch.no_grad()
    def target_value(self, tensordict: TensorDictBase) -> Tensor:
        c, here = self.config, self.values(tensordict, target=True)
        then = self.values(tensordict.get("next"), target=True)
        log_policy = (here / c.temperature).log_softmax(-1).gather(-1, self.chosen(tensordict, here.shape[-1]))
        log_next = (then / c.temperature).log_softmax(-1)
        soft = (log_next.exp() * (then - c.temperature * log_next)).sum(-1, keepdim=True)
        return self.bootstrapped(tensordict, soft) + c.alpha * (c.temperature * log_policy).clamp(c.lowest, 0)


class MunchausenDQN(DQN):
    """DQN with Munchausen's loss."""

    Config = MunchausenConfig
    config: MunchausenConfig

    def make_loss(self) -> DQNLoss:
        return MunchausenLoss(self.network, self.config)
