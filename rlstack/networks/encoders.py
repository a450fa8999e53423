"""Encoders from observations to feature vectors: each maps ``[..., observation]`` to ``[..., out_features]``.

:func:`build_encoder` chooses one for an observation, with a separate encoder for each key of a structured one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional
from torchrl.data import Composite, TensorSpec

from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.config.options import Activation, EncoderConfig

from .distributions import legal

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
        for layer in self:
            input = input.relu_() if type(layer) is nn.ReLU else apply_layer(layer, input)
        return input


_held: Callable[[nn.Module, str], Any] = nn.Module.__getattr__


def apply_layer(layer: nn.Module, input: Tensor) -> Tensor:
    """Returns the output of a layer, without its hooks.

    As attributes, weight and bias of a linear layer would be looked for everywhere else first.
    """
    if type(layer) is nn.Linear and "weight" not in layer.__dict__:  # where TorchRL puts the weights of targets
        return functional.linear(input, _held(layer, "weight"), _held(layer, "bias"))
    output: Tensor = layer.forward(input)
    return output


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


class Encoder(nn.Module):
    """The base class of encoders; ``out_features`` is the size of the feature vector."""

    out_features: int


class Trunk(Encoder):
    """An encoder followed by hidden layers, for several networks to share.

    Args:
        encoder: observation encoder.
        hidden: widths of the layers.
    """

    def __init__(self, encoder: Encoder, hidden: Sequence[int], activation: Activation = "relu") -> None:
        super().__init__()
        self.encoder, self.layers = encoder, mlp((encoder.out_features, *hidden), activation=activation)
        self.out_features = hidden[-1]

    def forward(self, observation: Observation) -> Tensor:
        return self.layers(self.encoder(observation))


class FlatEncoder(Encoder):
    """Passes a vector ``[..., size]`` on unchanged, whole numbers and flags as floating-point; has no parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out_features = size

    def forward(self, observation: Tensor) -> Tensor:
        return observation if observation.is_floating_point() else observation.to(torch.get_default_dtype())


def is_image(observation: TensorSpec) -> bool:
    """Returns whether an observation is an image: of three dimensions, or a grey one ``[H, W]`` of bytes."""
    return len(observation.shape) == 3 or (len(observation.shape) == 2 and observation.dtype == torch.uint8)


class _ChannelNorm(nn.LayerNorm):
    """Normalises the channels of images ``[N, C, H, W]`` at each point, as Gallici et al. 2024 do."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _convolution(layer_norm: bool, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    return nn.Sequential(convolution, _ChannelNorm(outputs)) if layer_norm else convolution


class _Residual(nn.Module):
    """Adds to an image what two convolutions of 3 x 3 make of it."""

    def __init__(self, channels: int, layer_norm: bool) -> None:
        super().__init__()
        self.first, self.second = (_convolution(layer_norm, channels, channels, 3, 1, 1) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        return image + self.second(functional.relu(self.first(functional.relu(image))))


class ImageEncoder(Encoder):
    """Encodes images ``[..., C, H, W]``, ``[..., H, W, C]`` or ``[..., H, W]`` by the convolutions of Mnih et al. 2015.

    Images smaller than 36 x 36, for which those are too large, go through three convolutions of 3 x 3. Integers (uint8)
    are divided by 255. The smaller of first and last dimension is taken as the channels.

    Args:
        shape: shape of one image.
        features: width of the layer after the convolutions.
        residual: whether the convolutions are the 15 with residual blocks of Espeholt et al. 2018 (IMPALA), which learn
            most games from fewer frames and take about ten times as long.
        layer_norm: normalise the result of each convolution over its channels, and that of the layer after them.
    """

    def __init__(self, shape: Sequence[int], features: int, residual: bool = False, layer_norm: bool = False) -> None:
        super().__init__()
        self._shape = tuple(shape)
        self._channels_last = len(shape) == 3 and shape[-1] < shape[0]
        channels, *size = (shape[2], *shape[:2]) if self._channels_last else (1, *shape)[-3:]
        layers: list[nn.Module] = []
        if residual:
            for inputs, outputs in pairwise((channels, 16, 32, 32)):
                layers += [_convolution(layer_norm, inputs, outputs, 3, 1, 1), nn.MaxPool2d(3, 2, padding=1)]
                layers += [_Residual(outputs, layer_norm), _Residual(outputs, layer_norm)]
            layers.append(nn.ReLU())
        else:
            kernels = ((8, 4, 0), (4, 2, 0), (3, 1, 0)) if min(size) >= 36 else ((3, 2, 1), (3, 2, 1), (3, 1, 1))
            for (inputs, outputs), kernel in zip(pairwise((channels, 32, 64, 64)), kernels):
                layers += [_convolution(layer_norm, inputs, outputs, *kernel), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            convolved = self.convolutions(torch.zeros(1, channels, *size)).shape[-1]
        self.head = mlp((convolved, features), layer_norm)
        self.out_features = features

    def forward(self, observation: Tensor) -> Tensor:
        lead = observation.shape[: observation.dim() - len(self._shape)]
        images = observation.reshape(-1, *(1, *self._shape)[-3:])
        if self._channels_last:
            images = images.permute(0, 3, 1, 2)
        # Channels last in memory, where a CPU's convolutions are faster; vmap has no memory_format=channels_last.
        images = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        if not images.is_floating_point():
            images = _as_numbers(images, self.head).div_(255)
        return self.head(self.convolutions(images)).view(*lead, -1)


class ObjectSetEncoder(Encoder):
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


class Scaled(Encoder):
    """A world's own input scaling in front of an encoder."""

    def __init__(self, features: nn.Module, encoder: Encoder) -> None:
        super().__init__()
        self.features, self.encoder = features, encoder
        self.out_features = encoder.out_features

    def forward(self, observation: Observation) -> Tensor:
        return self.encoder(self.features(observation))


# -- an actor and critics that see different things ---------------------------------------------------------------

SEEN_BY_ACTOR = "seen_by_actor"
"""Key of the actor's observation in one that has, beside it, the entries that only critics see."""


def seen_by_actor(observation: Observation) -> Observation:
    """Returns the actor's part of an observation; one without further entries is returned as it is."""
    if isinstance(observation, Tensor) or SEEN_BY_ACTOR not in observation.keys():  # noqa: SIM118
        return observation
    return observation.get(SEEN_BY_ACTOR)


class ActorEncoder(Encoder):
    """Encodes what the actor sees, whether or not there are further entries."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder, self.out_features = encoder, encoder.out_features

    def forward(self, observation: Observation) -> Tensor:
        return self.encoder(seen_by_actor(observation))


class CriticEncoder(Encoder):
    """Concatenates the encodings of what a critic sees.

    Args:
        encoders: encoders of the entries by name; that of what the actor sees is called :data:`SEEN_BY_ACTOR`.
    """

    def __init__(self, encoders: Mapping[str, Encoder]) -> None:
        super().__init__()
        self.names, self.parts = list(encoders), nn.ModuleList(encoders.values())
        self.out_features = sum(part.out_features for part in encoders.values())

    def forward(self, observation: TensorDictBase) -> Tensor:
        encoded = [part(observation.get(name)) for name, part in zip(self.names, self.parts)]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


# -- observations of several keys ---------------------------------------------------------------------------------

WHOLE = "observation"
"""The name of an observation without keys."""


class KeyedEncoder(Encoder):
    """Concatenates the encodings of an observation's keys, in the order of the keys.

    Args:
        observation: spec of a single observation.
        scaling: the world's input scaling, with the sizes of what it returns; None if there is none.
        image_features: width of the encoding of an image without an encoder of its own.
        encoders: encoders by name; leaves without one are used as they are, unless they are the mask of a set.

    Raises:
        ConfigError: an encoder is for a key that does not exist, or does not fit its shape; the message names what the
            observation has.

    Attributes:
        names, sizes: the encoded keys and the sizes of their encodings, in order.
        flat: whether the encodings are the keys' own numbers.
    """

    def __init__(
        self, observation: TensorSpec, scaling: Any, image_features: int, encoders: Mapping[str, EncoderConfig]
    ) -> None:
        super().__init__()
        leaves: list[tuple[tuple[str, ...], TensorSpec]] = [((), observation)]
        if isinstance(observation, Composite):
            nested = observation.items(include_nested=True, leaves_only=True)
            leaves = [(key if isinstance(key, tuple) else (key,), leaf) for key, leaf in nested]
        paths = {".".join(path) or WHOLE: path for path, _ in leaves}
        shapes = {name: leaf.shape for name, (_, leaf) in zip(paths, leaves)}
        if scaling is not None and isinstance(observation, Composite):
            shapes["self"] = torch.Size([scaling.self_size])
            shapes["objects"] = torch.Size([shapes["objects"][0], scaling.object_size])
        elif scaling is not None:
            shapes[WHOLE] = torch.Size([scaling.size])
        image = EncoderConfig("image", features=image_features)
        images = {name: image for name, (_, leaf) in zip(paths, leaves) if is_image(leaf)}
        encoders = {**images, **encoders}
        for name, config in encoders.items():
            _check_known(f"agent.encoders.{name}", name, shapes)
            if config.mask is not None:
                _check_known(f"agent.encoders.{name}.mask", config.mask, shapes)
        masks = {config.mask for config in encoders.values() if config.mask is not None}
        plain = EncoderConfig("flat")
        chosen = {name: encoders.get(name, plain) for name in sorted(shapes) if name in encoders or name not in masks}
        used = {name: config for name, config in chosen.items() if config.kind != "skip"}
        if not used:
            raise ConfigError("agent.encoders: nothing of the observation is left, every key is skipped")
        self.names, self._paths = list(used), [paths[name] for name in used]
        self._masks = [None if config.mask is None else paths[config.mask] for config in used.values()]
        parts = [_part(name, config, shapes) for name, config in used.items()]
        self.parts, self.sizes = nn.ModuleList(parts), [part.out_features for part in parts]
        self.out_features = sum(self.sizes)
        self.flat = all(config.kind == "flat" for config in used.values())

    def forward(self, observation: Observation) -> Tensor:
        encoded = []
        for part, path, mask in zip(self.parts, self._paths, self._masks):
            values = _leaf(observation, path)
            encoded.append(part(values) if mask is None else part(values, _leaf(observation, mask)))
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


def build_encoder(
    observation: TensorSpec,
    features: Callable[[], nn.Module] | None,
    self_features: int,
    object_features: Sequence[int],
    encoders: Mapping[str, EncoderConfig] | None = None,
) -> Encoder:
    """Builds the encoder for an observation spec: a vector, an image, own state and masked objects, or any other dict.

    In a dict, images without an encoder of their own are encoded as images alone are, and everything else is used as
    it is.

    Args:
        observation: spec of a single observation. Nested keys are named with dots; an observation without keys is
            named ``observation``.
        features: builds the world's input scaling; None to use the observation as it is. Such a module maps
            observation to observation and has its sizes as attributes: ``size`` for a vector, otherwise ``self_size``
            and ``object_size``.
        self_features: width of the encoding of the agent's own state, or of an image.
        object_features: widths of the shared object layers.
        encoders: encoders of single keys, by name.

    Raises:
        ConfigError: the observation has another structure, or :class:`KeyedEncoder` does not take the encoders.
    """
    structured = isinstance(observation, Composite)
    scaling: Any = None if features is None else features()
    if encoders or (structured and set(observation.keys()) != {"self", "objects", "mask"}):
        encoder: Encoder = KeyedEncoder(observation, scaling, self_features, encoders or {})
    elif structured:
        own, (count, size) = observation["self"].shape[0], observation["objects"].shape
        if scaling is not None:
            own, size = scaling.self_size, scaling.object_size
        encoder = ObjectSetEncoder(own, size, count, self_features, object_features)
    elif is_image(observation):
        return ImageEncoder(observation.shape, self_features)
    elif len(observation.shape) == 1:
        encoder = FlatEncoder(observation.shape[0] if scaling is None else scaling.size)
    else:
        raise ConfigError(
            f"observations of shape {tuple(observation.shape)} have no encoder; vectors, images and dicts of vectors "
            "have; agent.encoders={observation: {kind: mlp, hidden: [64]}} makes one"
        )
    return encoder if scaling is None else Scaled(scaling, encoder)


def build_plain_encoder(observation: TensorSpec, self_features: int, object_features: Sequence[int]) -> Encoder:
    """Builds an encoder that no option describes, see :func:`build_encoder`; other shapes are flattened."""
    known = isinstance(observation, Composite) or is_image(observation) or len(observation.shape) == 1
    encoders = None if known else {WHOLE: EncoderConfig("flat")}
    return build_encoder(observation, None, self_features, object_features, encoders)


def _as_numbers(values: Tensor, layers: nn.Sequential) -> Tensor:
    """Returns values as floating-point numbers, whole ones and flags in the precision of the layers that follow."""
    if values.is_floating_point():
        return values
    first: Any = next(iter(layers), None)  # a target's parameters are buffers, which parameters() does not list
    return values.to(torch.get_default_dtype() if first is None else first.weight.dtype)


# -- encoders of single keys --------------------------------------------------------------------------------------


class _Flat(Encoder):
    """Flattens a leaf to ``[..., F]``, images of bytes as numbers from 0 to 1, and applies layers if there are any."""

    def __init__(self, shape: torch.Size, hidden: list[int]) -> None:
        super().__init__()
        self._dims = len(shape)
        self.layers = mlp((max(1, shape.numel()), *hidden))
        self.out_features = hidden[-1] if hidden else max(1, shape.numel())

    def forward(self, values: Tensor) -> Tensor:
        pixels = values.dtype == torch.uint8 and self._dims > 1
        values = values.flatten(-self._dims) if self._dims else values.unsqueeze(-1)
        values = _as_numbers(values, self.layers)
        return self.layers(values / 255 if pixels else values)


class _Set(Encoder):
    """Encodes a set of things ``[..., K, F]`` with a mask ``[..., K]``."""

    def __init__(self, shape: torch.Size, hidden: list[int], pool: str) -> None:
        super().__init__()
        self.layers, self._pool = mlp((shape[1], *hidden)), pool
        self.out_features = hidden[-1] * (shape[0] if pool == "flatten" else 1)

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        values = _as_numbers(values, self.layers)
        there = torch.ones_like(values[..., :1], dtype=torch.bool) if mask is None else (mask > 0.5).unsqueeze(-1)
        encoded = self.encoded(values, there)
        if self._pool == "max":
            most = encoded.masked_fill(~there, -torch.inf).amax(-2)
            return most.masked_fill(~there.any(-2), 0.0)
        encoded = encoded * there
        if self._pool == "flatten":
            return encoded.flatten(-2)
        total = encoded.sum(-2)
        return total / there.sum(-2).clamp(min=1) if self._pool == "mean" else total

    def encoded(self, values: Tensor, there: Tensor) -> Tensor:
        """Returns each thing's encoding ``[..., K, D]``; ``there [..., K, 1]`` bool says which slots are filled."""
        return self.layers(values)


class _Attention(_Set):
    """Encodes a set with self-attention: ``norm(x + attention(x))`` (Vaswani et al. 2017) of its encodings x."""

    def __init__(self, shape: torch.Size, hidden: list[int], pool: str, heads: int) -> None:
        super().__init__(shape, hidden, pool)
        width = hidden[-1]
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self._heads = nn.LayerNorm(width), heads

    def encoded(self, values: Tensor, there: Tensor) -> Tensor:
        x = super().encoded(values, there)
        # [..., heads, K, D / heads]
        query, key, value = (
            part.unflatten(-1, (self._heads, -1)).transpose(-3, -2) for part in self.project(x).chunk(3, -1)
        )
        seen = legal(there.squeeze(-1))[..., None, None, :]
        attended = functional.scaled_dot_product_attention(query, key, value, seen)
        return self.norm(x + self.join(attended.transpose(-3, -2).flatten(-2)))


def _part(name: str, config: EncoderConfig, shapes: Mapping[str, torch.Size]) -> Encoder:
    where, shape = f"agent.encoders.{name}", shapes[name]
    if config.kind in ("flat", "mlp"):
        return _Flat(shape, config.hidden or [])
    if config.kind in ("image", "impala"):
        if len(shape) not in (2, 3):
            raise ConfigError(f"{where}: kind {config.kind!r} takes two or three dimensions, it has {list(shape)}")
        assert config.features is not None
        return ImageEncoder(shape, config.features, config.kind == "impala", bool(config.layer_norm))
    if len(shape) != 2:
        raise ConfigError(f"{where}: kind {config.kind!r} takes things [K, F], it has {list(shape)}")
    if config.mask is not None and shapes[config.mask] != shape[:1]:
        raise ConfigError(f"{where}: its mask {config.mask} has {list(shapes[config.mask])}, not {list(shape[:1])}")
    assert config.hidden is not None
    if config.kind == "attention":
        return _Attention(shape, config.hidden, config.pool or "mean", config.heads or 4)
    return _Set(shape, config.hidden, config.pool or "flatten")


def _check_known(where: str, name: str, shapes: Mapping[str, torch.Size]) -> None:
    if name not in shapes:
        known = ", ".join(f"{key} {list(shape)}" for key, shape in sorted(shapes.items()))
        raise ConfigError(f"{where}: {did_you_mean(name, list(shapes))}the observation has no {name!r}, it has {known}")


def _leaf(observation: Observation, path: tuple[str, ...]) -> Any:
    if not isinstance(observation, TensorDictBase):
        return observation
    return observation.get(path if len(path) > 1 else path[0])
