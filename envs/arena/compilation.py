"""``torch.compile`` for what runs over all worlds in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compilation import Compiled
from .simulation import Kernels

_OPTIONS: dict[str, Any] = {
    # One loop over the worlds that keeps what it computes in registers, instead of dozens that write and read it.
    "max_fusion_size": 1000,
    "realize_opcount_threshold": 100,
    "realize_reads_threshold": 16,
}
_SLOTS = 24  # more than are almost ever needed at once: another number of slots is compiled anew


def compiled_kernels() -> Kernels:
    """The kernels, compiled for the shapes they are first called with."""
    plain = Kernels()
    return Kernels(_compiled(plain.move), _compiled(plain.closest), _compiled(plain.observe), _SLOTS)


def _compiled(function: Callable[..., Any]) -> Compiled:
    return Compiled(function, f"{function.__name__} of arena", dynamic=False, options=_OPTIONS)
