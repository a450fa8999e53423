"""A sampler of one's own: it draws the newest entries, and notes the errors of what it drew."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data.replay_buffers import Sampler


class Newest(Sampler):
    """Draws the newest entries."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def sample(self, storage: Any, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        return torch.arange(len(storage) - batch_size, len(storage)), {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def dumps(self, path: Any) -> None:
        pass

    def loads(self, path: Any) -> None:
        pass

    def _empty(self) -> None:
        pass


class Latest(Newest):
    """Draws from among the newest entries, at most ``window`` of them."""

    def __init__(self, capacity: int, window: int, alpha: float = 1.0) -> None:
        super().__init__(capacity)
        self.window, self.alpha = window, alpha


class Noting(Newest):
    """Notes the errors of what it drew."""

    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        self.noted = index, priority
