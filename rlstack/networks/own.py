"""Networks that users supply in place of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchrl.data import Composite, TensorSpec

from rlstack.config import ConfigError
from rlstack.config.options import Squash
from rlstack.envs.foundation.packages import found

from .actors import LOG_STD_RANGE, squashed
from .encoders import Encoder, Observation, seen_by_actor

Inputs: TypeAlias = int | tuple[int, ...] | dict[str, Any]
"""The size of a network's input: the size of a vector, the shape of another tensor, or a dict of these by key."""

ACTION = "action"
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_SAMPLES = 3


class OwnNetwork(Encoder):
    """A user's network from observations ``[...]`` to outputs ``[..., *shape]``.

    The network itself is made by ``make(inputs, outputs, **options)`` and maps ``[N, inputs]`` to ``[N, outputs]``,
    where ``outputs`` is the product of ``shape``. It sees observations as our networks do: scaled (pixels to 0..1) and
    floating-point, structured ones as dicts of tensors. Dropout layers are active only where gradients are enabled.

    Args:
        where: the option that names it, for messages.
        name: name of the class or function that makes it: ``package.module:attribute``.
        observation: spec of a single observation.
        shape: shape of an output.
        actions: size of the actions that are inputs, too; 0 for none. They are concatenated with a vector observation;
            a dict has them under ``action``.
        features: builds the world's input scaling, see :func:`rlstack.networks.encoders.build_encoder`.
        dtype: dtype of all numbers.
        device: device of the network.
        options: further arguments of ``make``.

    Raises:
        ConfigError: in one line: there is no such class, or it does not make a network with these inputs and outputs.

    Attributes:
        out_features: number of outputs of the network.
    """

    def __init__(
        self,
        where: str,
        name: str,
        observation: TensorSpec,
        shape: tuple[int, ...],
        actions: int = 0,
        features: Callable[[], nn.Module] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self._shape, self._dtype, self._spec = prod(shape), shape, dtype, observation
        self._dims = None if isinstance(observation, Composite) else len(observation.shape)
        self.scaling = None if features is None else features().to(device, dtype)
        sample = observation.zero((_SAMPLES,)).to(device)
        action = torch.zeros(_SAMPLES, actions, dtype=dtype, device=device) if actions else None
        joined = self._joined(sample, action)
        sizes: Inputs = _each(joined, lambda leaf: leaf.shape[1] if leaf.dim() == 2 else tuple(leaf.shape[1:]))
        self.network = _made(where, name, sizes, self.out_features, dict(options or {})).to(device, dtype)
        self._dropouts = [layer for layer in self.network.modules() if isinstance(layer, _DROPOUTS)]
        self._try_out(f"{where}: {name}", joined)

    def forward(self, observation: Observation, action: Tensor | None = None) -> Tensor:
        """Returns the outputs ``[..., *shape]``."""
        observation = seen_by_actor(observation)
        for layer in self._dropouts:
            layer.training = torch.is_grad_enabled()
        lead = self._lead(observation)
        seen = _each(self._joined(observation, action), lambda leaf: _folded(leaf, len(lead)))
        out = self.network(seen)
        if len(self._shape) > 1:
            out = out.unflatten(-1, self._shape)
        return out if len(lead) == 1 else out.reshape(*lead, *self._shape)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype  # the network's, also after double()
        return super()._apply(fn, recurse)

    @property
    def encoder(self) -> OwnNetwork:
        """The network itself: all of it comes before the head."""
        return self

    def head(self, features: Tensor) -> Tensor:
        """Returns the outputs as they are."""
        return features

    def _lead(self, observation: Observation) -> torch.Size:
        if not isinstance(observation, Tensor):
            if observation.batch_size:
                return observation.batch_size
            # In a program that is exported, the dict itself has none.
            (key, spec), *_ = self._spec.items(include_nested=True, leaves_only=True)
            shape = observation.get(key).shape
            return shape[: len(shape) - len(spec.shape)]
        return observation.shape[: observation.dim() - len(self._spec.shape)]

    def _joined(self, observation: Observation, action: Tensor | None) -> Any:
        """Returns the network's input, with unchanged batch dimensions: a tensor, or a dict of tensors."""
        seen = _plain(observation if self.scaling is None else self.scaling(observation), self._spec, self._dtype)
        if action is None:
            return seen
        if isinstance(seen, Tensor) and self._dims == 1:
            return torch.cat((seen, action), -1)
        return {**(seen if isinstance(seen, dict) else {"observation": seen}), ACTION: action}

    def _try_out(self, who: str, sample: Any) -> None:
        """Raises a one-line :class:`ConfigError` unless the network maps a sample to outputs with gradients."""
        wanted = f"[{_SAMPLES}, {self.out_features}]"
        norms = [layer for layer in self.network.modules() if getattr(layer, "running_mean", None) is not None]
        if norms:
            kind = type(norms[0]).__name__
            raise ConfigError(f"{who}: {kind} has running statistics, which our losses do not keep up; take LayerNorm")
        with torch.enable_grad():
            try:
                out = self.network(sample)
            except Exception as error:  # a user's code may raise anything
                shown = _each(sample, lambda leaf: list(leaf.shape))
                raise ConfigError(f"{who}: fails on an input of shape {shown}: {_brief(error)}") from error
            if not isinstance(out, Tensor) or not out.is_floating_point():
                kind = f"a tensor of {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
                raise ConfigError(f"{who}: gives {kind}, wanted is a floating-point tensor {wanted}")
            if out.shape != (_SAMPLES, self.out_features):
                raise ConfigError(f"{who}: gives {list(out.shape)} for {_SAMPLES} observations, wanted is {wanted}")
            trained = [(key, value) for key, value in self.network.named_parameters() if value.requires_grad]
            named = [(key, value) for key, value in trained if not is_lazy(value)]
            if not named:
                raise ConfigError(f"{who}: has no parameters to train")
            try:
                gradients = torch.autograd.grad(out.sum(), [value for _, value in named], allow_unused=True)
            except RuntimeError as error:
                raise ConfigError(f"{who}: no gradient reaches its parameters ({_brief(error)})") from error
        unused = [key for key, value in trained if is_lazy(value)]  # a lazy layer without its first input
        unused += [key for (key, _), gradient in zip(named, gradients) if gradient is None]
        if unused:
            raise ConfigError(
                f"{who}: no gradient reaches {', '.join(unused)}; leave out, or freeze by requires_grad_(False), what "
                "the outputs do not depend on"
            )


class OwnDeterministicActor(OwnNetwork):
    """Actions ``[..., D]`` in (-1, 1): the squashed outputs of a user's network.

    Args:
        squash: see :func:`rlstack.networks.actors.squashed`.
    """

    def __init__(self, *args: Any, squash: Squash, **options: Any) -> None:
        super().__init__(*args, **options)
        self.squash: Squash = squash

    def raw(self, observation: Observation) -> Tensor:
        """Returns the outputs ``[..., D]`` before squashing, unbounded."""
        return super().forward(observation)

    def squashed(self, raw: Tensor) -> Tensor:
        """Returns raw outputs as actions."""
        return squashed(raw, self.squash)

    def forward(self, observation: Observation, action: Tensor | None = None) -> Tensor:
        return self.squashed(self.raw(observation))


class OwnGaussianActor(OwnNetwork):
    """Mean and log standard deviation ``[..., D]`` from a user's network, which outputs the means first."""

    def forward(self, observation: Observation, action: Tensor | None = None) -> Any:
        mean, log_std = super().forward(observation).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)


def _made(where: str, name: str, inputs: Inputs, outputs: int, options: dict[str, Any]) -> nn.Module:
    """Returns the module that a class or function makes.

    Raises:
        ConfigError: the class or function cannot be found, fails, or makes something else.
    """
    wanted = f"a class of torch.nn.Module, or a function that returns one, of (inputs, outputs) = ({inputs}, {outputs})"
    try:
        make = found(name)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; wanted is {wanted}") from error
    if isinstance(make, nn.Module) or not callable(make):
        raise ConfigError(f"{where}: {name} is an object of {type(make).__name__}; wanted is {wanted}")
    try:
        module = make(inputs, outputs, **options)
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(f"{where}: {name} fails: {_brief(error)}; wanted is {wanted}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{where}: {name} makes an object of {type(module).__name__}; wanted is {wanted}")
    return module


def _plain(observation: Any, spec: Any, dtype: torch.dtype) -> Any:
    """Returns a tensor of this dtype, or a dict of them; pixels from 0 to 255 become numbers from 0 to 1."""
    if not isinstance(observation, Tensor):
        return {key: _plain(value, spec.get(key, None), dtype) for key, value in observation.items()}
    pixels = observation.dtype == torch.uint8 and len(spec.shape) > 1
    return observation.to(dtype) / 255 if pixels else observation.to(dtype)


def _each(value: Any, function: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _each(entry, function) for key, entry in value.items()}
    return function(value)


def _folded(leaf: Tensor, dims: int) -> Tensor:
    """Flattens the first ``dims`` dimensions into one."""
    return leaf if dims == 1 else leaf.unsqueeze(0) if not dims else leaf.flatten(0, dims - 1)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
