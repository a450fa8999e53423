"""Advantages of sequences: generalised ones (Schulman et al. 2016), and V-trace's (Espeholt et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)

LONG = 64
"""Sequences up to this length are quicker through a plain loop than through TorchRL's vectorised estimate."""


def estimate(
    gamma: float, gae_lambda: float, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> tuple[Tensor, Tensor]:
    """Generalised advantages (Schulman et al. 2016) and returns of sequences, ``[B, T, 1]`` as all tensors."""
    function = vec_generalized_advantage_estimate if value.shape[1] > LONG else generalized_advantage_estimate
    return function(gamma, gae_lambda, value, next_value, reward, done=done, terminated=terminated)


def vtrace(
    gamma: float,
    trace_lambda: float,
    rho_clip: float,
    c_clip: float,
    log_ratio: Tensor,
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    *,
    weighted: bool = True,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of sequences that an older policy has gathered, ``[B, T, 1]`` as all tensors.

    V-trace (Espeholt et al. 2018, eq. 1 and section 4.2) with ``rho = min(rho_clip, pi / mu)`` and
    ``c = lambda min(c_clip, pi / mu)`` (remark 2 there). The advantage is ``rho (r + gamma v' - V)``. With ``pi = mu``
    and ``lambda = 1`` both are those of :func:`estimate`.

    Args:
        gamma: discount.
        trace_lambda: decay of the traces.
        rho_clip, c_clip: bounds of the ratio, where it weights an error and where it carries back later ones.
        log_ratio: ``log pi(a | s) - log mu(a | s)`` of the present policy and the one that acted.
        value, next_value: of each state and of the true one that follows it.
        reward, done, terminated: of each step; steps after ``done`` do not count.
        weighted: False leaves ``rho`` out of the advantage, for a loss that contains the ratio itself, as PPO's does.
    """
    # TorchRL's has no lambda: its bound of c, which may differ from step to step, takes it in.
    bound = trace_lambda * log_ratio.exp().clamp_max(c_clip)
    still = torch.zeros_like(log_ratio)
    ends = {"done": done, "terminated": terminated, "rho_thresh": rho_clip, "c_thresh": bound}
    advantage, target = vtrace_advantage_estimate(gamma, log_ratio, still, value, next_value, reward, **ends)
    if not weighted:
        later = torch.where(done, next_value, torch.cat((target[:, 1:], next_value[:, -1:]), 1))
        advantage = torch.where(terminated, reward, reward + gamma * later) - value
    return advantage, target


def normalized(advantage: Tensor) -> Tensor:
    """Zero mean and unit standard deviation over the batch; one alone stays as it is."""
    if advantage.numel() < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)
