"""``torch.compile`` for what runs over all worlds in every sub-step and decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..compilation import Compiled


class Kernels(NamedTuple):
    """The functions that take the time, as they are or compiled."""

    bot_orders: Callable[..., Any]
    step: Callable[..., Any]
    look: Callable[..., Any]
    conclude: Callable[..., Any]


def compiled(plain: Kernels) -> Kernels:
    """The kernels, compiled for the shapes they are called with."""
    return Kernels(*(_compiled(function) for function in plain))


def _compiled(function: Callable[..., Any]) -> Compiled:
    return Compiled(function, f"{function.__name__} of echelon", dynamic=False)
