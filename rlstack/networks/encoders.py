"""Observation to feature vector. Every encoder maps ``[..., observation]`` to ``[..., out_features]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from rlstack.config import ConfigError

Observation: TypeAlias = Tensor | TensorDictBase


def mlp(sizes: Sequence[int], layer_norm: bool = False) -> nn.Sequential:
    """``Linear (LayerNorm) ReLU`` for each consecutive pair of sizes; ends after the last ReLU."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers.append(nn.Linear(size, following))
        if layer_norm:
            layers.append(nn.LayerNorm(following))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class FlatEncoder(nn.Module):
    """A flat observation ``[..., size]`` through one hidden layer."""

    def __init__(self, size: int, features: int) -> None:
        super().__init__()
        self.out_features = features
        self.layers = mlp((size, features))

    def forward(self, observation: Tensor) -> Tensor:
        return self.layers(observation)


class ObjectSetEncoder(nn.Module):
    """An observation of oneself and of up to K masked objects, each object through shared layers.

    Reads ``"self" [..., S]``, ``"objects" [..., K, F]`` and ``"mask" [..., K]``; empty slots give zeros. The encoded
    slots are concatenated in order (worlds sort them by distance), as in the networks of arXiv 2412.09466.

    Args:
        self_size, object_size, num_objects: S, F, K.
        self_features: width of the self encoding.
        object_features: widths of the layers every object goes through.
    """

    def __init__(
        self,
        self_size: int,
        object_size: int,
        num_objects: int,
        self_features: int = 56,
        object_features: Sequence[int] = (40,),
    ) -> None:
        super().__init__()
        self.self_encoder = mlp((self_size, self_features))
        self.object_encoder = mlp((object_size, *object_features))
        self.out_features = self_features + num_objects * object_features[-1]

    def forward(self, observation: TensorDictBase) -> Tensor:
        own = self.self_encoder(observation.get("self"))
        objects = self.object_encoder(observation.get("objects"))
        objects = objects * (observation.get("mask") > 0.5).unsqueeze(-1)
        return torch.cat((own, objects.flatten(-2)), dim=-1)


class _Scaled(nn.Module):
    """A world's own input scaling in front of an encoder."""

    def __init__(self, features: nn.Module, encoder: nn.Module) -> None:
        super().__init__()
        self.features, self.encoder = features, encoder
        self.out_features = encoder.out_features

    def forward(self, observation: Observation) -> Tensor:
        return self.encoder(self.features(observation))


def build_encoder(
    observation: TensorSpec,
    features: Callable[[], nn.Module] | None,
    self_features: int,
    object_features: Sequence[int],
) -> nn.Module:
    """The encoder that fits an observation spec: flat, or oneself and masked objects.

    Args:
        observation: spec of a single observation.
        features: builds the world's input scaling, None to take the observation as it is. Such a module maps
            observation to observation and states its sizes as ``self_size`` and ``object_size``.
        self_features: width for a flat observation or the self part.
        object_features: widths of the shared object layers.

    Raises:
        ConfigError: an observation of another structure; it says which are known.
    """
    if not isinstance(observation, Composite):
        if len(observation.shape) != 1:
            raise ConfigError(f"observations of shape {tuple(observation.shape)} have no encoder; flat vectors have")
        return FlatEncoder(observation.shape[0], self_features)
    if set(observation.keys()) != {"self", "objects", "mask"}:
        keys = ", ".join(sorted(map(str, observation.keys())))
        raise ConfigError(f"a structured observation needs the keys self, objects, mask; this one has {keys}")
    own, (count, size) = observation["self"].shape[0], observation["objects"].shape
    if features is None:
        return ObjectSetEncoder(own, size, count, self_features, object_features)
    scaling: Any = features()
    encoder = ObjectSetEncoder(scaling.self_size, scaling.object_size, count, self_features, object_features)
    return _Scaled(scaling, encoder)
