"""Conditional value at risk: acting by the mean of the worst returns, everywhere or near obstacles only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.agents import AdaptiveLevel, CVaR

from .interface import Interface


def check_level(level: CVaR, interface: Interface) -> None:
    """Raises a one-line :class:`ConfigError` if a level needs distances that the env does not tell."""
    if isinstance(level, AdaptiveLevel) and interface.nearest is None:
        raise ConfigError("agent.cvar: an adaptive level needs a world that tells the distance of the nearest obstacle")


def levels(cvar: CVaR, tau: Tensor, interface: Interface, observation: Any) -> Tensor:
    """Quantile levels ``[..., n]`` in (0, 1) squeezed into the worst part of the distribution.

    The mean over quantiles at ``c tau`` with tau uniform in (0, 1) is the conditional value at risk at level c.

    Args:
        observation: raw observation ``[...]``, whose obstacles an adaptive level looks at.
    """
    if not isinstance(cvar, AdaptiveLevel):
        return tau * cvar
    assert interface.nearest is not None
    nearest: Tensor = interface.nearest(observation)
    return tau * torch.clamp(nearest / cvar.distance, cvar.low, cvar.high).unsqueeze(-1)
