"""Networks that are normalised over the batch, as the critics of CrossQ are (Bhatt et al. 2024)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torchrl.modules import BatchRenorm1d

from .distributions import full_precision


class BatchRenorm(BatchRenorm1d):
    """TorchRL's batch renormalisation (Ioffe 2017) of ``[..., F]``; its correction is in full force after a warm-up.

    That of TorchRL 0.14.1 counts on: its correction is twice as large after twice the warm-up, and so on.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = full_precision(x)
        out: Tensor = super().forward(x.reshape(-1, x.shape[-1]))
        if self.training:
            self.num_batches_tracked.copy_(self.num_batches_tracked.clamp(max=self.warmup_steps))
        return out.reshape(x.shape)


def renormalized(network: Any, wanted: bool = True) -> nn.Module:
    """A network whose ``trunk`` is normalised over the batch before every linear layer and before the output."""
    layers: list[nn.Module] = []
    for layer in network.trunk if wanted else ():
        layers += [BatchRenorm(layer.in_features), layer] if isinstance(layer, nn.Linear) else [layer]
    if layers:
        network.trunk = nn.Sequential(*layers, BatchRenorm(network.output.in_features))
    return network


def running_statistics(network: nn.Module) -> list[Tensor]:
    """The means and variances that such layers keep up."""
    layers = [layer for layer in network.modules() if isinstance(layer, BatchRenorm)]
    return [value for layer in layers for value in (layer.running_mean, layer.running_var)]
