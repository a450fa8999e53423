"""IQN: implicit quantile networks (Dabney et al. 2018), with acting at a risk level.

``agent=iqn`` is our recipe, ``agent=iqn_published`` that of MarineNav's IQN, whose recorded updates the tests repeat.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import cross_entropy

from rlstack.config.agents import IQNConfig
from rlstack.losses import IQNLoss
from rlstack.networks.distributions import masked_logits
from rlstack.networks.quantile import QuantileNetwork

from .interface import Interface, require_choices
from .off_policy import OffPolicy, greedy
from .risk import check_level, levels


class IQN(OffPolicy):
    """Implicit quantile network."""

    Config = IQNConfig

    def __init__(self, config: IQNConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, (actions,) = config, interface.choices or (0,)
        check_level(c.cvar, interface)
        network = QuantileNetwork(self.encoder(), actions, c.hidden, c.activation)
        self.network = self.add_network("network", network)
        self.loss = IQNLoss(self.network, c.gamma, c.num_quantiles, c.kappa, c.double, c.target_action)
        self.add_target("network", self.loss.target_network, c.target_tau)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm)

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_choices("iqn", interface)

    # -- acting --------------------------------------------------------------------------------------------------

    def act_values(self, observation: Any) -> Tensor:
        """Conditional value at risk of every action, ``[..., N]``."""
        n, lead = self.config.act_quantiles, self.interface.lead(observation)
        dtype = self.interface.dtype
        if self.config.act_levels == "random":
            tau = torch.rand((*lead, n), dtype=dtype, device=self.device)
        else:
            tau = ((torch.arange(n, dtype=dtype, device=self.device) + 0.5) / n).expand(*lead, n)
        tau = levels(self.config.cvar, tau, self.interface, observation)
        return self.network(self.normalized(observation), tau).mean(-2)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return greedy(self.act_values(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.epsilon_greedy(lambda: self.exploit(observation, mask), observation, mask)

    # -- learning ------------------------------------------------------------------------------------------------

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
        """Cross entropy of the choice, mean quantiles taken as logits."""
        tau = torch.rand(len(action), self.config.num_quantiles, dtype=self.interface.dtype, device=self.device)
        values = self.network(observation, tau).mean(-2)
        return cross_entropy(masked_logits(values, mask), action)
