"""Many steps of all environments, written side by side as they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from ..encodings import Array
from ..spaces import Observations
from ..world import Act
from .batch import Batch


class Columns:
    """Room for so many steps of what a batch shows, in arrays ``[W, steps, ...]``."""

    def __init__(self, batch: Batch, observations: Observations, steps: int) -> None:
        arrays, self._nested = batch.arrays, observations.nested
        count = len(arrays.reward)
        self._batch, self._size = batch, (count, steps)
        self.leaves = [np.empty((count, steps, *leaf.shape[1:]), leaf.dtype) for leaf in arrays.observations]
        self.numbers = np.empty((3, count, steps, 1), batch.numbers.dtype)
        self.flags = np.empty((3, count, steps, 1), bool)
        self.mask = None if arrays.mask is None else np.empty((count, steps, arrays.mask.shape[1]), bool)
        # Views of the same memory: what a policy sees of a step needs no copy of its own.
        self._tensors = [torch.from_numpy(leaf) for leaf in self.leaves]
        self._mask_tensor = None if self.mask is None else torch.from_numpy(self.mask)

    def write(self, t: int) -> None:
        """Takes in the batch as it stands."""
        arrays: Any = self._batch.arrays
        for column, leaf in zip(self.leaves, arrays.observations):
            column[:, t] = leaf
        self.numbers[:, :, t], self.flags[:, :, t] = self._batch.numbers, arrays.flags
        if self.mask is not None:
            self.mask[:, t] = arrays.mask

    def seen(self, t: int) -> tuple[Any, Tensor | None]:
        """Observation and mask of a step, ``[W, ...]``."""
        observation = self._nested([leaf[:, t] for leaf in self._tensors], lambda part: _made(part, self._size[:1]))
        return observation, None if self._mask_tensor is None else self._mask_tensor[:, t]

    def entries(self, rewards: bool) -> dict[str, Any]:
        """All steps as entries ``[W, steps, ...]`` of a tensordict."""
        reward, total, length = torch.from_numpy(self.numbers)
        done, terminated, truncated = torch.from_numpy(self.flags)
        entries = {
            "observation": self._nested(self._tensors, lambda part: _made(part, self._size)),
            "episode": _made({"return": total, "length": length}, self._size),
            **{"done": done, "terminated": terminated, "truncated": truncated},
        }
        if rewards:
            entries["reward"] = reward
        if self._mask_tensor is not None:
            entries["action_mask"] = self._mask_tensor
        return entries


def collect(
    batch: Batch,
    observations: Observations,
    act: Act,
    steps: int,
    advance: Callable[[Array], None],
    restart: Callable[[], None],
) -> TensorDict:
    """``[W, steps]`` as a collector makes it, without a tensordict for every step.

    Args:
        batch: at its current step.
        act: the policy.
        advance: takes actions ``[W, ...]`` and steps.
        restart: begins new episodes where they have ended.
    """
    here, following = Columns(batch, observations, steps), Columns(batch, observations, steps)
    acted: list[dict[str, Tensor]] = []
    for t in range(steps):
        here.write(t)
        acted.append(act(*here.seen(t)))
        advance(acted[-1]["action"].numpy())
        following.write(t)
        restart()
    size = (len(batch.done), steps)
    entries = here.entries(rewards=False)
    entries |= {name: torch.stack([entry[name] for entry in acted], 1) for name in acted[0]}
    entries["next"] = _made(following.entries(rewards=True), size)
    return _made(entries, size)


def _made(entries: dict[str, Any], size: tuple[int, ...]) -> TensorDict:
    return TensorDict._new_unsafe(entries, batch_size=torch.Size(size), device=torch.device("cpu"))
