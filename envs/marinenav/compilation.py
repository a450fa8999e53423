"""``torch.compile`` for the simulation's functions, with a workaround for booleans."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..compilation import Compiled
from .state import WorldState

Outcome = TypeVar("Outcome")


def compiled(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Returns the function compiled for fixed shapes.

    The compiled code returns booleans as bytes made from floats: for booleans the CPU code generator would write a
    vector's mask element by element, which takes ten times as long as all the arithmetic before it.
    """

    def compute(*arguments: Any) -> Any:
        return _map_tensors(_bool_to_byte, function(*arguments))

    fast = Compiled(compute, f"{function.__name__} of marinenav", dynamic=False)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return _map_tensors(_byte_to_bool, fast(*arguments))

    return call


def _bool_to_byte(value: Tensor) -> Tensor:
    return torch.where(value, 1.0, 0.0).to(torch.uint8) if value.dtype == torch.bool else value


def _byte_to_bool(value: Tensor) -> Tensor:
    return value.view(torch.bool) if value.dtype == torch.uint8 else value


def _map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies ``function`` to every tensor of nested dicts, plain tuples and world states."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, WorldState):
        return value.map(function)
    if isinstance(value, dict):
        return {key: _map_tensors(function, entry) for key, entry in value.items()}
    return tuple(_map_tensors(function, entry) for entry in value)
