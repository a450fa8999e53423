"""Makes TensorDicts of worlds without checks; only this module uses tensordict's private constructor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from .keys import GROUP


def unchecked(
    entries: Mapping[str, Any], batch_size: torch.Size | tuple[int, ...], device: torch.device | None = None
) -> TensorDict:
    """Makes a tensordict of entries that are known to fit: tensors and tensordicts of this batch size and device.

    In a step of a world or an agent the checks cost more than the rest: six tensors take 27 us with them and 4 us
    without, with a tensordict among them and a device 166 us and 8 us (tensordict 0.14.3, one thread of a CPU).
    """
    return TensorDict._new_unsafe(entries, batch_size=torch.Size(batch_size), device=device)


def of_agents(shown: Mapping[str, Tensor], statistics: Mapping[str, Tensor]) -> TensorDict:
    """Returns the root entries of worlds with agents.

    Args:
        shown: entries of the agents; ``active [W, A]`` is among them.
        statistics: those of the episodes, ``[W]`` by name.
    """
    active = shown["active"]
    worlds, device = active.shape[:1], active.device
    episode = unchecked({name: row[:, None] for name, row in statistics.items()}, worlds, device)
    return unchecked({GROUP: unchecked(shown, active.shape, device), "episode": episode}, worlds, device)


def with_ends(root: TensorDict, reward: Tensor, terminated: Tensor, truncated: Tensor, active: Tensor) -> TensorDict:
    """Adds rewards ``[W, A]`` and ends ``[W]`` of a step to :func:`of_agents`; inactive agents have ended."""
    terminated, truncated, gone = terminated[:, None], truncated[:, None], ~active[..., None]
    ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    for name, value in ends.items():
        root.set(name, value)
    agents = root.get(GROUP)
    agents.set("reward", reward[..., None])
    agents.set("terminated", terminated[:, None] | gone)
    agents.set("truncated", truncated[:, None] & ~gone)
    agents.set("done", ends["done"][:, None] | gone)
    return root
