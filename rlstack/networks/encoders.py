"""Encoders from observations to feature vectors: each maps ``[..., observation]`` to ``[..., out_features]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import Composite, TensorSpec

from rlstack.config import ConfigError
from rlstack.config.agents import Activation

Observation: TypeAlias = Tensor | TensorDictBase


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


class Layers(nn.Sequential):
    """A sequence of layers called without the overhead of ``nn.Module`` around each of them.

    Forward hooks of these layers are not called. A ReLU overwrites its input, since no layer here needs its own output.
    """

    def forward(self, input: Tensor) -> Tensor:
        for layer in self._modules.values():
            if type(layer) is nn.Linear:
                input = apply_linear(layer, input)
            elif type(layer) is nn.ReLU:
                input = input.relu_()
            else:
                input = layer.forward(input)
        return input


def apply_linear(layer: nn.Module, input: Tensor) -> Tensor:
    """Returns the output of an ``nn.Linear``.

    A module looks up attributes in three places; for weight and bias that takes as long as a small matrix product.
    """
    held = layer._parameters
    weight = held.get("weight")
    if weight is None:  # TorchRL holds targets as buffers
        return functional.linear(input, layer.weight, layer.bias)  # type: ignore[arg-type]
    return functional.linear(input, weight, held["bias"])


def mlp(
    sizes: Sequence[int],
    layer_norm: bool = False,
    activation: Activation = "relu",
    linear: Callable[[int, int], nn.Module] = nn.Linear,
) -> Layers:
    """Makes ``Linear (LayerNorm) activation`` for each consecutive pair of sizes; ends after the last activation."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers.append(linear(size, following))
        if layer_norm:
            layers.append(nn.LayerNorm(following))
        layers.append(ACTIVATIONS[activation]())
    return Layers(*layers)


class Trunk(nn.Module):
    """An encoder followed by hidden layers, for several networks to share.

    Args:
        encoder: observation encoder.
        hidden: widths of the layers.
    """

    def __init__(self, encoder: nn.Module, hidden: Sequence[int], activation: Activation = "relu") -> None:
        super().__init__()
        features: int = encoder.out_features  # type: ignore[assignment]
        self.encoder, self.layers = encoder, mlp((features, *hidden), activation=activation)
        self.out_features = hidden[-1]

    def forward(self, observation: Observation) -> Tensor:
        return self.layers(self.encoder(observation))


class FlatEncoder(nn.Module):
    """Passes a vector ``[..., size]`` on unchanged; has no parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size

    def forward(self, observation: Tensor) -> Tensor:
        return observation


class DictEncoder(nn.Module):
    """Concatenates the flattened leaves of a structured observation in the order of their keys; has no parameters.

    Args:
        observation: spec of a single observation.
    """

    def __init__(self, observation: Composite) -> None:
        super().__init__()
        self.keys = sorted(observation.keys(include_nested=True, leaves_only=True), key=_name)
        self._dims = [len(observation[key].shape) for key in self.keys]
        self.out_features = sum(max(1, observation[key].shape.numel()) for key in self.keys)

    def forward(self, observation: TensorDictBase) -> Tensor:
        return torch.cat([self._flat(observation.get(key), dims) for key, dims in zip(self.keys, self._dims)], -1)

    @staticmethod
    def _flat(value: Tensor, dims: int) -> Tensor:
        value = value.flatten(-dims) if dims else value.unsqueeze(-1)
        return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _name(key: NestedKey) -> str:
    return key if isinstance(key, str) else ".".join(map(str, key))


class ImageEncoder(nn.Module):
    """Encodes images ``[..., C, H, W]`` or ``[..., H, W, C]`` by the convolutions of Mnih et al. 2015.

    Integers (uint8) are divided by 255. The smaller of first and last dimension is taken as the channels.

    Args:
        shape: shape of one image.
        features: width of the layer after the convolutions.

    Raises:
        ConfigError: images too small for the three convolutions (36 x 36 at least).
    """

    def __init__(self, shape: Sequence[int], features: int) -> None:
        super().__init__()
        self._channels_last = shape[-1] < shape[0]
        channels, height, width = (shape[2], shape[0], shape[1]) if self._channels_last else shape
        if min(height, width) < 36:
            raise ConfigError(
                f"images of {height} x {width} are too small for the convolutions, which need at least 36 x 36"
            )
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(channels, 32, 8, 4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
        )
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, channels, height, width)).shape[-1]
        self.head = mlp((size, features))
        self.out_features = features

    def forward(self, observation: Tensor) -> Tensor:
        lead = observation.shape[:-3]
        images = observation.reshape(-1, *observation.shape[-3:])
        if not images.is_floating_point():
            first: Any = self.head[0]  # a target's parameters are buffers, which parameters() does not list
            images = images.to(first.weight.dtype) / 255
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        images = images.contiguous(memory_format=torch.channels_last)  # convolutions of a CPU are faster so
        return self.head(self.convolutions(images)).view(*lead, -1)


class ObjectSetEncoder(nn.Module):
    """Encodes the agent's own state and up to K masked objects, with layers shared by all objects.

    It reads ``"self" [..., S]``, ``"objects" [..., K, F]`` and ``"mask" [..., K]``; empty slots give zeros. The encoded
    slots are concatenated in order (worlds sort them by distance), as in the networks of arXiv 2412.09466.

    Args:
        self_size, object_size, num_objects: S, F, K.
        self_features: width of the encoding of the agent's own state.
        object_features: widths of the layers applied to each object.
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


class Scaled(nn.Module):
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
    """Builds the encoder for an observation spec: a vector, an image, own state and masked objects, or any other dict.

    Args:
        observation: spec of a single observation.
        features: builds the world's input scaling; None to use the observation as it is. Such a module maps
            observation to observation and has its sizes as attributes: ``size`` for a vector, otherwise ``self_size``
            and ``object_size``.
        self_features: width of the encoding of the agent's own state, or of an image.
        object_features: widths of the shared object layers.

    Raises:
        ConfigError: the observation has another structure; the message says which are supported.
    """
    if not isinstance(observation, Composite):
        dims = len(observation.shape)
        if dims == 3:
            return ImageEncoder(tuple(observation.shape), self_features)
        if dims != 1:
            raise ConfigError(
                f"observations of shape {tuple(observation.shape)} have no encoder; "
                "vectors, images and dicts of vectors have"
            )
        if features is None:
            return FlatEncoder(observation.shape[0])
        vector: Any = features()
        return Scaled(vector, FlatEncoder(vector.size))
    if set(observation.keys()) != {"self", "objects", "mask"}:
        return DictEncoder(observation)
    own, (count, size) = observation["self"].shape[0], observation["objects"].shape
    if features is None:
        return ObjectSetEncoder(own, size, count, self_features, object_features)
    scaling: Any = features()
    encoder = ObjectSetEncoder(scaling.self_size, scaling.object_size, count, self_features, object_features)
    return Scaled(scaling, encoder)
