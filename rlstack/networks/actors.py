"""Policies as networks: observation to action."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .encoders import Observation, mlp


class DeterministicActor(nn.Module):
    """``a = squash(network(observation))`` in (-1, 1).

    Args:
        encoder: observation encoder.
        action_size: D.
        hidden: widths of the hidden layers.
        squash: ``"arctan"`` (2/pi arctan z, arXiv 2412.09466) or ``"tanh"``.
    """

    def __init__(
        self,
        encoder: nn.Module,
        action_size: int,
        hidden: Sequence[int] = (128, 128),
        squash: str = "arctan",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        features: int = encoder.out_features  # type: ignore[assignment]
        self.encoder = encoder
        self.trunk = mlp((features, *hidden), layer_norm)
        self.output = nn.Linear(hidden[-1], action_size)
        self.squash = squash

    def raw(self, observation: Observation) -> Tensor:
        """What is squashed, ``[..., D]``, unbounded."""
        return self.output(self.trunk(self.encoder(observation)))

    def squashed(self, raw: Tensor) -> Tensor:
        """Raw outputs as actions. The arctangent's slope never vanishes: a saturated actor can still learn."""
        return torch.tanh(raw) if self.squash == "tanh" else raw.arctan() * (2 / math.pi)

    def forward(self, observation: Observation) -> Tensor:
        """Action ``[..., D]``."""
        return self.squashed(self.raw(observation))
