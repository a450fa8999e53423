"""The loss of random network distillation (Burda et al. 2018, arXiv 1810.12894)."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from .base import Loss, Metrics


class RNDLoss(Loss):
    """Mean squared distance between predicted features of an observation and those of a fixed random network.

    The distance is small where the predictor has often been trained, so it measures how new an observation is.

    Args:
        predictor: observation -> features ``[..., F]``, or a ``TensorDictModule`` that writes them under ``features``.
        target: a network of the same kind with random weights, which stay fixed.

    ``forward`` returns ``loss_predictor``.
    """

    RESULTS = ["loss_predictor"]

    def __init__(self, predictor: nn.Module, target: nn.Module) -> None:
        super().__init__()
        self.add_network("predictor", predictor)
        self.add_network("target_features", target.requires_grad_(False))
        self._has_update_associated["features"] = True  # for TorchRL, a target that nothing moves

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        return [self.tensor_keys.observation]

    def distance(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the distance ``[...]`` of each entry, its novelty."""
        with torch.no_grad():
            wanted = self.output(self.target_features, tensordict, "features")
        return (self.output(self.predictor, tensordict, "features") - wanted).square().mean(-1)

    def predictor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and no metrics."""
        return self.mean(self.distance(tensordict), tensordict), {}

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        return {"loss_predictor": self.predictor_loss(tensordict)[0]}, {}
