"""Encoders of structured observations with a separate encoder for each key, as configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torchrl.data import Composite, TensorSpec

from rlstack.config import ConfigError
from rlstack.config.agents import EncoderConfig
from rlstack.config.errors import did_you_mean

from .distributions import legal
from .encoders import ImageEncoder, Observation, Scaled, mlp

WHOLE = "observation"
"""The name of an observation without keys."""


class KeyedEncoder(nn.Module):
    """Concatenates the encodings of an observation's keys, in the order of the keys.

    Args:
        shapes: shapes of all leaves, by name.
        paths: paths of the leaves in the observation, by name; an empty path if the observation is a single tensor.
        encoders: encoders by name; leaves without one are used as they are, unless they are the mask of a set.

    Raises:
        ConfigError: an encoder is for a key that does not exist, or does not fit its shape; the message names what the
            observation has.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        paths: Mapping[str, tuple[str, ...]],
        encoders: Mapping[str, EncoderConfig],
    ) -> None:
        super().__init__()
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
        self._paths = [paths[name] for name in used]
        self._masks = [None if config.mask is None else paths[config.mask] for config in used.values()]
        self.parts = nn.ModuleList(_part(name, config, shapes) for name, config in used.items())
        self.out_features = sum(part.out_features for part in self.parts)  # type: ignore[misc]

    def forward(self, observation: Observation) -> Tensor:
        encoded = []
        for part, path, mask in zip(self.parts, self._paths, self._masks):
            values = _leaf(observation, path)
            encoded.append(part(values) if mask is None else part(values, _leaf(observation, mask)))
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


def keyed_encoder(
    observation: TensorSpec, encoders: Mapping[str, EncoderConfig], features: Callable[[], nn.Module] | None
) -> nn.Module:
    """Builds the encoder of an observation spec that the configuration asks for.

    Args:
        observation: spec of a single observation. Nested keys are named with dots; an observation without keys is
            named ``observation``.
        encoders: encoders by name.
        features: builds the world's input scaling, see :func:`rlstack.networks.encoders.build_encoder`.

    Raises:
        ConfigError: see :class:`KeyedEncoder`.
    """
    leaves: list[tuple[tuple[str, ...], TensorSpec]] = [((), observation)]
    if isinstance(observation, Composite):
        leaves = [(_path(key), leaf) for key, leaf in observation.items(include_nested=True, leaves_only=True)]
    paths = {".".join(path) or WHOLE: path for path, _ in leaves}
    shapes = {name: leaf.shape for name, (_, leaf) in zip(paths, leaves)}
    if features is None:
        return KeyedEncoder(shapes, paths, encoders)
    scaling: Any = features()
    if isinstance(observation, Composite):
        shapes["self"] = torch.Size([scaling.self_size])
        shapes["objects"] = torch.Size([shapes["objects"][0], scaling.object_size])
    else:
        shapes[WHOLE] = torch.Size([scaling.size])
    return Scaled(scaling, KeyedEncoder(shapes, paths, encoders))


# -- parts -------------------------------------------------------------------------------------------------------


class _Flat(nn.Module):
    """Flattens a leaf to ``[..., F]``, images of bytes as numbers from 0 to 1, and applies layers if there are any."""

    def __init__(self, shape: torch.Size, hidden: list[int]) -> None:
        super().__init__()
        self._dims = len(shape)
        self.layers = mlp((max(1, shape.numel()), *hidden))
        self.out_features = hidden[-1] if hidden else max(1, shape.numel())

    def forward(self, values: Tensor) -> Tensor:
        pixels = values.dtype == torch.uint8 and self._dims > 1
        values = values.flatten(-self._dims) if self._dims else values.unsqueeze(-1)
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
        return self.layers(values / 255 if pixels else values)


class _Set(nn.Module):
    """Encodes a set of things ``[..., K, F]`` with a mask ``[..., K]``."""

    def __init__(self, shape: torch.Size, hidden: list[int], pool: str) -> None:
        super().__init__()
        self.layers, self._pool = mlp((shape[1], *hidden)), pool
        self.out_features = hidden[-1] * (shape[0] if pool == "flatten" else 1)

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
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
        seen = legal(there.squeeze(-1))[..., None, None, :].expand(*query.shape[:-1], there.shape[-2])
        attended = scaled_dot_product_attention(query, key, value, seen)
        return self.norm(x + self.join(attended.transpose(-3, -2).flatten(-2)))


def _part(name: str, config: EncoderConfig, shapes: Mapping[str, torch.Size]) -> nn.Module:
    where, shape = f"agent.encoders.{name}", shapes[name]
    if config.kind in ("flat", "mlp"):
        return _Flat(shape, config.hidden or [])
    if config.kind == "image":
        if len(shape) != 3:
            raise ConfigError(f"{where}: kind 'image' takes three dimensions, it has {list(shape)}")
        assert config.features is not None
        return ImageEncoder(shape, config.features)
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


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def _leaf(observation: Observation, path: tuple[str, ...]) -> Any:
    if not isinstance(observation, TensorDictBase):
        return observation
    return observation.get(path if len(path) > 1 else path[0])
