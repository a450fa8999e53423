"""What the processes of one run (ranks) tell each other: their parts of batches and gradients, and what all do next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.config.errors import RunError
from rlstack.networks.draws import part_of_rows

from .messages import from_file, to_file


class Ranks:
    """This process among those that learn together. What it sends is read back without pickle.

    Every method must be called by all of them, in the same order.

    Attributes:
        index: of this process, from 0.
        count: how many there are.
    """

    def __init__(self) -> None:
        self.index, self.count = dist.get_rank(), dist.get_world_size()

    @property
    def first(self) -> bool:
        """This is the process that writes files and speaks."""
        return self.index == 0

    # -- rows ----------------------------------------------------------------------------------------------------

    def part(self, total: int) -> slice:
        """The own one of nearly equal parts of so many rows; all of them where there are fewer than processes."""
        if total < self.count:
            return slice(0, total)
        return slice(total * self.index // self.count, total * (self.index + 1) // self.count)

    def drawing(self, total: int) -> AbstractContextManager[None]:
        """In it, random numbers for the own :meth:`part` are those that one process would draw for its rows."""
        rows = self.part(total)
        return part_of_rows(rows.start, rows.stop - rows.start, total)

    def gather(self, batch: TensorDictBase) -> TensorDict:
        """Batches ``[N, ...]`` of all processes, of one shape, as one ``[count * N, ...]``, in their order."""
        entries = {
            key: self.gather(value) if isinstance(value, TensorDictBase) else self._gathered(value)
            for key, value in batch.items()
        }
        size = torch.Size((batch.batch_size[0] * self.count, *batch.batch_size[1:]))
        return TensorDict._new_unsafe(entries, batch_size=size, device=batch.device)

    def _gathered(self, value: Tensor) -> Tensor:
        own = value.contiguous().flatten().view(torch.uint8)  # any type: not every backend knows them all
        everyone = own.new_empty(self.count * own.numel())
        _together(lambda: dist.all_gather(list(everyone.chunk(self.count)), own))
        return everyone.view(value.dtype).view(self.count * len(value), *value.shape[1:])

    # -- numbers -------------------------------------------------------------------------------------------------

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over the processes, in one message, of the first tensor's type."""
        flat = torch.cat([tensor.detach().flatten().to(tensors[0].dtype) for tensor in tensors])
        _together(lambda: dist.all_reduce(flat))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors)]

    def any(self, flag: bool) -> bool:
        """Whether it is true for one of them."""
        return bool(self.sum([torch.tensor(float(flag))])[0])

    def of_first(self, value: float) -> float:
        """The first process's number."""
        number = torch.tensor(value, dtype=torch.float64)
        self._send_first(number)
        return float(number)

    def follow_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites tensors with those of the first process."""
        for tensor in tensors:
            self._send_first(tensor.data)

    def follow_random_numbers(self, device: torch.device) -> None:
        """Puts torch's generators, of the CPU and this device, where those of the first process are."""
        state = torch.get_rng_state()
        self._send_first(state)
        torch.set_rng_state(state)
        if device.type == "cuda":
            state = torch.cuda.get_rng_state(device)
            self._send_first(state)
            torch.cuda.set_rng_state(state, device)

    @staticmethod
    def _send_first(tensor: Tensor) -> None:
        _together(lambda: dist.broadcast(tensor, 0))

    def states(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        """Nested dicts of tensors and numbers of all processes, for the first one; its own alone for the others."""
        own = torch.frombuffer(bytearray(to_file(state)), dtype=torch.uint8)
        sizes = [int(size) for size in self._gathered(torch.tensor([len(own)]))]
        padded = own.new_zeros(max(sizes))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in sizes] if self.first else None
        _together(lambda: dist.gather(padded, parts))
        if parts is None:
            return [state]
        return [from_file(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes)]


def _together(send: Callable[[], Any]) -> None:
    try:
        send()
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "onnection" in str(error) or "imed out" in str(error):
            raise RunError("another process of this run has ended, so this one does, too") from error
        raise
