"""PPO and A2C with a memory: they learn from whole sequences, each from the state in which it began."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from envs.world import MEMORY
from rlstack.data import cut, episode_starts
from rlstack.networks.recurrent import remembered
from rlstack.networks.segments import Segments

from ..mates import Mates
from ..on_policy import OnPolicy
from ..optimizer import Info
from .base import Recurrent


class RecurrentOnPolicy(Recurrent, OnPolicy):
    """An :class:`OnPolicy` agent with a memory.

    A batch is one of sequences ``[N]`` of ``sequence_length`` steps, of which the rollout is made up. Their first
    states are those that the policy had.
    """

    ACTING = "actor"

    # -- data ----------------------------------------------------------------------------------------------------

    def _values(self, observation: Any, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
        rows, time = sequences.batch_size
        following = sequences.get(("next", "observation"))
        entries = self._cut(TensorDict({"here": observation, "next": following}, [rows, time]), sequences)
        segments = Segments(entries.get("starts"), entries.get("active"), extended=True)
        core = self.memories[self._critic_memory]
        after = self.normalized(entries.get("next")[segments.ends])
        memory = self.part(entries.get(MEMORY), core.name)
        encoded = []
        for features in core.unroll(entries.get("here"), memory, segments, after):
            assert features is not None
            encoded.append(self.critic.encoder(remembered({core.name: features})))
        if self.mates is None:
            encoded = [self.critic.head(part) for part in encoded]
        here, then = (part.reshape(rows, -1, part.shape[-1])[:, :time] for part in encoded)
        if self.mates is None:
            return here, then
        self.mates.pieces = entries.exclude("next")
        value = self.mates.values(here)
        return value, self._next_values(value, sequences, lambda index: then[index])

    @property
    def _critic_memory(self) -> str:
        return "critic" if "critic" in self.memories else self.ACTING

    def _batch(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        batch = self._cut(entries, sequences)
        return batch[batch.get("active").any(1)]

    def _cut(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        """Entries ``[B, T]`` as sequences ``[N]``, with ``active`` and ``starts [N, L]`` and ``memory [N, M]``."""
        self.row_size = min(self.config.recurrent.sequence_length, sequences.batch_size[1])
        entries = entries.copy().set("active", sequences.get("active")).set("starts", episode_starts(sequences))
        batch = cut(entries, self.row_size)
        batch.batch_size = batch.batch_size[:1]
        return batch.set(MEMORY, sequences.get(MEMORY)[:, :: self.row_size].flatten(0, 1))

    # -- learning ------------------------------------------------------------------------------------------------

    def unrolled(self, batch: TensorDictBase) -> TensorDictBase:
        active = batch.get("active")
        segments = Segments(batch.get("starts"), active)
        observation, memory = batch.get("observation"), batch.get(MEMORY)
        features = {
            name: core.unroll(observation, self.part(memory, name), segments)[0][active]
            for name, core in self.memories.items()
        }
        apart = ("observation", "active", "starts", "share", MEMORY)
        entries = {key: value[active] for key, value in batch.items() if key not in apart}
        if self.mates is not None:
            entries["others"] = self._unrolled_others(self.mates, batch.get("place")[:, 0])[active]
        flat = remembered(features)
        return TensorDict._new_unsafe({"observation": flat, **entries}, batch_size=flat.batch_size)

    def _unrolled_others(self, mates: Mates, first: Tensor) -> Tensor:
        """What a central critic sees of the others in sequences that begin at some places ``[N]``, ``[N, L, V]``.

        Every agent of a world is unrolled once, however many of them are in the batch.
        """
        pieces = mates.pieces
        assert pieces is not None
        row, step = mates.row_and_step(first)
        per_row = len(pieces) // mates.rows
        together, which = (row // mates.agents * per_row + step // self.row_size).unique(return_inverse=True)
        rows = (together // per_row)[:, None] * mates.agents + torch.arange(mates.agents, device=first.device)
        chosen = pieces[(rows * per_row + (together % per_row)[:, None]).flatten()]
        active, core = chosen.get("active"), self.memories[self._critic_memory]
        segments = Segments(chosen.get("starts"), active)
        features, _ = core.unroll(chosen.get("here"), self.part(chosen.get(MEMORY), core.name), segments)
        encoded = self.critic.encoder(remembered({core.name: features}))
        worlds = (-1, mates.agents)
        return mates.among(encoded.unflatten(0, worlds), active.unflatten(0, worlds))[which, row % mates.agents]

    def _others(self, mates: Mates, batch: TensorDictBase) -> Tensor:
        return batch.get("others")

    def step(self, batch: TensorDictBase, report: bool = True) -> tuple[Tensor, Tensor, Info]:
        return super().step(self.shared_out(batch, batch.get("active")), report)

    def with_normalized_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        advantage, active = batch.get("advantage"), batch.get("active")
        if active.sum() < 2:
            return batch
        seen = advantage[active]
        return batch.copy().set("advantage", (advantage - seen.mean()) / (seen.std() + 1e-8))
