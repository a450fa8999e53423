"""The loss of QR-DQN (Dabney et al. 2018a)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .quantile import QuantileLoss


class QRDQNLoss(QuantileLoss):
    """The loss of QR-DQN: quantiles at fixed, evenly spaced levels.

    Args:
        network: observation -> quantiles ``[..., quantiles, actions]``, or a ``TensorDictModule`` that leaves them
            under ``action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: number that the network returns.
        kappa: Huber threshold.
        double: the next action is the best by the network, not by its target.
        target_action: the next action is the best by its ``mean``; or ``per_quantile``, each quantile's own best.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """``Z(s, .)`` of all actions, ``[..., quantiles, actions]``; the levels are those of the network."""
        network = self.target_network if target else self.network
        out: Tensor = self.output(network, tensordict, self.tensor_keys.action_value)
        return out

    def draw_levels(self, like: Tensor) -> Tensor:
        """The midpoints of ``n`` equal parts of (0, 1), ``[n]``."""
        n = self.num_quantiles
        return (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5) / n
