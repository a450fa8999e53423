"""Replay buffers on TorchRL's lazy tensor storage."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.writers import RoundRobinWriter


class Replay:
    """Uniform replay of flat transitions, with a state that fits into a checkpoint.

    Args:
        capacity: transitions kept, the oldest are overwritten.
        batch_size: of a sample, drawn with replacement.
        device: of storage and samples.
    """

    def __init__(self, capacity: int, batch_size: int, device: torch.device) -> None:
        self.capacity, self.batch_size = capacity, batch_size
        self._storage = LazyTensorStorage(capacity, device=device)
        self._writer = RoundRobinWriter()
        self._buffer = ReplayBuffer(
            storage=self._storage,
            sampler=RandomSampler(),
            writer=self._writer,
            collate_fn=lambda batch: batch,
            batch_size=batch_size,
        )

    def __len__(self) -> int:
        return len(self._storage)

    def extend(self, transitions: TensorDictBase) -> None:
        """Adds a flat batch ``[N]``; of more than ``capacity`` only the last count."""
        if len(transitions):
            self._buffer.extend(transitions[-self.capacity :])

    def sample(self) -> TensorDict:
        """A batch ``[batch_size]``, drawn with torch's global generator."""
        return self._buffer.sample()

    def state_dict(self) -> dict[str, Any]:
        """The filled part of the storage and the write position; views: save or copy before the next extend."""
        data = self._storage[:] if len(self) else TensorDict({}, batch_size=[0])
        return {"transitions": data.to_dict(), "writer": dict(self._writer.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a replay of the same capacity."""
        data = TensorDict(state["transitions"]).auto_batch_size_(1) if state["transitions"] else None
        self._buffer.empty()
        if data is not None:
            if len(data) > self.capacity:
                raise ValueError(f"a replay of {len(data)} transitions does not fit a capacity of {self.capacity}")
            self._buffer.extend(data)
        self._writer.load_state_dict(state["writer"])
