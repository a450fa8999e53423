"""Policies as networks: observation to action, or to the parameters of an action distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlstack.config.options import Activation, Squash

from .encoders import Encoder, Observation, apply_layer, mlp

LOG_STD_RANGE = (-20.0, 2.0)


def squashed(raw: Tensor, squash: Squash) -> Tensor:
    """Squashes unbounded values into (-1, 1): ``tanh z``, or ``2/pi arctan z`` (arXiv 2412.09466).

    The arctangent's slope vanishes more slowly: a saturated actor can still learn.
    """
    return torch.tanh(raw) if squash == "tanh" else raw.arctan() * (2 / math.pi)


class DeterministicActor(nn.Module):
    """``a = squash(network(observation))`` in (-1, 1).

    Args:
        encoder: observation encoder.
        action_size: D, the number of components of an action.
        hidden: widths of the hidden layers.
        squash: see :func:`squashed`.
    """

    def __init__(
        self,
        encoder: Encoder,
        action_size: int,
        hidden: Sequence[int] = (128, 128),
        squash: Squash = "arctan",
        layer_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = mlp((encoder.out_features, *hidden), layer_norm, activation)
        self.output = nn.Linear(hidden[-1], action_size)
        self.squash: Squash = squash

    def raw(self, observation: Observation) -> Tensor:
        """Returns the outputs ``[..., D]`` before squashing, unbounded."""
        return apply_layer(self.output, self.trunk.forward(self.encoder.forward(observation)))

    def squashed(self, raw: Tensor) -> Tensor:
        """Returns raw outputs as actions."""
        return squashed(raw, self.squash)

    def forward(self, observation: Observation) -> Tensor:
        """Returns the action ``[..., D]``."""
        return self.squashed(self.raw(observation))


class GaussianActor(nn.Module):
    """Mean and log standard deviation of a Gaussian that is squashed afterwards (Haarnoja et al. 2018).

    Args:
        encoder: observation encoder.
        action_size: D, the number of components of an action.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self, encoder: Encoder, action_size: int, hidden: Sequence[int], activation: Activation = "relu"
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = mlp((encoder.out_features, *hidden), activation=activation)
        self.mean = nn.Linear(hidden[-1], action_size)
        self.log_std = nn.Linear(hidden[-1], action_size)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """Returns mean and log std ``[..., D]``, the latter clamped to [-20, 2]."""
        x = self.trunk.forward(self.encoder.forward(observation))
        return apply_layer(self.mean, x), apply_layer(self.log_std, x).clamp(*LOG_STD_RANGE)
