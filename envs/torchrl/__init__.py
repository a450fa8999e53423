"""Any TorchRL environment as a batched world."""

from .env import TorchRL

__all__ = ["TorchRL"]
