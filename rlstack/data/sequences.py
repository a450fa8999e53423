"""Sequences of equal length for recurrent agents, cut out of the batches of a collector."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from .flatten import WaitingSteps


def episode_starts(sequences: TensorDictBase) -> Tensor:
    """Returns ``[B, T]`` bool: steps of sequences ``[B, T]`` before which an agent's recurrent state is zero.

    These are the steps after the end of an episode, or after a step at which the agent was not active. The first column
    is False: its recurrent state is stored with the sequence.
    """
    ended = sequences.get(("next", "done"))[:, :-1, 0] | ~sequences.get("active")[:, :-1]
    return torch.cat((torch.zeros_like(ended[:, :1]), ended), 1) if ended.shape[1] else ~sequences.get("active") & False


def cut(entries: TensorDictBase, length: int) -> TensorDictBase:
    """Cuts ``[B, T]`` into ``[B * ceil(T / length), length]``; padding at the end of a row is not ``active``."""
    rows, time = entries.batch_size[:2]
    parts = -(-time // length)
    if parts * length > time:
        step = torch.arange(parts * length, device=entries.get("active").device)
        entries = entries[:, step.clamp(max=time - 1)]
        entries.set("active", entries.get("active") & (step < time))
    return entries.reshape(rows * parts, length)


class Windows(WaitingSteps):
    """Makes overlapping windows of a stream of sequences ``[B, T]`` whose rows continue from one call to the next.

    A window is an entry that a recurrent agent learns from (Kapturowski et al. 2019): steps that only bring its
    recurrent state up to date, steps that it learns from, and steps needed for the returns of the last of these. Every
    step (except the first ``burn_in`` of the stream) is learned from in one window.

    Args:
        burn_in: number of steps at the beginning that are not learned from.
        length: number of steps that are learned from.
        after: number of further steps.
        carry: False treats every call separately, and pads short sequences with steps that are not active.

    Attributes:
        following: the recurrent state after the last call, stored here by a user that computes it for the stream.
    """

    def __init__(self, burn_in: int, length: int, after: int, carry: bool = True) -> None:
        self.burn_in, self.length, self.carry = burn_in, length, carry
        self.total = burn_in + length + after
        self.following: Tensor | None = None

    def __call__(self, sequences: TensorDictBase) -> TensorDict:
        """Returns the windows ``[N]`` that are now complete, with entries ``[N, total, ...]``.

        These are the entries of the sequences and ``starts [N, total]`` (see :func:`episode_starts`); ``memory [N, M]``
        is that of the first step. Windows with nothing to learn from are left out.
        """
        if self.carry and self._waiting is not None:
            sequences = torch.cat((self._waiting, sequences), 1)
        if not self.carry and sequences.shape[1] < self.total:
            sequences = cut(sequences, self.total)
        count = max((sequences.shape[1] - self.total) // self.length + 1, 0)
        if self.carry:
            self._waiting = sequences[:, count * self.length :].clone()
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
