"""The loss of A2C, the advantage actor-critic (Mnih et al. 2016)."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from .base import Metrics
from .ppo import PolicyGradientLoss


class A2CLoss(PolicyGradientLoss):
    """``-A log pi(a | s)``, squared error of the value function, and an entropy bonus.

    Args:
        actor: observation (and action mask, if there is one) -> a distribution with ``log_prob`` and ``entropy``, or a
            ``ProbabilisticActor``.
        critic: observation -> value ``[..., 1]``, or a ``ValueOperator``.
        value_coefficient: weight of the value function's error.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantage: normalise advantages over each batch.
        evaluate: replaces the calls of both networks, for networks that share layers: batch -> distribution, values
            ``[...]``.

    ``forward`` returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` unless its coefficient is 0, and the
    metrics ``policy``, ``value`` and ``entropy``.
    """

    def objective(self, tensordict: TensorDictBase, distribution: Any, report: bool) -> tuple[Tensor, Metrics]:
        return -(self.advantage(tensordict) * self.log_prob(tensordict, distribution)).mean(), {}
