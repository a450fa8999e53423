"""``torch.compile`` for what runs over all worlds in every sub-step and decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Kernels(NamedTuple):
    """The functions that take the time, as they are or compiled."""

    bot_orders: Callable[..., Any]
    step: Callable[..., Any]
    look: Callable[..., Any]
    conclude: Callable[..., Any]


def compiled(plain: Kernels) -> Kernels:
    """The kernels, compiled for the shapes they are called with."""
    return Kernels(*(_compiled(function) for function in plain))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*arguments: Any) -> Any:
        return function(*arguments)

    # Compiled code is kept with the code object; sharing one, every env would search what belongs to others.
    compute.__code__ = compute.__code__.replace(co_name=function.__name__)
    return torch.compile(compute, dynamic=False, fullgraph=True)
