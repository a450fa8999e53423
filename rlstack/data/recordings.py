"""Recorded transitions: taken down while a policy acts, and kept in files of plain arrays.

A file is an ``.npz`` without pickles, a row for every decision, one episode after the other and each in its order:
``observation [N, ...]``, or ``observation/<leaf>`` of a structured one, ``action [N, ...]`` as the world takes it, and
of what followed ``next/observation``, ``next/reward [N, 1]``, ``next/terminated [N, 1]`` and ``next/truncated [N, 1]``;
``action_mask [N, n]`` and ``next/action_mask`` where the world has them. A row that is neither terminated nor truncated
is followed by the next decision of the same agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.whole_files import replacing

from .collector import stack_steps
from .flatten import flatten_agents, kept


class TransitionRecorder:
    """Takes down what the agents of batched worlds see, do and get.

    Args:
        group: key under which several agents stand, None for a single agent.
    """

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._steps: list[TensorDictBase] = []
        self._wanted: list[Tensor] = []
        self._finished: list[TensorDict] = []

    def add(self, step: TensorDictBase, wanted: Tensor) -> None:
        """Takes down what ``env.step`` returned, ``[W]``, of the worlds that are ``wanted [W]``."""
        self._steps.append(step)
        self._wanted.append(wanted)

    def end(self) -> None:
        """Nothing that is added from now on continues an episode."""
        if self._steps:
            batch = stack_steps(self._steps, len(self._steps[0].batch_size))
            self._finished.append(trajectories(batch, torch.stack(self._wanted, -1), self._group).cpu())
        self._steps, self._wanted = [], []

    def transitions(self) -> TensorDict:
        """All of them so far, ``[N]``, episode after episode, with the keys of a file.

        Raises:
            ValueError: there are none.
        """
        self.end()
        if not self._finished:
            raise ValueError("nothing was recorded")
        whole: Any = torch.cat(self._finished)
        return whole


def trajectories(batch: TensorDictBase, wanted: Tensor, group: str | None) -> TensorDict:
    """The transitions of a collector batch ``[W, T]`` as ``[N]``, one agent's after the other's.

    Args:
        batch: as :func:`rlstack.flatten_agents` takes it.
        wanted: ``[W, T]``, the steps that count; what follows one that does not is another episode.
        group: see :class:`TransitionRecorder`.
    """
    sequences = flatten_agents(batch, group)
    wanted = wanted.reshape(-1, wanted.shape[-1]).repeat_interleave(len(sequences) // wanted[..., 0].numel(), 0)
    there = sequences.get("active") & wanted
    following = sequences.get("next")
    goes_on = torch.zeros_like(there)
    goes_on[:, :-1] = there[:, 1:]
    after = following.select("observation", "reward", "terminated", "action_mask", strict=False)
    after.set("truncated", (following.get("done") | ~goes_on.unsqueeze(-1)) & ~following.get("terminated"))
    entries = sequences.select("observation", "action", "action_mask", strict=False).set("next", after)
    found: TensorDict = kept(entries, there)
    return found


def save_arrays(path: str | Path, data: TensorDictBase) -> None:
    """Writes a flat batch ``[N]`` as an ``.npz`` of its leaves, whose names join the keys by ``/``."""
    arrays: Any = {key: value.detach().cpu().numpy() for key, value in data.flatten_keys("/").items()}
    with replacing(path) as (partial,), partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def episode_lengths(ended: Tensor) -> list[int]:
    """Lengths of the episodes of decisions in their order, of which ``ended [N, 1]`` says which were last."""
    count, ends = len(ended), ended.reshape(-1).nonzero()[:, 0].tolist()
    if count and (not ends or ends[-1] != count - 1):
        ends.append(count - 1)
    return [end - start for start, end in zip([-1, *ends], ends)]


def in_rows(data: TensorDictBase) -> TensorDict:
    """The rewards of transitions ``[N]`` that stand one episode after the other, a row for each: ``[E, T]``.

    Returns ``next`` (``reward`` and ``done``) and ``active``, which is false behind the end of an episode.
    """
    following = data.get("next")
    reward, done = following.get("reward"), following.get("done")
    lengths = episode_lengths(done)
    there = torch.ones_like(done)
    rows = [pad_sequence(part.split(lengths), batch_first=True) for part in (reward, done, there)]
    entries = {"next": {"reward": rows[0], "done": rows[1]}, "active": rows[2][..., 0]}
    return TensorDict(entries, rows[0].shape[:2]).auto_batch_size_(2)


def continuous(data: TensorDictBase) -> bool:
    """True if each decision of an episode is made where the one before has led, exactly."""
    following = data.get("next")
    goes_on = ~(following.get("terminated") | following.get("truncated")).reshape(-1)[:-1]
    led, begun = following.get("observation"), data.get("observation")
    pairs = [(led, begun)] if isinstance(led, Tensor) else [(led.get(key), begun.get(key)) for key in _leaves(led)]
    return all(bool((one[:-1][goes_on] == other[1:][goes_on]).all()) for one, other in pairs)


def _leaves(observation: TensorDictBase) -> list[Any]:
    return list(observation.keys(include_nested=True, leaves_only=True))
