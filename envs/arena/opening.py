"""Games at their beginning, with what is seen and known of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .state import ArenaState


@dataclass(frozen=True)
class Opening:
    """Worlds that have just begun."""

    state: ArenaState
    observation: Tensor  # [n, .]
    statistics: Tensor  # [., n]

    def __len__(self) -> int:
        return len(self.observation)

    def saved(self) -> dict[str, Any]:
        """Nested dict of tensors."""
        return {"state": dict(self.state.items()), "shown": [self.observation, self.statistics]}

    @classmethod
    def restored(cls, saved: dict[str, Any], device: torch.device) -> Opening:
        """The inverse of :meth:`saved`."""
        state = ArenaState(**{name: value.to(device) for name, value in saved["state"].items()})
        return cls(state, *(value.to(device) for value in saved["shown"]))
