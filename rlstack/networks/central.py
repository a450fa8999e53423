"""A value function that sees what all agents of a world see (Yu et al. 2022), whatever their number and order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlstack.config.agents import Activation

from .encoders import Observation, mlp
from .values import StateNetwork


class CentralNetwork(StateNetwork):
    """The value of an agent's state from its own observation and those of the others in its world.

    All observations go through the same encoder. The own encoding is joined by the mean of the others' after one more
    layer (Zaheer et al. 2017), and by the share of them that are there; without any, both are zero.

    Args:
        encoder: observation encoder.
        hidden: widths of the hidden layers; the first is that of the others' mean, too.
        others: how many other agents a world has room for.
    """

    def __init__(
        self, encoder: torch.nn.Module, hidden: Sequence[int], others: int, activation: Activation = "relu"
    ) -> None:
        super().__init__(encoder, 1, hidden, activation, besides=hidden[0] + 1)
        features: int = encoder.out_features  # type: ignore[assignment]
        self.view = mlp((features, hidden[0]), activation=activation)
        self.others = others

    def forward(self, observation: Observation, there: Tensor) -> Tensor:  # type: ignore[override]
        """Values ``[..., A, 1]`` of worlds of A agents.

        Args:
            observation: of all of them, ``[..., A]``.
            there: ``[..., A, A]`` bool, who counts for whom; nobody does for itself.
        """
        return self.joint(self.encoder(observation), there)

    def joint(self, features: Tensor, there: Tensor) -> Tensor:
        """:meth:`forward` for observations that are encoded already, ``[..., A, F]``."""
        return self.head(torch.cat((features, self.pooled(features, apart(there))), -1))

    def pooled(self, features: Tensor, there: Tensor) -> Tensor:
        """What joins the own encodings of Q agents, ``[..., Q, V]``.

        Args:
            features: encodings of M others, ``[..., M, F]``.
            there: ``[..., Q, M]`` bool, which of them count for whom.
        """
        views = self.view(features)
        count = there.sum(-1, keepdim=True)
        mean = (there.to(views.dtype) @ views) / count.clamp(min=1)
        return torch.cat((mean, (count / self.others).to(mean.dtype)), -1)


def apart(there: Tensor) -> Tensor:
    """``[..., A, A]`` without oneself."""
    return there & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
