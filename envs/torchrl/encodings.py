"""Encodes the observations of TorchRL environments, and turns a policy's actions into theirs, by their specs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase

from ..foreign import factory_at

_INFINITE = 1e30
"""Bounds beyond this are no bounds."""


class Form(NamedTuple):
    """The outer form of a value of an environment.

    Attributes:
        spec: of a batch of it.
        convert: observations: from the environment's value ``[*lead, ...]``; actions: to it.
        choices: of the parts of an action; empty for numbers.
    """

    spec: TensorSpec
    convert: Callable[[Tensor], Tensor]
    choices: tuple[int, ...] = ()


def observation_form(spec: TensorSpec, lead: Sequence[int], dtype: torch.dtype, device: torch.device) -> Form:
    """Numbers as ``dtype`` (a single one ``[1]``), images of bytes as they are, choices as one-hot vectors.

    Args:
        spec: of a single value.
        lead: dimensions of a batch.
    """
    dims, here = len(lead), {"device": device}
    if isinstance(spec, Categorical) and not isinstance(spec, Binary):
        counts = _counts(spec)

        def hot(value: Tensor) -> Tensor:
            return _one_hot(value.reshape(*value.shape[:dims], len(counts)), counts).to(dtype)

        return Form(Bounded(0.0, 1.0, shape=(*lead, sum(counts)), dtype=dtype, **here), hot)
    image = spec.dtype == torch.uint8 and len(spec.shape) >= 2
    kind = torch.uint8 if image else dtype
    shape = tuple(spec.shape) or (1,)

    def numbers(value: Tensor) -> Tensor:
        return value.to(kind).reshape(*value.shape[:dims], *shape)

    whole: dict[str, Any] = {"shape": (*lead, *shape), "dtype": kind, **here}
    if isinstance(spec, OneHot | Binary) or spec.dtype == torch.bool:
        return Form(Bounded(0.0, 1.0, **whole), numbers)
    if isinstance(spec, Bounded):
        low, high = (end.to(device, kind).reshape(shape) for end in (spec.space.low, spec.space.high))
        if image or bool((_finite(low) & _finite(high)).all()):
            return Form(Bounded(*(end.expand(whole["shape"]).clone() for end in (low, high)), **whole), numbers)
    return Form(Unbounded(**whole), numbers)


def action_form(spec: TensorSpec, lead: Sequence[int], dtype: torch.dtype, device: torch.device) -> Form:
    """Choices as indices, numbers as one vector within its bounds, beyond which they are clipped.

    One-hot vectors, several in one, and bits are choices. Numbers without bounds are within [-1, 1].

    Raises:
        ValueError: an action of another kind, or with one bound only.
    """
    dims = len(lead)
    counts = _counts(spec)
    if counts:
        several = len(counts) > 1
        shape: tuple[int, ...] = (*lead, len(counts)) if several else tuple(lead)
        kind: dict[str, Any] = {"shape": shape, "dtype": torch.int64, "device": device}
        indices = MultiCategorical(counts, **kind) if several else Categorical(counts[0], **kind)

        def choose(value: Tensor) -> Tensor:
            parts = value.reshape(*value.shape[:dims], len(counts))
            parts = _one_hot(parts, counts) if isinstance(spec, OneHot) else parts
            return parts.to(spec.dtype).reshape(*value.shape[:dims], *spec.shape)

        return Form(indices, choose, counts)
    if not isinstance(spec, Bounded | Unbounded) or not spec.dtype.is_floating_point:
        allowed = "Categorical, OneHot, their Multi kinds, Binary, or floating-point numbers"
        raise ValueError(f"actions of kind {type(spec).__name__} ({spec.dtype}) are not supported, allowed: {allowed}")
    low, high = (end.to(device, dtype).reshape(-1) for end in (spec.space.low, spec.space.high))
    if bool((_finite(low) != _finite(high)).any()):
        raise ValueError("actions with one bound only are not supported: give both, or none for [-1, 1]")
    low, high = torch.where(_finite(low), low, -1.0), torch.where(_finite(high), high, 1.0)

    def clip(value: Tensor) -> Tensor:
        return value.clamp(low, high).to(spec.dtype).reshape(*value.shape[:dims], *spec.shape)

    shape = (*lead, len(low))
    ends = (end.expand(shape).clone() for end in (low, high))
    return Form(Bounded(*ends, shape=shape, dtype=dtype, device=device), clip)


def _counts(spec: TensorSpec) -> tuple[int, ...]:
    """Numbers of choices of the parts of a discrete value; none for others."""
    if isinstance(spec, MultiOneHot):
        return tuple(int(box.n) for box in spec.space)
    if isinstance(spec, OneHot):
        return (int(spec.space.n),)
    if isinstance(spec, MultiCategorical):
        return tuple(int(count) for count in spec.nvec.reshape(-1))
    if isinstance(spec, Categorical):
        return (2 if isinstance(spec, Binary) else int(spec.space.n),) * spec.shape.numel()
    return ()


def _one_hot(parts: Tensor, counts: Sequence[int]) -> Tensor:
    """``[..., k]`` whole numbers, one vector ``[..., sum(counts)]``."""
    return torch.cat([one_hot(part.long(), count) for part, count in zip(parts.unbind(-1), counts)], -1)


def _finite(bound: Tensor) -> Tensor:
    return bound.abs() < _INFINITE


# -- environments by name --------------------------------------------------------------------------------------------


_FORMS = "package.module:Class, or package.module:function with the annotation '-> EnvBase'"


def maker(id: str | None, kwargs: Mapping[str, Any], device: torch.device) -> Callable[[], EnvBase]:
    """The maker of one environment. One that takes ``device`` gets the world's, unless ``kwargs`` names another.

    Raises:
        ValueError: neither a class of ``EnvBase`` nor a function annotated to return one.
    """
    module, _, attribute = (id or "").partition(":")
    if not module or not attribute:
        hint = f", {id!r} may be one of env=gymnasium" if id else ""
        raise ValueError(f"id: give {_FORMS}{hint}")
    factory = factory_at(str(id), "torchrl", "torchrl.envs.EnvBase", lambda made: issubclass(made, EnvBase))
    # TorchRL's metaclass hides the signature of a class.
    accepted = inspect.signature(factory.__init__ if inspect.isclass(factory) else factory).parameters
    arguments = {"device": device, **kwargs} if "device" in accepted else dict(kwargs)

    def make() -> EnvBase:
        try:
            env = factory(**arguments)
        except (ImportError, TypeError, ValueError) as error:
            line = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{id} cannot be made with kwargs {dict(kwargs)}: {line}") from error
        if not isinstance(env, EnvBase):
            raise ValueError(f"id: {id} has made a {type(env).__name__}, not a torchrl.envs.EnvBase")
        return env

    return make
