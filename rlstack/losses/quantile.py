"""Quantile regression of return distributions."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_huber_loss(prediction: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss of each batch entry (Dabney et al. 2018, eq. 3).

    Args:
        prediction: quantiles ``[B, n]`` at levels ``tau`` (``[B, n]`` or ``[1, n]``).
        target: samples or quantiles of the target distribution ``[B, m]``.
        kappa: Huber threshold.

    Returns ``[B]``: the sum over predicted quantiles of the mean over targets.
    """
    error = target.unsqueeze(-2) - prediction.unsqueeze(-1)  # [B, n, m]
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error * error, kappa * (size - 0.5 * kappa))
    weight = (tau.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber).mean(-1).sum(-1) / kappa
