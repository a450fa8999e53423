"""IQN: implicit quantile networks (Dabney et al. 2018) that act at a risk level.

``agent=iqn`` is our recipe, ``agent=iqn_published`` that of MarineNav's IQN, whose recorded updates the tests
reproduce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.options import Level, Levels, Positive
from rlstack.losses.quantile import IQNLoss
from rlstack.networks.quantile import QuantileNetwork, midpoints

from .interface import Interface
from .off_policy import ReplayedConfig, ValueBased, ValueBasedConfig


@dataclass
class IQNConfig(ValueBasedConfig):
    """The options of IQN."""

    # networks
    recurrent: ReplayedConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32, burn_in: 0}, or kind: gru

    # targets
    target_action: Literal["mean", "per_quantile"] = "mean"  # mean: the action with the best mean;
    #   per_quantile: the best for each quantile separately
    double: bool = True  # target_action=mean: chosen by the online network
    num_quantiles: Levels = 8
    #   levels drawn per update, for prediction and target
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    # acting
    act_quantiles: Levels = 32  # levels over which an action's value is averaged
    act_levels: Literal["midpoints", "random"] = "midpoints"
    #   midpoints: evenly spaced; random: drawn for every decision
    cvar: CVaR = 1.0  # conditional value at risk: act by the mean of the worst fraction of returns; or, in worlds
    #   that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles


@dataclass(frozen=True)
class AdaptiveLevel:
    """A level of risk that falls with the distance d to the nearest obstacle: ``clip(d / distance, low, high)``.

    Source: the adaptive IQN of arXiv 2307.16240.

    Attributes:
        distance: distance of an obstacle at which the level reaches ``high``, in the world's units.
        low, high: bounds of the level.
    """

    distance: Positive
    low: Level = 0.1
    high: Level = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


CVaR: TypeAlias = Level | AdaptiveLevel


class IQN(ValueBased):
    """Implicit quantile network."""

    Config = IQNConfig
    config: IQNConfig

    def make_network(self, actions: int) -> QuantileNetwork:
        c = self.config
        check_level(c.cvar, self.interface)
        return QuantileNetwork(self.encoder(), actions, c.hidden, c.activation, c.layer_norm)

    def make_loss(self) -> IQNLoss:
        c = self.config
        return IQNLoss(self.network, c.gamma, c.num_quantiles, c.kappa, c.double, c.target_action)

    def action_values(self, observation: Any) -> Tensor:
        """Returns the conditional value at risk of every action, ``[..., N]``."""
        n, lead = self.config.act_quantiles, self.interface.lead(observation)
        like = next(self.network.parameters())  # whose dtype in a policy may have been changed
        if self.config.act_levels == "random":
            tau = torch.rand((*lead, n), dtype=like.dtype, device=self.device)
        else:
            tau = midpoints(n, like).expand(*lead, n)
        tau = levels(self.config.cvar, tau, self.interface, observation)
        return self.network(self.normalized(observation), tau).mean(-2)

    def values_as_logits(self, observation: Any) -> Tensor:
        """Returns mean values over random quantile levels."""
        tau = torch.rand(len(observation), self.config.num_quantiles, dtype=self.interface.dtype, device=self.device)
        return self.network(observation, tau).mean(-2)


# -- risk --------------------------------------------------------------------------------------------------------


def check_level(level: CVaR, interface: Interface) -> None:
    """Raises a one-line :class:`ConfigError` if a level needs distances that the env does not provide."""
    if isinstance(level, AdaptiveLevel) and interface.nearest is None:
        raise ConfigError(
            "agent.cvar: an adaptive level needs a world that reports the distance of the nearest obstacle"
        )


def levels(cvar: CVaR, tau: Tensor, interface: Interface, observation: Any) -> Tensor:
    """Scales quantile levels ``[..., n]`` in (0, 1) to the worst part of the distribution.

    The mean over quantiles at ``c tau`` with tau uniform in (0, 1) is the conditional value at risk at level c.

    Args:
        observation: raw observation ``[...]``, whose nearest obstacle sets an adaptive level.
    """
    if not isinstance(cvar, AdaptiveLevel):
        return tau * cvar
    assert interface.nearest is not None
    return tau * torch.clamp(interface.nearest(observation) / cvar.distance, cvar.low, cvar.high).unsqueeze(-1)
