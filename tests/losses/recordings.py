"""Recordings of three updates of the reference learners on one batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

BATCH = 16


class Recording:
    """One file of recorded arrays."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.arrays = dict(file.items())

    def __getitem__(self, key: str) -> Tensor:
        return torch.as_tensor(self.arrays[key])

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Returns the arrays whose names begin with ``prefix``, by the rest of their names."""
        return {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}

    def batch(self) -> TensorDict:
        """Returns the transitions of all three updates."""

        def observation(prefix: str) -> dict[str, Tensor]:
            return {key: self[prefix + key] for key in ("self", "objects", "mask")}

        following = {
            "observation": observation("next_"),
            "reward": self["reward"][:, None],
            "terminated": self["done"][:, None] > 0.5,
        }
        entries: dict[str, Any] = {"observation": observation(""), "action": self["action"], "next": following}
        if "weights" in self.arrays:  # Rainbow: the rewards are three-step returns
            gamma = torch.full((BATCH, 1), 0.99**3, dtype=torch.float64)
            entries |= {"priority_weight": self["weights"], "gamma": gamma}
        return TensorDict(entries, batch_size=[BATCH])
