"""DQN (Mnih et al. 2015), with double targets (van Hasselt et al. 2016) and dueling streams (Wang et al. 2016).

``agent=dqn`` is our recipe, ``agent=dqn_published`` that of MarineNav's DQN, whose recorded updates the tests repeat;
on the same batch the loss equals that of TorchRL's ``DQNLoss``.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import cross_entropy, smooth_l1_loss

from rlstack.config.agents import DQNConfig
from rlstack.networks.distributions import masked_logits
from rlstack.networks.values import DuelingNetwork, StateNetwork

from .interface import Interface, require_choices
from .off_policy import OffPolicy, greedy, next_mask
from .optimizer import Info


class DQN(OffPolicy):
    """Deep Q-network."""

    Config = DQNConfig

    def __init__(self, config: DQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, (actions,) = config, interface.choices or (0,)
        network: Any = DuelingNetwork if c.dueling else StateNetwork
        network = network(self.encoder(), actions, c.hidden, activation=c.activation)
        self.network = self.add_network("network", network, c.target_tau)
        self.target = self.targets["network"].network
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_choices("dqn", interface)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return greedy(self.network(self.normalized(observation)), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.epsilon_greedy(lambda: self.exploit(observation, mask), observation, mask)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        loss, norm, info = self.optimizer.minimize(self.loss, batch)
        return {
            "loss/critic": loss,
            "grad/critic": norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
        }

    def loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Huber loss of Q(s, a) to r + gamma max_a' Qbar(s', a'); double: at the action that Q prefers."""
        target = self.value_target(batch)
        value = self.network(batch.get("observation")).gather(-1, batch.get("action").unsqueeze(-1))
        return smooth_l1_loss(value, target), {"value": value.detach().mean(), "target": target.mean()}

    @torch.no_grad()
    def value_target(self, batch: TensorDictBase) -> Tensor:
        """``[N, 1]``."""
        following, mask = batch.get("next"), next_mask(batch)
        observation = following.get("observation")
        values = self.target(observation)
        chooser = self.network(observation) if self.config.double else values
        best = values.gather(-1, greedy(chooser, mask).unsqueeze(-1))
        return self.bootstrapped(batch, best)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choice, Q-values taken as logits."""
        values = self.network(observation)
        return cross_entropy(masked_logits(values, mask), action)
