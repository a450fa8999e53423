"""``torch.compile`` for what runs over all worlds in every tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compilation import Compiled
from .driving import drive
from .simulation import Kernels, finish, fly


def compiled_kernels() -> Kernels:
    """The kernels, compiled for the shapes they are first called with.

    Rewards and observations are left as they are: they run once in a step, and their forecast of sixty moves in a row
    takes longer to compile than all the rest.
    """
    return Kernels(_compiled(drive), _compiled(fly), _compiled(finish))


def _compiled(function: Callable[..., Any]) -> Compiled:
    return Compiled(function, f"{function.__name__} of rocket", dynamic=False)
