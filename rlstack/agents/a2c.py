"""A2C: the synchronous advantage actor-critic (Mnih et al. 2016).

On the same batch the loss equals that of TorchRL's ``A2CLoss``.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.agents import A2CConfig
from rlstack.losses import A2CLoss

from .on_policy import OnPolicy


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
        return {
            "loss/total": loss,
            "loss/policy": info["policy"],
            "loss/value": info["value"],
            "grad/all": norm,
            "policy/entropy": info["entropy"],
        }
