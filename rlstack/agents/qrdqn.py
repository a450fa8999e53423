"""QR-DQN (Dabney et al. 2018a): DQN with quantiles of the return at fixed levels instead of its mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlstack.config.options import Levels, Positive
from rlstack.losses.quantile import QRDQNLoss
from rlstack.networks.quantile import FixedQuantileNetwork

from .iqn import CVaR, check_level, levels
from .off_policy import ValueBased, ValueBasedConfig


@dataclass
class QRDQNConfig(ValueBasedConfig):
    """The options of QR-DQN."""

    # targets
    double: bool = True  # the target's action is chosen by the online network
    num_quantiles: Levels = 32  # of each action's return, at evenly spaced levels
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    # acting
    cvar: CVaR = 1.0  # conditional value at risk: act by the mean of the worst fraction of returns; or, in worlds
    #   that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles


class QRDQN(ValueBased):
    """Quantile-regression deep Q-network."""

    Config = QRDQNConfig
    config: QRDQNConfig

    def make_network(self, actions: int) -> nn.Module:
        c = self.config
        check_level(c.cvar, self.interface)
        own, shape = self.own_network("network", c.num_quantiles, actions), (actions, c.num_quantiles)
        return own or FixedQuantileNetwork(self.encoder(), *shape, c.hidden, c.activation, c.layer_norm)

    def make_loss(self) -> QRDQNLoss:
        c = self.config
        return QRDQNLoss(self.network, c.gamma, c.num_quantiles, c.kappa, c.double)

    def action_values(self, observation: Any) -> Tensor:
        """Returns the conditional value at risk of every action, ``[..., N]``."""
        quantiles, cvar = self.network(self.normalized(observation)), self.config.cvar
        if cvar == 1.0:
            return quantiles.mean(-2)
        level = levels(cvar, quantiles.new_ones(1), self.interface, observation)
        return worst_mean(quantiles, level)

    def values_as_logits(self, observation: Any) -> Tensor:
        """Returns the means over all quantiles."""
        return self.network(observation).mean(-2)


def worst_mean(quantiles: Tensor, level: Tensor) -> Tensor:
    """Returns the mean ``[..., N]`` of the worst part of the returns, given equally likely quantiles ``[..., n, N]``.

    Args:
        level: the size of that part in (0, 1], ``[..., 1]``; a quantile that lies only partly in it counts in part.
    """
    n = quantiles.shape[-2]
    share = (level * n - torch.arange(n, dtype=quantiles.dtype, device=quantiles.device)).clamp(0, 1)
    weight = (share / share.sum(-1, keepdim=True)).unsqueeze(-1)
    return (quantiles.sort(-2).values * weight).sum(-2)
