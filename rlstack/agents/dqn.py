"""DQN (Mnih et al. 2015), with double targets (van Hasselt et al. 2016) and dueling streams (Wang et al. 2016).

``agent=dqn`` is our recipe, ``agent=dqn_published`` that of MarineNav's DQN, whose recorded updates the tests repeat;
on the same batch the loss equals that of TorchRL's ``DQNLoss``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlstack.config.agents import DQNConfig
from rlstack.losses import DQNLoss
from rlstack.networks.values import DuelingNetwork, StateNetwork

from .off_policy import ValueBased


class DQN(ValueBased):
    """Deep Q-network."""

    Config = DQNConfig
    config: DQNConfig

    def build(self) -> None:
        c, (actions,) = self.config, self.interface.choices or (0,)
        network: Any = DuelingNetwork if c.dueling else StateNetwork
        self.network = self.add_network("network", network(self.encoder(), actions, c.hidden, activation=c.activation))
        self.loss = self.make_loss()
        self.add_target("network", self.loss.target_network, c.target_tau)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    def make_loss(self) -> DQNLoss:
        """The loss, in which variants of DQN differ and in little else."""
        return DQNLoss(self.network, self.config.gamma, self.config.double)

    def action_values(self, observation: Any) -> Tensor:
        values: Tensor = self.network(self.normalized(observation))
        return values
