"""Recorded transitions: collected while a policy acts, and stored in files of plain arrays.

A file is an ``.npz`` without pickles, with a row for every decision, in order, one episode after another:
``observation [N, ...]``, or ``observation/<leaf>`` of a structured one; ``action [N, ...]`` in the world's form;
``next/observation``, ``next/reward [N, 1]``, ``next/terminated [N, 1]`` and ``next/truncated [N, 1]`` for what
followed; and ``action_mask [N, n]`` and ``next/action_mask`` where the world has them. A row that is neither terminated
nor truncated is followed by the next decision of the same agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlstack.envs.foundation.files import replacing

from .collector import stack_steps
from .flatten import flatten_agents, kept


class TransitionRecorder:
    """Records the observations, actions and rewards of agents in batched worlds.

    Args:
        group: key of the group of agents in a tensordict; None for a single agent.
    """

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._steps: list[TensorDictBase] = []
        self._wanted: list[Tensor] = []
        self._finished: list[TensorDict] = []

    def add(self, step: TensorDictBase, wanted: Tensor) -> None:
        """Records what ``env.step`` returned, ``[W]``, for the worlds in ``wanted [W]``."""
        self._steps.append(step)
        self._wanted.append(wanted)

    def end(self) -> None:
        """Ends all episodes: steps that are added later do not continue them."""
        if self._steps:
            batch = stack_steps(self._steps, len(self._steps[0].batch_size))
            self._finished.append(trajectories(batch, torch.stack(self._wanted, -1), self._group).cpu())
        self._steps, self._wanted = [], []

    def transitions(self) -> TensorDict:
        """Returns all transitions so far, ``[N]``, episode after episode, with the keys of a file.

        Raises:
            ValueError: there are none.
        """
        self.end()
        if not self._finished:
            raise ValueError("nothing was recorded")
        whole: Any = torch.cat(self._finished)
        return whole


def trajectories(batch: TensorDictBase, wanted: Tensor, group: str | None) -> TensorDict:
    """Returns the transitions of a collector batch ``[W, T]`` as ``[N]``, agent by agent.

    Args:
        batch: as taken by :func:`rlstack.flatten_agents`.
        wanted: ``[W, T]``, the steps that count; after one that does not, a new episode begins.
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
    flat: TensorDict = kept(entries, there)
    return flat


def save_arrays(path: str | Path, data: TensorDictBase) -> None:
    """Writes a flat batch ``[N]`` as an ``.npz`` of its leaves, named by their keys joined with ``/``."""
    arrays: Any = {key: value.detach().cpu().numpy() for key, value in data.flatten_keys("/").items()}
    with replacing(path) as (partial,), partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def episode_lengths(ended: Tensor) -> list[int]:
    """Returns the lengths of episodes in order, given the flags ``ended [N, 1]`` of their last decisions."""
    count, ends = len(ended), ended.reshape(-1).nonzero()[:, 0].tolist()
    if count and (not ends or ends[-1] != count - 1):
        ends.append(count - 1)
    return [end - start for start, end in zip([-1, *ends], ends)]


def in_rows(data: TensorDictBase) -> TensorDict:
    """Arranges the rewards of transitions ``[N]``, given episode after episode, in one row per episode: ``[E, T]``.

    Returns ``next`` (``reward`` and ``done``) and ``active``, which is False after the end of an episode.
    """
    following = data.get("next")
    reward, done = following.get("reward"), following.get("done")
    lengths = episode_lengths(done)
    there = torch.ones_like(done)
    rows = [pad_sequence(part.split(lengths), batch_first=True) for part in (reward, done, there)]
    entries = {"next": {"reward": rows[0], "done": rows[1]}, "active": rows[2][..., 0]}
    return TensorDict(entries, rows[0].shape[:2]).auto_batch_size_(2)


def continuous(data: TensorDictBase) -> bool:
    """Returns True if within episodes each observation is exactly the next observation of the decision before."""
    following = data.get("next")
    goes_on = ~(following.get("terminated") | following.get("truncated")).reshape(-1)[:-1]
    led, begun = following.get("observation"), data.get("observation")
    keys = () if isinstance(led, Tensor) else led.keys(include_nested=True, leaves_only=True)
    pairs = [(led.get(key), begun.get(key)) for key in keys] or [(led, begun)]
    return all(bool((one[:-1][goes_on] == other[1:][goes_on]).all()) for one, other in pairs)
