"""Quantile regression of return distributions (Dabney et al. 2018a, 2018b)."""

from __future__ import annotations

from typing import Literal

import torch
from tensordict import TensorDictBase, TensorDictParams
from torch import Tensor, nn

from rlstack.networks.distributions import legal

from .base import Loss, Metrics, required


def quantile_huber_loss(prediction: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Computes the quantile Huber loss of each batch entry (Dabney et al. 2018b, eq. 3).

    Args:
        prediction: quantiles ``[..., n]`` at levels ``tau`` (``[..., n]``, or of fewer dimensions if shared).
        target: samples or quantiles of the target distribution ``[..., m]``.
        kappa: Huber threshold.

    Returns ``[...]``: the sum over predicted quantiles of the mean over targets.

    Raises:
        ValueError: the entries of target and prediction differ in shape, apart from leading dimensions that only the
            prediction has.
    """
    entries = target.shape[:-1]
    if prediction.shape[max(prediction.dim() - target.dim(), 0) : -1] != entries:
        told = f"the quantiles {tuple(prediction.shape)}"
        raise ValueError(f"the target has the shape {tuple(target.shape)}, {told}; all but the last must agree")
    error = target.unsqueeze(-2) - prediction.unsqueeze(-1)  # [..., n, m]
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error * error, kappa * (size - 0.5 * kappa))
    weight = (tau.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber).mean(-1).sum(-1) / kappa


class QuantileLoss(Loss):
    """The base class of QR-DQN and IQN: quantile Huber loss of ``Z_tau(s, a)`` to ``r + gamma Zbar_tau'(s', a')``."""

    network_params: TensorDictParams
    target_network_params: TensorDictParams

    def __init__(
        self,
        network: nn.Module,
        gamma: float = 0.99,
        num_quantiles: int = 8,
        kappa: float = 1.0,
        double: bool = False,
        target_action: Literal["mean", "per_quantile"] = "mean",
    ) -> None:
        super().__init__(gamma)
        self.add_network("network", network, target=True)
        self.num_quantiles, self.kappa = num_quantiles, kappa
        self.double_targets, self.target_action = double, target_action

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, .)`` of all actions, ``[..., quantiles, actions]``."""
        raise NotImplementedError

    def draw_levels(self, like: Tensor) -> Tensor:
        """Returns levels ``[..., quantiles]`` for entries ``[..., 1]``."""
        raise NotImplementedError

    @torch.no_grad()
    def target_quantiles(self, tensordict: TensorDictBase, tau: Tensor) -> Tensor:
        """Returns samples of the target distribution, ``[..., quantiles]``."""
        following = required(tensordict, "next")
        quantiles = self.quantiles(following, tau, target=True)
        if self.target_action == "per_quantile":
            mask = following.get(self.tensor_keys.action_mask, None)
            if mask is not None:
                quantiles = quantiles.masked_fill(~legal(mask).unsqueeze(-2), -torch.inf)
            return self.bootstrapped(tensordict, quantiles.amax(-1))
        chooser = self.quantiles(following, tau) if self.double_targets else quantiles
        return self.bootstrapped(tensordict, _of_action(quantiles, self.greedy(chooser.mean(-2), following)))

    def critic_loss(
        self, tensordict: TensorDictBase, tau: Tensor | None = None, tau_target: Tensor | None = None
    ) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics; levels not given are drawn, the target's first."""
        reward = required(required(tensordict, "next"), self.tensor_keys.reward)
        target = self.target_quantiles(tensordict, self.draw_levels(reward) if tau_target is None else tau_target)
        tau = self.draw_levels(reward) if tau is None else tau
        quantiles = self.quantiles(tensordict, tau)
        value = _of_action(quantiles, self.chosen(tensordict, quantiles.shape[-1]))
        errors = quantile_huber_loss(value, target, tau, self.kappa)
        return self.distributional(errors, value, target, tensordict)


def _of_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """Picks from ``[..., n, actions]`` the quantiles of the actions ``[..., 1]``: ``[..., n]``."""
    index = action.unsqueeze(-2).expand(*quantiles.shape[:-1], 1)
    return quantiles.gather(-1, index).squeeze(-1)
