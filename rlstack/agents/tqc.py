"""TQC, truncated quantile critics (Kuznetsov et al. 2020): SAC on return distributions without their best part.

On the same batch the losses equal those of TorchRL's ``TQCLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from rlstack.config.options import Levels, Positive, Whole
from rlstack.config.typed import Interval
from rlstack.losses.quantile import TQCLoss

from .recurrent import RECURRENT, RecurrentActorCritic
from .sac import SAC, SACConfig


@dataclass
class TQCConfig(SACConfig):
    """The options of TQC: those of SAC with continuous actions."""

    # networks
    num_critics: Annotated[int, Interval(low=1, high=100)] = 5

    # targets
    num_quantiles: Levels = 25  # quantiles that each critic predicts
    drop: Whole = 2  # number of largest quantiles left out per critic: more makes values more cautious
    kappa: Positive = 1.0  # Huber threshold of the quantile loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_norm != "none":
            raise ValueError("critic_norm is for ddpg, td3 and sac, give none")
        if self.critic != "scalar":
            raise ValueError("critic=categorical is for sac, tqc has critics of its own, give scalar")
        if self.drop >= self.num_quantiles:
            raise ValueError(f"drop {self.drop} leaves none of the {self.num_quantiles} num_quantiles")


class TQC(SAC):
    """Soft actor-critic with truncated quantile critics."""

    Config = TQCConfig
    ACTIONS: tuple[str, ...] = ("vector",)
    config: TQCConfig

    def build(self) -> None:
        self.CRITICS = tuple(f"critic_{k + 1}" for k in range(self.config.num_critics))
        super().build()

    def new_critic(self) -> nn.Module:
        return self.continuous_critic(self.config.num_quantiles)

    def make_loss(self) -> TQCLoss:
        return TQCLoss(self.actor, self.critics, drop=self.config.drop, kappa=self.config.kappa, **self.loss_options())


class RecurrentTQC(RecurrentActorCritic, TQC):
    """TQC with recurrent cores."""


RECURRENT[TQC] = RecurrentTQC
