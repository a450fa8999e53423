"""Return distributions: as functions of a quantile level (implicit quantile networks), or as fixed quantiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlstack.config.options import Activation

from .encoders import ACTIVATIONS, Encoder, Observation, mlp
from .values import StateNetwork

COSINES = 64


def midpoints(count: int, like: Tensor) -> Tensor:
    """Returns the midpoints of ``count`` equal parts of (0, 1), with the dtype and device of a tensor."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


class CosineEmbedding(nn.Module):
    """Maps quantile levels to features: ``ReLU(Linear(cos(pi i tau), i = 0..63))`` (Dabney et al. 2018, eq. 4).

    The ReLU can be left out where the embedding directly weights the last features.
    """

    def __init__(self, features: int, relu: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(COSINES, features)
        self.relu = relu

    def forward(self, tau: Tensor) -> Tensor:
        """Maps levels ``[..., n]`` in (0, 1) to features ``[..., n, features]``."""
        frequency = math.pi * torch.arange(COSINES, dtype=tau.dtype, device=tau.device)
        embedded = self.linear(torch.cos(tau.unsqueeze(-1) * frequency))
        return embedded.relu() if self.relu else embedded


class QuantileCritic(nn.Module):
    """``Z_tau(s, a)`` of arXiv 2412.09466: the quantile embedding gates the encoded observation.

    Args:
        encoder: observation encoder.
        action_size: D, the number of components of an action.
        hidden: width of both hidden layers.
    """

    def __init__(self, encoder: Encoder, action_size: int, hidden: int = 128, activation: Activation = "relu") -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = CosineEmbedding(encoder.out_features)
        self.action_encoder = mlp((action_size, hidden), activation=activation)
        self.activation = ACTIVATIONS[activation]()
        self.hidden = nn.Linear(encoder.out_features, hidden)
        self.hidden_2 = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, 1)

    def forward(self, observation: Observation, action: Tensor, tau: Tensor) -> Tensor:
        """Returns quantiles ``[..., n]`` at levels ``[..., n]``; actions ``[..., D]``, or candidates ``[K, B, D]``."""
        gated = self.encoder(observation).unsqueeze(-2) * self.embedding(tau)
        x = self.activation(self.hidden(gated)) * self.action_encoder(action).unsqueeze(-2)
        return self.output(self.activation(self.hidden_2(x))).squeeze(-1)


class LateQuantileCritic(nn.Module):
    """``Z_tau(s, a)`` whose quantile embedding weights the last hidden features: ``out(h(s, a) * phi(tau))``.

    The state-action trunk runs once for any number of levels, which makes 32 levels as cheap as one.

    Args:
        encoder: observation encoder.
        action_size: D; the action is concatenated with the encoded observation.
        hidden: widths of the trunk.
        layer_norm: normalise each hidden layer, which keeps values of unseen actions bounded (Ball et al. 2023).
    """

    def __init__(
        self,
        encoder: Encoder,
        action_size: int,
        hidden: Sequence[int] = (128, 128),
        layer_norm: bool = True,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = mlp((encoder.out_features + action_size, *hidden), layer_norm, activation)
        self.embedding = CosineEmbedding(hidden[-1], relu=False)
        self.output = nn.Linear(hidden[-1], 1)

    def forward(self, observation: Observation, action: Tensor, tau: Tensor) -> Tensor:
        """Returns quantiles ``[..., n]`` at levels ``[..., n]``; levels ``[1, n]`` are shared by a whole batch ``[B]``.

        Actions ``[K, B, D]`` are K candidates for each observation ``[B]``.
        """
        features = self.encoder(observation)
        x = self.trunk(torch.cat((features.expand(*action.shape[:-1], -1), action), dim=-1))
        weights = self.embedding(tau) * self.output.weight[0]
        if weights.dim() == 3 and weights.shape[0] == 1:
            return x @ weights[0].T + self.output.bias
        return (x.unsqueeze(-2) * weights).sum(-1) + self.output.bias


class QuantileNetwork(nn.Module):
    """``Z_tau(s, .)`` of all actions (Dabney et al. 2018): the quantile embedding gates the encoded observation.

    Args:
        encoder: observation encoder; if it has no parameters, its output first goes through the first hidden layer.
        actions: number of actions N.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        hidden: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, features, widths = encoder, encoder.out_features, list(hidden)
        self.lift: nn.Module = nn.Identity()
        if not any(True for _ in encoder.parameters()):
            self.lift = mlp((features, widths[0]), layer_norm, activation)
            features, widths = widths[0], widths[1:] or widths
        self.embedding = CosineEmbedding(features)
        self.trunk = mlp((features, *widths), layer_norm, activation)
        self.output = nn.Linear(widths[-1], actions)

    def forward(self, observation: Observation, tau: Tensor) -> Tensor:
        """Returns quantiles ``[..., n, N]`` at levels ``[..., n]``."""
        gated = self.lift(self.encoder(observation)).unsqueeze(-2) * self.embedding(tau)
        return self.output(self.trunk(gated))


class FixedQuantileNetwork(StateNetwork):
    """The quantiles of all actions' returns at fixed levels (Dabney et al. 2018a).

    Args:
        encoder: observation encoder.
        actions: number of actions N.
        quantiles: number of quantiles n.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self,
        encoder: Encoder,
        actions: int,
        quantiles: int,
        hidden: Sequence[int] = (128, 128),
        activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__(encoder, quantiles * actions, hidden, activation, layer_norm)
        self.shape = (quantiles, actions)

    def head(self, features: Tensor) -> Tensor:
        """Returns quantiles ``[..., n, N]`` for an observation that is already encoded."""
        return super().head(features).unflatten(-1, self.shape)
