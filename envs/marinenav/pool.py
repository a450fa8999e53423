"""Random worlds made in advance: thousands at once, so that a reset costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from ..waiting import Turns
from .state import WorldState

Generate = Callable[[int], tuple[WorldState, TensorDict]]


class WorldPool:
    """Unused random worlds with their first observations.

    Args:
        generate: makes ``count`` worlds.
        size: worlds per batch.
    """

    def __init__(self, generate: Generate, size: int) -> None:
        self._generate, self._size = generate, size
        self.clear()

    def clear(self) -> None:
        """Forgets all worlds."""
        self._worlds: tuple[WorldState, TensorDict] | None = None
        self._used, self._phase = 0, -1
        self._turns = Turns(0, torch.device("cpu"))

    def take(self, count: int, phase: int) -> tuple[WorldState, TensorDict, slice]:
        """``count`` unused worlds: a batch and where in it they are.

        Args:
            phase: of the curriculum; worlds of another phase are thrown away.
        """
        if self._worlds is None or self._phase != phase or self._used + count > self._worlds[0].steps.numel():
            self._worlds, self._used, self._phase = self._generate(max(count, self._size)), 0, phase
        place = slice(self._used, self._used + count)
        self._used += count
        return (*self._worlds, place)

    def take_where(self, ended: Tensor, phase: int) -> tuple[WorldState, TensorDict, Tensor]:
        """A batch of worlds, and which of them each of the worlds ``[W]`` bool gets that have ended."""
        if self._worlds is None or self._phase != phase or self._turns.over:
            self._worlds, self._phase = self._generate(max(len(ended), self._size)), phase
            self._turns = Turns(self._worlds[0].steps.numel(), ended.device)
        return (*self._worlds, self._turns.places(ended))

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers."""
        saved: dict[str, Any] = {"used": self._used, "phase": self._phase}
        if self._worlds is not None:
            saved["state"] = dict(self._worlds[0].items())
            saved["observation"] = self._worlds[1].to_dict()
        return saved

    def load_state_dict(self, saved: dict[str, Any], device: torch.device) -> None:
        """Restores :meth:`state_dict`."""
        self.clear()
        if "state" in saved:
            self._worlds = restore_worlds(saved, device)
            self._used, self._phase = saved["used"], saved["phase"]


def restore_worlds(saved: dict[str, Any], device: torch.device) -> tuple[WorldState, TensorDict]:
    """State and observation from the ``"state"`` and ``"observation"`` of a saved dict."""
    state = WorldState(**{name: value.to(device, copy=True) for name, value in saved["state"].items()})
    observation = TensorDict(saved["observation"], device=device).auto_batch_size_(1)
    agents = observation.get("agents").auto_batch_size_(2)
    agents.get("observation").auto_batch_size_(2)
    return state, observation.to(device)
