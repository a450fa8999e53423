"""A2C: the synchronous advantage actor-critic (Mnih et al. 2016).

On the same batch the loss equals that of TorchRL's ``A2CLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.options import Count, Fraction, LearningRate
from rlstack.losses.ppo import A2CLoss

from .on_policy import OnPolicy, OnPolicyConfig


@dataclass
class A2CConfig(OnPolicyConfig):
    """The options of A2C: RMSprop (smoothing 0.99), one step on all the fresh data."""

    steps_per_batch: Count = 5
    gae_lambda: Fraction = 1.0
    normalize_advantage: bool = False
    lr: LearningRate = 7.0e-4


class A2C(OnPolicy):
    """Advantage actor-critic: one gradient step on all the fresh data."""

    Config = A2CConfig
    OPTIMIZER = "rmsprop"

    def make_loss(self, **options: Any) -> A2CLoss:
        return A2CLoss(self.actor, self.critic, **options)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        if not self.least(len(batch)):
            return {}
        loss, norm, info = self.optimizer.minimize(self.objective, self.for_step(batch))
        self.updates += 1
        return self.metrics(loss, norm, info)
