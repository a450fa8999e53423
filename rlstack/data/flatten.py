"""Converts the env's layout to the learner's: flattened agents, n-step returns, sequences, transitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.envs.foundation.tensors import GROUP, STATE, unchecked

_ROOT = ("observation", "action", "action_mask", "raw_action", "log_prob", "memory", STATE)
_NEXT = ("observation", "reward", "terminated", "done", "action_mask", "memory", STATE)
STAYS = ("next", "active")
"""Key of the flags that say which agents of a group are present after a step."""
COUNTS = "counts"
"""Key of the flags that say which entries of a flat batch to learn from, where it holds others, too."""


def flatten_agents(batch: TensorDictBase, group: str | None = GROUP) -> TensorDict:
    """Flattens the agent axis into the batch.

    An agent's episode also ends with its world's episode, whatever the agent's own flags say.

    Args:
        batch: batch of a collector, ``[W, T]``, with agents under ``group`` in the shape ``[W, T, A, ...]``.
            A batch ``[T]`` of an unbatched env counts as one world.
        group: key of the agents; None for a single-agent env, whose batches may also just lack the group.

    Returns ``[W*A, T]`` (or ``[W, T]``) with ``observation``, ``action``, ``next`` (``observation``, ``reward``,
    ``terminated``, ``done``, the last two ``[..., 1]``) and ``active [.., T]`` bool: entries to learn from (for agents
    in a group also in ``next``: those present after the step); and, if present, ``action_mask`` and ``state`` (here and
    next) and a policy's further entries: ``raw_action``, ``log_prob`` and ``memory`` (here and next).
    """
    if batch.ndim != 2:
        batch = batch.reshape(-1, batch.shape[-1])
    world_done: Tensor = batch.get(("next", "done"))
    device = world_done.device  # batches of TorchRL's own loop, used on a GPU, have none
    if group is None or group not in batch.keys():  # noqa: SIM118
        # The public constructor checks every entry, which is slow for small batches.
        following = {key: value for key, value in batch.get("next").items() if key in _NEXT}
        entries: dict[str, Any] = {key: value for key, value in batch.items() if key in _ROOT}
        entries["next"] = _of_fractions(unchecked(following, batch_size=batch.batch_size, device=device))
        entries["active"] = torch.ones(batch.shape, dtype=torch.bool, device=device)
        return unchecked(entries, batch_size=batch.batch_size, device=device)
    here = batch.get(group)
    worlds, time, agents = here.shape

    def fold(part: TensorDictBase, keys: tuple[str, ...]) -> TensorDict:
        folded = part.select(*keys, strict=False).transpose(1, 2).reshape(worlds * agents, time)
        return unchecked(dict(folded.items()), batch_size=folded.batch_size, device=device)

    flat = fold(here, (*_ROOT, "active"))
    flat.set("next", _of_fractions(fold(batch.get(("next", group)), (*_NEXT, "active"))))
    flat.set(("next", "done"), flat.get(("next", "done")) | world_done.repeat_interleave(agents, 0))
    return flat


def _of_fractions(following: TensorDict) -> TensorDict:
    """Converts whole rewards of a world that counts: as whole numbers, discounts and discounted sums would be zero."""
    reward = following.get("reward", None)
    if reward is not None and not reward.is_floating_point():
        following.set("reward", reward.to(torch.get_default_dtype()))
    return following


def n_step_returns(sequences: TensorDictBase, n: int, gamma: float) -> TensorDict:
    """Replaces one-step by n-step transitions (Sutton 1988), which never cross an episode's end or a row.

    Args:
        sequences: ``[B, T]`` from :func:`flatten_agents`.

    Returns ``[B, T]`` with ``next`` replaced: ``reward`` is the discounted sum of up to n rewards; ``observation``,
    ``terminated`` and ``done`` are those of the last step used; ``gamma [B, T, 1]`` is the discount of its bootstrap.
    The end of an episode or of the sequence shortens n.
    """
    following = sequences.get("next")
    reward, done = following.get("reward"), following.get("done")
    time = reward.shape[1]
    last = torch.arange(time, device=reward.device).expand(reward.shape[:2]).clone()
    total, discount = reward.clone(), torch.full_like(reward, gamma)
    running = ~done.clone()
    for k in range(1, min(n, time)):
        grows = torch.zeros_like(running)
        grows[:, :-k] = running[:, :-k]
        shifted = torch.zeros_like(reward)
        shifted[:, :-k] = reward[:, k:]
        total = total + torch.where(grows, discount * shifted, 0.0)
        discount = torch.where(grows, discount * gamma, discount)
        last = last + grows[..., 0]
        ended = torch.ones_like(done)
        ended[:, :-k] = done[:, k:]
        running = grows & ~ended
    result = sequences.copy()
    rows = torch.arange(len(reward), device=reward.device)[:, None]
    bootstrapped = following.exclude("reward")[rows, last] if n > 1 else following.copy()
    result.set("next", bootstrapped.set("reward", total))
    result.set("gamma", discount)
    return result


def n_step_windows(sequences: TensorDictBase, n: int) -> TensorDict:
    """Stores with each step the n steps that begin there, for returns computed when learning from them (Retrace).

    Args:
        sequences: ``[B, T]`` from :func:`flatten_agents`, with the ``log_prob`` of their actions where it is needed.

    Returns ``[B, T]`` with ``next`` replaced by what followed each of the n steps, ``[B, T, n, ...]``, including the
    ``action`` taken there and its ``log_prob``. ``done`` marks the end of a window at the end of an episode or of the
    sequence; its contents after that are meaningless.
    """
    following, device = sequences.get("next"), sequences.get("action").device
    last = sequences.shape[1] - 1
    step = torch.arange(last + 1, device=device).unsqueeze(-1) + torch.arange(n, device=device)
    windows = following[:, step.clamp(max=last)]
    windows.batch_size = sequences.batch_size
    windows.set("done", windows.get("done") | (step >= last).unsqueeze(-1))
    for name in ("action", "log_prob"):
        if name in sequences.keys():  # noqa: SIM118
            windows.set(name, sequences.get(name)[:, (step + 1).clamp(max=last)])
    return sequences.exclude("log_prob", "next").set("next", windows)


class WaitingSteps:
    """Keeps the last steps of a stream of sequences ``[B, T]``, which wait for those of the next call."""

    _waiting: TensorDictBase | None = None

    def clear(self) -> None:
        """Discards the waiting steps: the next sequences start new episodes."""
        self._waiting = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the waiting steps."""
        return {} if self._waiting is None else {"waiting": self._waiting.to_dict()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str | None = None) -> None:
        """Restores :meth:`state_dict`, on the device of the sequences to come."""
        waiting = state.get("waiting")
        self._waiting = None if waiting is None else TensorDict(waiting, device=device).auto_batch_size_(2)


@dataclass(eq=False)
class NStep(WaitingSteps):
    """Makes n-step transitions of a stream of sequences ``[B, T]`` whose rows continue from one call to the next.

    The last n - 1 steps of a call wait for the next one, so that only the end of an episode shortens a return.

    Args:
        n: the number of rewards summed before bootstrapping.
        gamma: discount.
        carry: False treats every call separately; returns at the end of a sequence are then shorter.
    """

    n: int
    gamma: float
    carry: bool = True

    def __call__(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns ``[B, T']`` as in :func:`n_step_returns`; with n = 1 the sequences themselves, without ``gamma``."""
        if self.n == 1:
            return sequences
        if not self.carry:
            return self.ahead(sequences)
        if self._waiting is not None:
            sequences = torch.cat((self._waiting, sequences), 1)
        ready = max(sequences.shape[1] - self.n + 1, 0)
        self._waiting = sequences[:, ready:].clone()
        return self.ahead(sequences)[:, :ready]

    def ahead(self, sequences: TensorDictBase) -> TensorDict:
        """Returns the transitions made from sequences ``[B, T]`` on their own."""
        return n_step_returns(sequences, self.n, self.gamma)


class NStepWindows(NStep):
    """Makes windows of n steps (:func:`n_step_windows`) of a stream, as :class:`NStep` makes transitions."""

    def ahead(self, sequences: TensorDictBase) -> TensorDict:
        return n_step_windows(sequences, self.n)


# -- sequences of equal length for recurrent agents -------------------------------------------------------------------


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


# -- flat batches ------------------------------------------------------------------------------------------------------


def transitions(sequences: TensorDictBase, everyone: bool = False) -> TensorDict:
    """Returns active entries of ``[B, T]`` as a flat batch ``[N]``: all if ``everyone`` is known to be active."""
    if everyone:
        return _flat(sequences, ("active",))
    return kept(sequences.exclude("active"), sequences.get("active"))


def kept(entries: Any, active: Tensor) -> Any:
    """Returns the entries ``[N, ...]`` of a tensor or tensordict ``[B, T, ...]`` that are ``active [B, T]``.

    The result equals indexing by ``active``, which waits for their number on a GPU for every tensor; this waits once.
    """
    return _rows(entries, active.flatten().nonzero()[:, 0])


def whole(entries: TensorDictBase, active: Tensor) -> TensorDict:
    """Returns all entries of ``[B, T]`` as a flat batch ``[B*T]``; nothing waits for the number of those to learn from.

    These are the active ones, for which the further entry ``counts [B*T]`` (bool) is True. The others are copies of the
    first of them, so that they hold ordinary numbers.
    """
    flat = active.flatten()
    own = torch.arange(len(flat), device=flat.device)
    rows: TensorDict = _rows(entries, torch.where(flat, own, flat.to(torch.uint8).argmax()))
    return rows.set(COUNTS, flat)


def _rows(entries: Any, index: Tensor) -> Any:
    if isinstance(entries, Tensor):
        return entries.flatten(0, 1).index_select(0, index)
    size = torch.Size([len(index), *entries.batch_size[2:]])
    return TensorDict({key: _rows(value, index) for key, value in entries.items()}, size, entries.device)


def _flat(sequences: TensorDictBase, without: tuple[str, ...] = ()) -> TensorDict:
    """Reshapes ``[B, T]`` to ``[B*T]`` like ``reshape(-1)``, at half its cost for small batches."""
    entries = {
        key: _flat(value) if isinstance(value, TensorDictBase) else value.flatten(0, 1)
        for key, value in sequences.items()
        if key not in without
    }
    rows = sequences.batch_size[:2].numel()  # numel() of a tensordict without rows is one
    return unchecked(entries, batch_size=torch.Size([rows]), device=sequences.device)
