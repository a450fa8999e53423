"""Makes TensorDicts without checks; only this module uses tensordict's private constructor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict


def unchecked(
    entries: Mapping[str, Any], batch_size: torch.Size | tuple[int, ...], device: torch.device | None = None
) -> TensorDict:
    """Makes a tensordict of entries that are known to fit: tensors and tensordicts of this batch size and device.

    In a step of a world or an agent the checks cost more than the rest: six tensors take 27 us with them and 4 us
    without, with a tensordict among them and a device 166 us and 8 us (tensordict 0.14.3, one thread of a CPU).
    """
    return TensorDict._new_unsafe(entries, batch_size=torch.Size(batch_size), device=device)
