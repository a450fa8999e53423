"""Encoders from observations to feature vectors: each maps ``[..., observation]`` to ``[..., out_features]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import TensorSpec

from rlstack.config.options import Activation

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


def is_image(observation: TensorSpec) -> bool:
    """Returns whether an observation is an image: of three dimensions, or a grey one ``[H, W]`` of bytes."""
    return len(observation.shape) == 3 or (len(observation.shape) == 2 and observation.dtype == torch.uint8)


class ImageEncoder(nn.Module):
    """Encodes images ``[..., C, H, W]``, ``[..., H, W, C]`` or ``[..., H, W]`` by the convolutions of Mnih et al. 2015.

    Images smaller than 36 x 36, for which those are too large, go through three convolutions of 3 x 3. Integers (uint8)
    are divided by 255. The smaller of first and last dimension is taken as the channels.

    Args:
        shape: shape of one image.
        features: width of the layer after the convolutions.
    """

    def __init__(self, shape: Sequence[int], features: int) -> None:
        super().__init__()
        self._shape = tuple(shape)
        self._channels_last = len(shape) == 3 and shape[-1] < shape[0]
        channels, *size = (shape[2], *shape[:2]) if self._channels_last else (1, *shape)[-3:]
        kernels = ((8, 4, 0), (4, 2, 0), (3, 1, 0)) if min(size) >= 36 else ((3, 2, 1), (3, 2, 1), (3, 1, 1))
        layers: list[nn.Module] = []
        for (inputs, outputs), kernel in zip(pairwise((channels, 32, 64, 64)), kernels):
            layers += [nn.Conv2d(inputs, outputs, *kernel), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            convolved = self.convolutions(torch.zeros(1, channels, *size)).shape[-1]
        self.head = mlp((convolved, features))
        self.out_features = features

    def forward(self, observation: Tensor) -> Tensor:
        lead = observation.shape[: observation.dim() - len(self._shape)]
        images = observation.reshape(-1, *(1, *self._shape)[-3:])
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
