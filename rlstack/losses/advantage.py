"""Generalised advantage estimation (Schulman et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

LONG = 64
"""Sequences up to this length are quicker through a plain loop than through TorchRL's vectorised estimate."""


def estimate(
    gamma: float, gae_lambda: float, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantages (Schulman et al. 2016) and returns of sequences, ``[B, T, 1]`` as all tensors."""
    function = vec_generalized_advantage_estimate if value.shape[1] > LONG else generalized_advantage_estimate
    return function(gamma, gae_lambda, value, next_value, reward, done=done, terminated=terminated)


def normalized(advantage: Tensor) -> Tensor:
    """Zero mean and unit standard deviation over the batch; one alone stays as it is."""
    if advantage.numel() < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)
