"""Sequences of equal length for recurrent agents, cut out of what a collector gathers."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from .flatten import WaitingSteps


def episode_starts(sequences: TensorDictBase) -> Tensor:
    """``[B, T]`` bool, steps before which an agent's memory is empty, of folded sequences ``[B, T]``.

    Those after the end of an episode, or after a step at which the agent was not active. The first column is False:
    what it begins with is stored beside it.
    """
    ended = sequences.get(("next", "done"))[:, :-1, 0] | ~sequences.get("active")[:, :-1]
    return torch.cat((torch.zeros_like(ended[:, :1]), ended), 1) if ended.shape[1] else ~sequences.get("active") & False


def cut(entries: TensorDictBase, length: int) -> TensorDictBase:
    """``[B, T]`` as ``[B * ceil(T / length), length]``; what is missing at the end of a row is not ``active``."""
    rows, time = entries.batch_size[:2]
    parts = -(-time // length)
    if parts * length > time:
        step = torch.arange(parts * length, device=entries.get("active").device)
        entries = entries[:, step.clamp(max=time - 1)]
        entries.set("active", entries.get("active") & (step < time))
    return entries.reshape(rows * parts, length)


class Windows(WaitingSteps):
    """Overlapping windows of a stream of sequences ``[B, T]`` whose rows go on from one call to the next.

    A window is what a recurrent agent learns from at once (Kapturowski et al. 2019): steps that only bring its
    memory up to date, those it learns from, and those that are needed for the returns of the last of these. Every
    step (but the very first) is learned from in one window.

    Args:
        burn_in: steps at the beginning that are not learned from.
        length: those that are.
        after: further ones.
        carry: False takes every call by itself, and fills up what is missing with steps that are not active.

    Attributes:
        following: for whoever works out the memory that belongs to the stream: what it was after the last call.
    """

    def __init__(self, burn_in: int, length: int, after: int, carry: bool = True) -> None:
        self.burn_in, self.length, self.carry = burn_in, length, carry
        self.total = burn_in + length + after
        self.following: Tensor | None = None

    def __call__(self, sequences: TensorDictBase) -> TensorDict:
        """Windows ``[N]`` that are complete by now, of entries ``[N, total, ...]``.

        Besides those of the sequences ``starts [N, total]`` (see :func:`episode_starts`); ``memory [N, M]`` is that of
        the first step. Windows with nothing to learn from are left out.
        """
        if self.carry and self._waiting is not None:
            sequences = torch.cat((self._waiting, sequences), 1)
        if not self.carry and sequences.shape[1] < self.total:
            sequences = cut(sequences, self.total)
        count = max((sequences.shape[1] - self.total) // self.length + 1, 0)
        if self.carry:
            self._waiting = sequences[:, count * self.length :].clone()
        return self._windows(sequences, count)

    def _windows(self, sequences: TensorDictBase, count: int) -> TensorDict:
        memory = sequences.get("memory")
        entries = sequences.exclude("memory", ("next", "memory")).set("starts", episode_starts(sequences))
        begins = torch.arange(count, device=memory.device) * self.length
        chosen = entries[:, (begins[:, None] + torch.arange(self.total, device=memory.device)).flatten()]
        windows = chosen.reshape(len(memory) * count, self.total)
        windows.batch_size = [len(memory) * count]
        windows.set("memory", memory[:, begins].flatten(0, 1))
        learned = windows.get("active")[:, self.burn_in : self.burn_in + self.length]
        return windows[learned.any(1)]

    def clear(self) -> None:
        super().clear()
        self.following = None
