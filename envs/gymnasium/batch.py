"""The current step of all environments as tensordicts, with the statistics of their episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack.envs.foundation.tensors import unchecked

from ..spaces import Array, Observations
from ..world import Act
from .simulators import SimulatorArrays

STATISTICS = ("return", "length", "success")
"""The statistics of an episode; success where the world shows it."""


class Batch:
    """Makes tensordicts of :class:`SimulatorArrays`; they are copies, as the arrays are written again every step.

    Small batches are all overhead, so this is a plain object with few tensor operations: flags, and numbers, are copied
    in one go each.

    Args:
        dtype: NumPy name of the type of rewards and statistics.
        device: of the tensordicts.
        success: whether the tensordicts show the episodes' success.

    Attributes:
        done: bool ``[W]``, which environments have ended and not been reset.
        numbers: reward, return, length, and success if it is shown, ``[3 or 4, W, 1]``.
        seen: observation and mask (None without one) ``[W, ...]`` in the arrays' own memory, on the CPU: every step
            overwrites them.
        steps: environment steps taken.
    """

    def __init__(
        self, arrays: SimulatorArrays, observations: Observations, dtype: str, device: torch.device, success: bool
    ) -> None:
        count = len(arrays.reward)
        self.arrays, self.done, self.steps = arrays, arrays.flags[0, :, 0], 0
        self._returns = np.zeros(count)
        self.numbers: Array = np.zeros((4 if success else 3, count, 1), dtype)
        self._reward, self._return, self._length, *self._success = self.numbers[..., 0]
        self._nested = observations.nested
        self._size, self._device, self._on_cpu = torch.Size([count]), device, device.type == "cpu"
        self._leaves = [torch.from_numpy(array) for array in arrays.observations]
        self._mask = None if arrays.mask is None else torch.from_numpy(arrays.mask)
        observation = self._nested(self._leaves, lambda part: _made(part, self._size))
        self.seen: tuple[Any, Tensor | None] = (observation, self._mask)
        self._flag_tensor, self._number_tensor = torch.from_numpy(arrays.flags), torch.from_numpy(self.numbers)

    def begin(self, rows: list[int]) -> None:
        """New episodes have begun in these rows."""
        self._returns[rows] = 0.0
        self.numbers[:, rows] = 0.0

    def account(self, running: Array) -> None:
        """A step has been taken; ``running [W]`` were those that had not ended before it."""
        self._returns += self.arrays.reward
        self._reward[:], self._return[:] = self.arrays.reward, self._returns
        self._length += running
        for success in self._success:
            success[:] = self.arrays.success
        self.steps += len(running)

    def root(self) -> TensorDict:
        """Root entries without the end flags."""
        return self._tensordict(self._shown()[0])

    def root_after_reset(self) -> TensorDict:
        """Root entries and end flags."""
        return self._tensordict(self._shown()[0] | self._flags())

    def following(self) -> TensorDict:
        """The entries under ``"next"``."""
        entries, reward = self._shown()
        entries["reward"] = reward
        return self._tensordict(entries | self._flags())

    def root_from(self, following: TensorDict) -> TensorDict:
        """The root after :meth:`following` where no environment has ended: the same tensors."""
        root = self._shared(following)
        del root["reward"]
        return self._tensordict(root)

    def _shown(self) -> tuple[dict[str, Any], Tensor]:
        """Root entries but the end flags, and the reward."""
        reward, *known = self._copy(self._number_tensor).unbind(0)
        shown = {
            "observation": self._nested([self._copy(leaf) for leaf in self._leaves], self._tensordict),
            "episode": self._tensordict(dict(zip(STATISTICS, known))),
        }
        if self._mask is not None:
            shown["action_mask"] = self._copy(self._mask)
        return shown, reward

    def _shared(self, part: TensorDict) -> dict[str, Any]:
        """Its tensors in tensordicts of their own."""
        return {
            key: self._tensordict(self._shared(value)) if isinstance(value, TensorDict) else value
            for key, value in part.items()
        }

    def _flags(self) -> dict[str, Tensor]:
        done, terminated, truncated = self._copy(self._flag_tensor).unbind(0)
        return {"done": done, "terminated": terminated, "truncated": truncated}

    def _copy(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self._on_cpu else tensor.to(self._device)

    def _tensordict(self, entries: dict[str, Any]) -> TensorDict:
        # The public constructor checks every entry, which would take a third of a step of a small batch.
        return unchecked(entries, batch_size=self._size, device=self._device)


# -- many steps, written side by side as they happen -----------------------------------------------------------------


class Columns:
    """Room for so many steps of what a batch shows, in arrays ``[W, steps, ...]``."""

    def __init__(self, batch: Batch, observations: Observations, steps: int) -> None:
        arrays, self._nested = batch.arrays, observations.nested
        count = len(arrays.reward)
        self._batch, self._size = batch, (count, steps)
        self.leaves = [np.empty((count, steps, *leaf.shape[1:]), leaf.dtype) for leaf in arrays.observations]
        self.numbers = np.empty((len(batch.numbers), count, steps, 1), batch.numbers.dtype)
        self.flags = np.empty((3, count, steps, 1), bool)
        self.mask = None if arrays.mask is None else np.empty((count, steps, arrays.mask.shape[1]), bool)

    def write(self, t: int) -> None:
        """Takes in the batch as it stands at a step."""
        arrays: Any = self._batch.arrays
        for column, leaf in zip(self.leaves, arrays.observations):
            column[:, t] = leaf
        self.numbers[:, :, t], self.flags[:, :, t] = self._batch.numbers, arrays.flags
        if self.mask is not None:
            self.mask[:, t] = arrays.mask

    def follow(self, other: Columns, begun: list[int]) -> None:
        """Takes in every step but those in ``begun``, which it has: each shows what ``other`` showed one before it."""
        for first, end in zip(begun, [*begun[1:], self._size[1]]):
            here, before = slice(first + 1, end), slice(first, end - 1)
            for column, source in zip(self.leaves, other.leaves):
                column[:, here] = source[:, before]
            self.numbers[:, :, here], self.flags[:, :, here] = other.numbers[:, :, before], other.flags[:, :, before]
            if self.mask is not None and other.mask is not None:
                self.mask[:, here] = other.mask[:, before]

    def entries(self, rewards: bool) -> dict[str, Any]:
        """All steps as entries ``[W, steps, ...]`` of a tensordict."""
        reward, *known = map(torch.from_numpy, self.numbers)
        done, terminated, truncated = map(torch.from_numpy, self.flags)
        entries = {
            "observation": self._nested([*map(torch.from_numpy, self.leaves)], lambda part: _made(part, self._size)),
            "episode": _made(dict(zip(STATISTICS, known)), self._size),
            **{"done": done, "terminated": terminated, "truncated": truncated},
        }
        if rewards:
            entries["reward"] = reward
        if self.mask is not None:
            entries["action_mask"] = torch.from_numpy(self.mask)
        return entries


def collect(
    batch: Batch,
    observations: Observations,
    act: Act,
    steps: int,
    advance: Callable[[Array], None],
    restart: Callable[[], bool],
) -> TensorDict:
    """``[W, steps]`` as a collector makes it, without a tensordict for every step.

    Args:
        batch: at its current step.
        act: the policy.
        advance: takes actions ``[W, ...]`` and steps.
        restart: begins new episodes where they have ended, and tells whether there were any.
    """
    here, following = Columns(batch, observations, steps), Columns(batch, observations, steps)
    acted: list[dict[str, Tensor]] = []
    begun: list[int] = []  # steps that do not show what followed the one before
    restarted = True
    for t in range(steps):
        if restarted:
            here.write(t)
            begun.append(t)
        acted.append(act(*batch.seen))
        advance(acted[-1]["action"].numpy())
        following.write(t)
        restarted = restart()
    here.follow(following, begun)
    size = (len(batch.done), steps)
    entries = here.entries(rewards=False)
    entries |= {name: torch.stack([entry[name] for entry in acted], 1) for name in acted[0]}
    entries["next"] = _made(following.entries(rewards=True), size)
    return _made(entries, size)


def _made(entries: dict[str, Any], size: tuple[int, ...]) -> TensorDict:
    return unchecked(entries, batch_size=torch.Size(size), device=torch.device("cpu"))
