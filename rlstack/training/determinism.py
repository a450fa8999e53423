"""Whether a GPU takes only algorithms that give the same bits every time (option ``deterministic``).

On a CPU the order of sums does not depend on chance, so nothing is set there. ``auto`` is on unless a network
convolves: the deterministic convolutions of cuDNN may be much slower than the fastest ones, while other networks only
need a few kernels more wherever rows are written or summed at indices.
"""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import nn

from rlstack.agents import Agent

Wanted = bool | Literal["auto"]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def prepare(wanted: Wanted) -> None:
    """Sets the workspace of cuBLAS, which is read when CUDA starts, unless the user has."""
    if wanted is not False:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def decided(wanted: Wanted, agent: Agent) -> bool | None:
    """Returns the option with ``auto`` resolved for an agent; None on a CPU."""
    if agent.device.type != "cuda":
        return None
    modules = (module for network in agent.networks.values() for module in network.modules())
    return wanted if wanted != "auto" else not any(isinstance(module, _CONVOLUTIONS) for module in modules)


def explained(wanted: Wanted, agent: Agent) -> str | None:
    """Returns the same in words, with the reason."""
    if (taken := decided(wanted, agent)) is None:
        return None
    why = f" (auto: {'no network convolves' if taken else 'deterministic convolutions are slow'})"
    return ("yes" if taken else "no") + (why if wanted == "auto" else "")


def apply(wanted: Wanted, agent: Agent) -> None:
    """Lets torch take deterministic algorithms on a GPU.

    An operation without one then raises a ``RuntimeError`` that names it, or with ``auto`` warns.
    """
    if (taken := decided(wanted, agent)) is not None:
        torch.use_deterministic_algorithms(taken, warn_only=wanted == "auto")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nobody reads it
        torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark and not taken
