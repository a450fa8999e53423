"""Advantages of sequences: generalised ones (Schulman et al. 2016) and those of V-trace (Espeholt et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)

LONG = 64
"""Sequences up to this length are faster with a plain loop than with TorchRL's vectorised estimate."""
_LEAST = 0.3
"""With a smaller trace ``gamma * lambda`` the vectorised estimate leaves out terms, and without one it fails."""


def estimate(
    gamma: float, gae_lambda: float, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns generalised advantages (Schulman et al. 2016) and returns; all tensors are ``[B, T, 1]``."""
    long = value.shape[1] > LONG and gamma * gae_lambda > _LEAST
    function = vec_generalized_advantage_estimate if long else generalized_advantage_estimate
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
    """Returns advantages and value targets of data that an older policy gathered; all tensors are ``[B, T, 1]``.

    V-trace (Espeholt et al. 2018, eq. 1 and section 4.2) with ``rho = min(rho_clip, pi / mu)`` and
    ``c = lambda min(c_clip, pi / mu)`` (remark 2 there). The advantage is ``rho (r + gamma v' - V)``. With ``pi = mu``
    and ``lambda = 1`` both are those of :func:`estimate`.

    Args:
        gamma: discount.
        trace_lambda: decay of the traces.
        rho_clip, c_clip: bounds of the ratio as the weight of an error and as the weight of later errors.
        log_ratio: ``log pi(a | s) - log mu(a | s)``, with the present policy pi and the acting policy mu.
        value, next_value: values of each state and of the true next state.
        reward, done, terminated: those of each step; steps after ``done`` do not count.
        weighted: False leaves ``rho`` out of the advantage, for a loss that contains the ratio itself, as PPO's does.
    """
    # TorchRL's function has no lambda, so it goes into the bound of c, which may differ from step to step.
    bound = trace_lambda * log_ratio.exp().clamp_max(c_clip)
    still = torch.zeros_like(log_ratio)
    ends = {"done": done, "terminated": terminated, "rho_thresh": still.new_full((), rho_clip), "c_thresh": bound}
    advantage, target = vtrace_advantage_estimate(gamma, log_ratio, still, value, next_value, reward, **ends)
    if not weighted:
        later = torch.where(done, next_value, torch.cat((target[:, 1:], next_value[:, -1:]), 1))
        advantage = torch.where(terminated, reward, reward + gamma * later) - value
    return advantage, target


def normalized(advantage: Tensor) -> Tensor:
    """Returns advantages with zero mean and unit standard deviation over the batch; a single one is unchanged."""
    if advantage.numel() < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)
