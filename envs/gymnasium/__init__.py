"""Any Gymnasium environment as a batched world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Gymnasium"]

if TYPE_CHECKING:
    from .env import Gymnasium


def __getattr__(name: str) -> Any:
    """Imports TorchRL only where the world itself is wanted: worker processes start without it."""
    if name != "Gymnasium":
        raise AttributeError(f"module 'rlstack.envs.gymnasium' has no attribute {name!r}")
    from .env import Gymnasium

    return Gymnasium
