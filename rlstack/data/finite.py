"""Finds and names non-finite numbers in what worlds return and agents do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.envs.foundation.tensors import GROUP

LEARNED_FROM = frozenset({"observation", "action", "reward", "raw_action", "log_prob", "memory"})
"""The entries of a batch that agents learn from; others matter only to the world."""
_HALF = (torch.float16, torch.bfloat16)


class Finding(NamedTuple):
    """The first non-finite number of a batch ``[W, T]``, with its entry, step, world and agent."""

    step: int
    stage: int
    name: str
    world: int
    agent: int | None
    value: float

    def __str__(self) -> str:
        agent = "" if self.agent is None else f", agent {self.agent}"
        return f"{self.name} is {self.value} in world {self.world}{agent}, step {self.step} of the batch"


def find(batch: TensorDictBase, only: frozenset[str] = LEARNED_FROM) -> Finding | None:
    """Finds the first non-finite number of a batch ``[W, T]``: by step, then observation, action and results.

    Args:
        only: entries to check; all if it is empty.
    """
    bad = ((key, value) for key, value in leaves(batch, only) if not torch.isfinite(value).all())
    return min((_first(key, value) for key, value in bad), default=None)


def _first(key: tuple[str, ...], value: Tensor) -> Finding:
    bad = ~torch.isfinite(value)
    steps = bad.flatten(2).any(-1) if bad.dim() > 2 else bad
    step = int(steps.any(0).int().argmax())
    world = int(steps[:, step].int().argmax())
    entry, wrong = value[world, step], bad[world, step]
    agent = int(wrong.nonzero()[0, 0]) if GROUP in key else None
    stage = 2 if key[0] == "next" else int("observation" not in key)
    return Finding(step, stage, ".".join(key), world, agent, float(entry[wrong][0]))


def leaves(
    batch: TensorDictBase, only: frozenset[str], above: tuple[str, ...] = (), within: bool = False
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yields keys and values of floating-point leaves under the names in ``only``, faster than nested ``items()``."""
    for key, value in batch.items():
        chosen = within or not only or key in only
        if not isinstance(value, Tensor):
            yield from leaves(value, only, (*above, key), chosen)
        elif chosen and value.is_floating_point():
            yield (*above, key), value


def sums_of(values: list[Tensor]) -> list[Tensor]:
    """Returns the sum of each tensor (0-d)."""
    return [value.sum(dtype=torch.float32 if value.dtype in _HALF else None) for value in values]


def total_of(values: list[Tensor]) -> Tensor:
    """Returns the sum of all numbers in some tensors (0-d, float64)."""
    return torch.stack([one.double() for one in sums_of(values)]).sum()


class Sum:
    """The sum of all numbers in some tensors, finite only if all of them are; fetched from a GPU without waiting.

    Args:
        total: :func:`total_of`, which may be recorded.
    """

    def __init__(self, values: list[Tensor], total: Callable[[list[Tensor]], Tensor] = total_of) -> None:
        self._event: torch.cuda.Event | None = None
        self.of_gpu = bool(values) and values[0].is_cuda
        if self.of_gpu:
            summed = total(values)
            self._host = torch.empty_like(summed, device="cpu", pin_memory=True).copy_(summed, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._total = sum(one.item() for one in sums_of(values))

    def is_there(self) -> bool:
        """Returns True if the sum can be read without waiting."""
        return self._event is None or self._event.query()

    def is_finite(self) -> bool:
        """Returns True if the sum is finite; waits for it if necessary."""
        if self._event is None:
            return math.isfinite(self._total)
        self._event.synchronize()
        return math.isfinite(self._host.item())
