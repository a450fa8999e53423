"""The loss of IQN (Dabney et al. 2018b)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

from .base import Loss
from .quantile import QuantileLoss


class IQNLoss(QuantileLoss):
    """The loss of IQN: quantiles at levels that are drawn for each entry.

    Args:
        network: (observation, tau ``[..., n]``) -> quantiles ``[..., n, actions]``; or a ``TensorDictModule`` that
            reads the levels under ``tau`` and writes the quantiles under ``action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: the number of levels drawn for the prediction, and for the target.
        kappa: Huber threshold.
        double: the next action is the best according to the network, not its target.
        target_action: the next action has the best ``mean``; or ``per_quantile``, each quantile takes its own best.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        tau: NestedKey = "tau"

    default_keys = _AcceptedKeys

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, .)`` of all actions, ``[..., n, actions]``."""
        network = self.target_network if target else self.network
        out: Tensor = self.output(network, tensordict, self.tensor_keys.action_value, tau=tau)
        return out

    def draw_levels(self, like: Tensor) -> Tensor:
        """Draws uniform levels ``[..., n]`` for entries ``[..., 1]``."""
        return torch.rand((*like.shape[:-1], self.num_quantiles), dtype=like.dtype, device=like.device)
