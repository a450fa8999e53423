"""The loss of QR-DQN (Dabney et al. 2018a)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .quantile import QuantileLoss


class QRDQNLoss(QuantileLoss):
    """The loss of QR-DQN: quantiles at fixed, evenly spaced levels.

    Args:
        network: observation -> quantiles ``[..., quantiles, actions]``, or a ``TensorDictModule`` that writes them
            under ``action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: the number of quantiles that the network returns.
        kappa: Huber threshold.
        double: the next action is the best according to the network, not its target.
        target_action: the next action has the best ``mean``; or ``per_quantile``, each quantile takes its own best.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z(s, .)`` of all actions, ``[..., quantiles, actions]``, at the network's fixed levels."""
        network = self.target_network if target else self.network
        out: Tensor = self.output(network, tensordict, self.tensor_keys.action_value)
        if out.shape[-2] != self.num_quantiles:
            raise ValueError(f"num_quantiles is {self.num_quantiles}, the network returns {out.shape[-2]} per action")
        return out

    def draw_levels(self, like: Tensor) -> Tensor:
        """Returns the midpoints ``[n]`` of ``n`` equal parts of (0, 1)."""
        n = self.num_quantiles
        return (torch.arange(n, dtype=like.dtype, device=like.device) + 0.5) / n
