"""TQC, truncated quantile critics (Kuznetsov et al. 2020): SAC on return distributions without their best part.

On the same batch the losses equal those of TorchRL's ``TQCLoss``.
"""

from __future__ import annotations

from torch import nn

from rlstack.config.agents import TQCConfig
from rlstack.losses import TQCLoss
from rlstack.networks.values import ActionValue

from .interface import Interface, require_continuous
from .sac import SAC


class TQC(SAC):
    """Soft actor-critic with truncated quantile critics."""

    Config = TQCConfig
    config: TQCConfig

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_continuous("tqc", interface)

    def build(self) -> None:
        self.CRITICS = tuple(f"critic_{k + 1}" for k in range(self.config.num_critics))
        super().build()

    def _new_critic(self) -> nn.Module:
        c, size = self.config, self.interface.action.shape[-1]
        own = self.own_network("critic", c.num_quantiles, actions=size)
        common = (size, c.hidden, c.activation, c.layer_norm, c.join, c.num_quantiles)
        return own or ActionValue(self.encoder("critic"), *common)

    def make_loss(self) -> TQCLoss:
        return TQCLoss(self.actor, self.critics, drop=self.config.drop, kappa=self.config.kappa, **self.loss_options())
