"""Random worlds at their beginning, with what is seen of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from .state import WorldState


@dataclass(frozen=True)
class Opening:
    """Worlds that have just begun.

    Attributes:
        observation: what :meth:`~envs.marinenav.env.MarineNav.reset` shows of them.
        phase: of the curriculum that they were drawn in.
    """

    state: WorldState
    observation: TensorDict
    phase: int

    def __len__(self) -> int:
        return self.state.steps.numel()

    def saved(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers."""
        return {"phase": self.phase, "state": dict(self.state.items()), "observation": self.observation.to_dict()}

    @classmethod
    def restored(cls, saved: dict[str, Any], device: torch.device) -> Opening:
        """The inverse of :meth:`saved`."""
        return cls(*restore_worlds(saved, device), saved["phase"])


def restore_worlds(saved: dict[str, Any], device: torch.device) -> tuple[WorldState, TensorDict]:
    """State and observation from the ``"state"`` and ``"observation"`` of a saved dict."""
    state = WorldState(**{name: value.to(device, copy=True) for name, value in saved["state"].items()})
    observation = TensorDict(saved["observation"], device=device).auto_batch_size_(1)
    agents = observation.get("agents").auto_batch_size_(2)
    agents.get("observation").auto_batch_size_(2)
    return state, observation.to(device)
