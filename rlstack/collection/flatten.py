"""From the env's layout to the learner's: agents folded into the batch, n-step returns, transitions."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

_ROOT = ("observation", "action")
_NEXT = ("observation", "reward", "terminated", "done")


def flatten_agents(batch: TensorDictBase, group: str | None = "agents") -> TensorDict:
    """Folds the agent axis into the batch.

    An agent's episode also ends with its world's, whatever the agent's own flags say: what follows is another one.

    Args:
        batch: what a collector yields, ``[W, T]``, agents under ``group`` with shape ``[W, T, A, ...]``; for a
            single-agent env ``group=None``. An unbatched env's ``[T]`` is taken as one world.

    Returns ``[W*A, T]`` (or ``[W, T]``) with ``observation``, ``action``, ``next`` (``observation``, ``reward``,
    ``terminated``, ``done``, the last two ``[..., 1]``) and ``active [.., T]`` bool: entries to learn from.
    """
    if batch.ndim != 2:
        batch = batch.reshape(-1, batch.shape[-1])
    if group is None:
        flat = batch.select(*_ROOT, *(("next", key) for key in _NEXT))
        flat.set("active", torch.ones(batch.shape, dtype=torch.bool, device=batch.device))
        return flat
    here, following = batch.get(group), batch.get(("next", group))
    worlds, time, agents = here.shape

    def fold(part: TensorDictBase, keys: tuple[str, ...]) -> TensorDict:
        folded = part.select(*keys).transpose(1, 2)
        return folded.reshape(worlds * agents, time)

    flat = fold(here, (*_ROOT, "active"))
    flat.set("next", fold(following, _NEXT))
    world_done: Tensor = batch.get(("next", "done"))
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
    bootstrapped = following.select("observation", "terminated", "done")[rows, last] if n > 1 else following.copy()
    result.set("next", bootstrapped.set("reward", total))
    result.set("gamma", discount)
    return result


def transitions(sequences: TensorDictBase) -> TensorDict:
    """Active entries of ``[B, T]`` as a flat batch ``[N]``."""
    active: Tensor = sequences.get("active")
    return sequences.exclude("active")[active]
