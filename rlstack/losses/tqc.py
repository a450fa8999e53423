"""The loss of TQC (Kuznetsov et al. 2020, arXiv 2005.04269): that of SAC on truncated mixtures of quantile critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from .base import Metrics, required
from .quantile import quantile_huber_loss
from .sac import SACLoss


class TQCLoss(SACLoss):
    """Quantile Huber losses of all critics to ``r + gamma (z' - alpha log pi(a' | s'))``.

    ``z'`` are the pooled quantiles of all target critics without the largest ones; leaving these out keeps values from
    being overestimated. The actor's loss is ``alpha log pi(a | s)`` minus the mean of all quantiles.

    Args:
        actor: see :class:`SACLoss`.
        critics: any number of (observation, action) -> quantiles ``[..., n]`` at the midpoints of n equal parts of
            (0, 1); or ``TensorDictModule``s that write them under ``state_action_value``.
        drop: number of quantiles left out per critic.
        kappa: Huber threshold.
        options: see :class:`SACLoss`; ``joint`` is not among them.

    ``forward`` returns ``loss_critic``, ``loss_actor``, ``loss_alpha``, ``entropy``, ``alpha``, and the means ``value``
    and ``target``.
    """

    TWO_CRITICS = JOINT = False
    RESULTS = ["loss_critic", "loss_actor", "loss_alpha", "entropy", "alpha", "value", "target"]

    def __init__(
        self, actor: nn.Module, critics: Sequence[nn.Module], *, drop: int = 2, kappa: float = 1.0, **options: Any
    ) -> None:
        super().__init__(actor, critics, **options)
        self.drop, self.kappa = drop, kappa

    def quantiles(self, critics: Any, tensordict: TensorDictBase, action: Tensor) -> list[Tensor]:
        """Returns ``Z(s, a) [..., n]`` of each critic."""
        return self.values_of_all(critics, tensordict, action)

    def soft_value(self, following: TensorDictBase) -> Tensor:
        """Returns the quantiles of the next state's value that are kept, ``[..., k]``, in ascending order."""
        action, log_prob = self.action_and_log_prob(following, self.target_actor_acts)
        quantiles = torch.cat(self.quantiles(self.target_critics, following, action), -1).sort(-1).values
        if (count := quantiles.shape[-1] - self.drop * len(self.critics)) < 1:
            raise ValueError(f"drop: {self.drop} quantiles left out per critic leave none of {quantiles.shape[-1]}")
        kept = quantiles[..., :count]
        return kept - self.temperature() * log_prob

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the sum over the critics of the mean over their quantiles, and its metrics."""
        target = self.target_value(tensordict)
        predicted = torch.stack(self.quantiles(self.critics, tensordict, required(tensordict, self.tensor_keys.action)))
        n = predicted.shape[-1]
        tau = (torch.arange(n, dtype=predicted.dtype, device=predicted.device) + 0.5) / n
        errors = quantile_huber_loss(predicted, target, tau, self.kappa).sum(0) / n
        return self.distributional(errors, predicted, target, tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critics, and the policy's ``entropy``."""
        action, log_prob = self.action_and_log_prob(tensordict)
        value = torch.stack(self.quantiles(self.critics, tensordict, action)).mean()
        return (self.temperature().detach() * log_prob).mean() - value, {"entropy": -log_prob.detach().mean()}
