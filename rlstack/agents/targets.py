"""Networks that slowly follow others."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn


class Target:
    """A copy of a network that follows it (Mnih et al. 2015; Lillicrap et al. 2016).

    Args:
        network: the one that is trained. Buffers are copied once.
        tau: ``target <- tau network + (1 - tau) target`` at each :meth:`update`; 1 copies.
    """

    def __init__(self, network: nn.Module, tau: float) -> None:
        self.tau = tau
        self.network = deepcopy(network).requires_grad_(False)
        self._online: list[Tensor] = list(network.parameters())
        self._target: list[Tensor] = list(self.network.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """One step towards the network."""
        if self.tau == 1:
            torch._foreach_copy_(self._target, self._online)
        else:
            torch._foreach_lerp_(self._target, self._online, self.tau)
