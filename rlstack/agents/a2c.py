"""A2C: the synchronous advantage actor-critic (Mnih et al. 2016).

On the same batch the loss equals that of TorchRL's ``A2CLoss``.
"""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import mse_loss

from rlstack.config.agents import A2CConfig

from .on_policy import OnPolicy
from .optimizer import Info


class A2C(OnPolicy):
    """Advantage actor-critic: one step on all fresh data."""

    Config = A2CConfig
    OPTIMIZER = "rmsprop"

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        if not len(batch):
            return {}
        loss, norm, info = self.step(batch)
        return {
            "loss/total": loss,
            "loss/policy": info["policy"],
            "loss/value": info["value"],
            "grad/all": norm,
            "policy/entropy": info["entropy"],
        }

    def loss(self, batch: TensorDictBase, report: bool = True) -> tuple[Tensor, Info]:
        """-A log pi(a | s) + value loss - entropy bonus."""
        distribution, values = self.policy_and_value(batch)
        policy = -(batch.get("advantage") * distribution.log_prob(batch.get("action"))).mean()
        value = mse_loss(values, batch.get("return"))
        entropy = distribution.entropy().mean()
        loss = policy + self.config.value_coefficient * value - self.now("entropy_coefficient") * entropy
        return loss, {"policy": policy.detach(), "value": value.detach(), "entropy": entropy.detach()}
