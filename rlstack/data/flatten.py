"""The way from the env's layout to the learner's: agents folded into the batch, n-step returns, transitions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.keys import GROUP
from envs.tensordicts import unchecked

_ROOT = ("observation", "action", "action_mask", "raw_action", "log_prob", "memory")
_NEXT = ("observation", "reward", "terminated", "done", "action_mask", "memory")
STAYS = ("next", "active")
"""Key, of agents in a group, of who is there after a step."""


def flatten_agents(batch: TensorDictBase, group: str | None = GROUP) -> TensorDict:
    """Folds the agent axis into the batch.

    An agent's episode also ends with its world's episode, whatever the agent's own flags say.

    Args:
        batch: of a collector, ``[W, T]``, agents under ``group`` with shape ``[W, T, A, ...]``; for a
            single-agent env ``group=None``, or a batch without that group. An unbatched env's ``[T]`` counts as
            one world.

    Returns ``[W*A, T]`` (or ``[W, T]``) with ``observation``, ``action``, ``next`` (``observation``, ``reward``,
    ``terminated``, ``done``, the last two ``[..., 1]``) and ``active [.., T]`` bool: entries to learn from (for agents
    in a group also in ``next``: those present after the step); if there are any, also ``action_mask`` (here and
    next), and a policy's further entries: ``raw_action``, ``log_prob`` and ``memory`` (here and next).
    """
    if batch.ndim != 2:
        batch = batch.reshape(-1, batch.shape[-1])
    world_done: Tensor = batch.get(("next", "done"))
    device = world_done.device  # TorchRL's own loop, which runs on a GPU, gives its batches none
    if group is None or group not in batch.keys():  # noqa: SIM118
        flat = _selected(batch, _ROOT)
        flat["next"] = _made(_selected(batch.get("next"), _NEXT), batch, device)
        flat["active"] = torch.ones(batch.shape, dtype=torch.bool, device=device)
        return _made(flat, batch, device)
    here, following = batch.get(group), batch.get(("next", group))
    worlds, time, agents = here.shape

    def fold(part: TensorDictBase, keys: tuple[str, ...]) -> TensorDict:
        folded = part.select(*keys, strict=False).transpose(1, 2).reshape(worlds * agents, time)
        return _made(dict(folded.items()), folded, device)

    flat = fold(here, (*_ROOT, "active"))
    flat.set("next", fold(following, (*_NEXT, "active")))
    flat.set(("next", "done"), flat.get(("next", "done")) | world_done.repeat_interleave(agents, 0))
    return flat


def n_step_returns(sequences: TensorDictBase, n: int, gamma: float) -> TensorDict:
    """Replaces one-step by n-step transitions (Sutton 1988), never across an episode's end or another agent's data.

    Args:
        sequences: ``[B, T]`` from :func:`flatten_agents`.

    Returns ``[B, T]`` with ``next`` replaced: ``reward`` the discounted sum of up to n rewards, ``observation``,
    ``terminated`` and ``done`` of the last step used, and ``gamma [B, T, 1]``, the discount of its bootstrap.
    An episode that ends, and the end of the sequence, shorten n.
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
    """All n steps that begin with each step, for returns that are worked out as they are learned from (Retrace).

    Args:
        sequences: ``[B, T]`` from :func:`flatten_agents`, with the ``log_prob`` of their actions where it is needed.

    Returns ``[B, T]`` with ``next`` replaced by what followed each of the steps, ``[B, T, n, ...]``, and beside it the
    ``action`` taken there and its ``log_prob``. A window ends with an episode, or with the sequence, by ``done``; what
    it holds after that is of no meaning.
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
    """The last steps of a stream of sequences ``[B, T]``, which wait for those of the next call."""

    _waiting: TensorDictBase | None = None

    def clear(self) -> None:
        """Forgets what waits: the next sequences start new episodes."""
        self._waiting = None

    def state_dict(self) -> dict[str, Any]:
        """The steps that wait."""
        return {} if self._waiting is None else {"waiting": self._waiting.to_dict()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str | None = None) -> None:
        """Restores :meth:`state_dict`, on the device of the sequences to come."""
        waiting = state.get("waiting")
        self._waiting = None if waiting is None else TensorDict(waiting, device=device).auto_batch_size_(2)


class NStep(WaitingSteps):
    """n-step transitions of a stream of sequences ``[B, T]`` whose rows go on from one call to the next.

    The last n - 1 steps of a call wait for the next one, so that no return is shorter than n unless its episode is.

    Args:
        n: rewards summed before bootstrapping.
        gamma: discount.
        carry: False takes every call by itself; returns at the end of a sequence are then shorter.
    """

    def __init__(self, n: int, gamma: float, carry: bool = True) -> None:
        self.n, self.gamma, self.carry = n, gamma, carry

    def __call__(self, sequences: TensorDictBase) -> TensorDictBase:
        """``[B, T']`` as :func:`n_step_returns` gives; with n = 1 the sequences themselves, without ``gamma``."""
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
        """What is made of sequences ``[B, T]`` that are taken by themselves."""
        return n_step_returns(sequences, self.n, self.gamma)


class NStepWindows(NStep):
    """The same with :func:`n_step_windows` in the place of returns."""

    def ahead(self, sequences: TensorDictBase) -> TensorDict:
        return n_step_windows(sequences, self.n)


def transitions(sequences: TensorDictBase, everyone: bool = False) -> TensorDict:
    """Active entries of ``[B, T]`` as a flat batch ``[N]``; all entries where ``everyone`` is known to be active."""
    if everyone:
        return _flat(sequences, ("active",))
    return kept(sequences.exclude("active"), sequences.get("active"))


def kept(entries: Any, active: Tensor) -> Any:
    """The entries ``[N, ...]`` of a tensor or tensordict ``[B, T, ...]`` that are ``active [B, T]``.

    What indexing by ``active`` gives; but that asks a GPU how many there are once for every tensor, this once for all.
    """
    return _rows(entries, active.flatten().nonzero()[:, 0])


def _rows(entries: Any, index: Tensor) -> Any:
    if isinstance(entries, Tensor):
        return entries.flatten(0, 1).index_select(0, index)
    size = torch.Size([len(index), *entries.batch_size[2:]])
    return TensorDict({key: _rows(value, index) for key, value in entries.items()}, size, entries.device)


def _flat(sequences: TensorDictBase, without: tuple[str, ...] = ()) -> TensorDict:
    """``[B, T]`` as ``[B*T]``; what ``reshape(-1)`` gives, at half its cost for small batches."""
    entries = {
        key: _flat(value) if isinstance(value, TensorDictBase) else value.flatten(0, 1)
        for key, value in sequences.items()
        if key not in without
    }
    rows = sequences.batch_size[:2].numel()  # numel() of a tensordict without rows is one
    return unchecked(entries, batch_size=torch.Size([rows]), device=sequences.device)


def _selected(part: TensorDictBase, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key in keys}


def _made(entries: dict[str, Any], like: TensorDictBase, device: torch.device) -> TensorDict:
    # The public constructor checks every entry, which small batches feel.
    return unchecked(entries, batch_size=like.batch_size, device=device)
