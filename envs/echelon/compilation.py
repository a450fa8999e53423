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


_CONSTANTS = {"bot_orders": (1,), "step": (2,), "look": (1,), "conclude": (4, 5)}
"""Positions of the tables and options of a world."""


def compiled(plain: Kernels) -> Kernels:
    """The kernels, compiled for the shapes they are called with, for one world: its tables and options are constant."""
    return Kernels(*(_compiled(function, _CONSTANTS[name]) for name, function in plain._asdict().items()))


def _compiled(function: Callable[..., Any], constants: tuple[int, ...]) -> Compiled:
    return Compiled(function, f"{function.__name__} of echelon", constants=constants, dynamic=False)
