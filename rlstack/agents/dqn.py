"""DQN (Mnih et al. 2015), with double targets (van Hasselt et al. 2016) and dueling streams (Wang et al. 2016).

``agent=dqn`` is our recipe, ``agent=dqn_published`` that of MarineNav's DQN, whose recorded updates the tests repeat;
on the same batch the loss equals that of TorchRL's ``DQNLoss``.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstack.config.agents import DQNConfig
from rlstack.losses import DQNLoss
from rlstack.networks.distributions import masked_logits
from rlstack.networks.values import DuelingNetwork, StateNetwork

from .interface import Interface, require_choices
from .off_policy import OffPolicy, greedy


class DQN(OffPolicy):
    """Deep Q-network."""

    Config = DQNConfig

    def __init__(self, config: DQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, (actions,) = config, interface.choices or (0,)
        network: Any = DuelingNetwork if c.dueling else StateNetwork
        network = network(self.encoder(), actions, c.hidden, activation=c.activation)
        self.network = self.add_network("network", network)
        self.loss = DQNLoss(self.network, c.gamma, c.double)
        self.add_target("network", self.loss.target_network, c.target_tau)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_choices("dqn", interface)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return greedy(self.network(self.normalized(observation)), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.epsilon_greedy(lambda: self.exploit(observation, mask), observation, mask)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        loss, norm, info = self.optimizer.minimize(self.objective, batch)
        self.reprioritize(batch, info)
        return {
            "loss/critic": loss,
            "grad/critic": norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
        }

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choice, Q-values taken as logits."""
        values = self.network(observation)
        return cross_entropy(masked_logits(values, mask), action)
