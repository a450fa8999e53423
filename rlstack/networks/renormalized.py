"""Networks that are normalised over the batch, like the critics of CrossQ (Bhatt et al. 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchrl.modules import BatchRenorm1d

from .distributions import full_precision


class BatchRenorm(BatchRenorm1d):
    """TorchRL's batch renormalisation (Ioffe 2017) of ``[..., F]``, with a correction that is complete after a warm-up.

    In TorchRL 0.14.1 the correction keeps growing: it is twice as large after twice the warm-up, and so on. A batch
    whose mean or variance is not finite leaves the running statistics as they were.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = full_precision(x)
        before = self.running_mean.clone(), self.running_var.clone()
        out: Tensor = super().forward(x.reshape(-1, x.shape[-1]))
        if self.training:
            finite = self.running_mean.isfinite().all() & self.running_var.isfinite().all()
            for now, earlier in zip((self.running_mean, self.running_var), before):
                now.copy_(torch.where(finite, now, earlier))
            self.num_batches_tracked.copy_(self.num_batches_tracked.clamp(max=self.warmup_steps))
        return out.reshape(x.shape)


def renormalized(network: Any, wanted: bool = True) -> nn.Module:
    """Returns a network, its ``trunk`` normalised over the batch before every linear layer and before the output."""
    layers: list[nn.Module] = []
    for layer in network.trunk if wanted else ():
        layers += [BatchRenorm(layer.in_features), layer] if isinstance(layer, nn.Linear) else [layer]
    if layers:
        network.trunk = nn.Sequential(*layers, BatchRenorm(network.output.in_features))
    return network


def running_statistics(network: nn.Module) -> list[Tensor]:
    """Returns the running means and variances of such layers."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]
    return [value for layer in layers for value in (layer.running_mean, layer.running_var)]
