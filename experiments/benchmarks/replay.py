"""Compares our replay buffer with TorchRL's: ``python -m experiments.benchmarks.replay``.

It prints the CPU time in microseconds, with one thread, of writing transitions of CartPole's size into a buffer of
100,000 and of drawing a batch. ``plain`` is copying alone, in a dict of tensors, a lower bound. The buffers alternate,
so that other load on the machine affects all of them; numbers are medians over rounds.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl import logger as torchrl_logger
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

from rlstack.data.replay import make_replay
from rlstack.training.environment import machine

from .timing import in_turns

CAPACITY, FILLED = 100_000, 50_000
SIZES = ((4, 64), (8, 256), (4096, 256))
WAYS = ("plain", "ours", "ours, by priority", "TorchRL")
_ROUNDS, _CALLS = 15, 100


def transitions(count: int) -> TensorDict:
    """Transitions as agents store them."""
    ends = torch.zeros(count, 1, dtype=torch.bool)
    following = {
        "observation": torch.randn(count, 4),
        "reward": torch.randn(count, 1),
        "terminated": ends,
        "done": ends,
    }
    action = torch.zeros(count, dtype=torch.int64)
    return TensorDict({"observation": torch.randn(count, 4), "action": action, "next": following}, [count])


class Plain:
    """The copies that every uniform buffer needs."""

    def __init__(self, batch_size: int) -> None:
        leaves = transitions(1).items(True, True)
        self.leaves = {key: torch.empty(CAPACITY, *leaf.shape[1:], dtype=leaf.dtype) for key, leaf in leaves}
        self.batch_size, self.cursor = batch_size, 0

    def extend(self, data: dict[Any, Tensor]) -> None:
        """Writes a batch."""
        count = len(next(iter(data.values())))
        self.cursor = 0 if self.cursor + count > CAPACITY else self.cursor
        for key, value in data.items():
            self.leaves[key][self.cursor : self.cursor + count] = value
        self.cursor += count

    def sample(self) -> dict[Any, Tensor]:
        """Draws a batch."""
        index = torch.randint(FILLED, (self.batch_size,))
        return {key: leaf.index_select(0, index) for key, leaf in self.leaves.items()}


def main() -> None:
    """Measures and prints."""
    warnings.simplefilter("ignore")
    torchrl_logger.setLevel("WARNING")
    torch.set_num_threads(1)
    print(f"CPU microseconds, 1 thread, {machine()}")
    print(f"| written / drawn | | {' | '.join(WAYS)} | ratio to ours |")
    print("|---|---|---|---|---|---|---|")
    for rows, batch_size in SIZES:
        data = [transitions(rows) for _ in range(4)]  # TorchRL's leaves positions in its own
        plain = Plain(batch_size)
        buffers = [
            make_replay(CAPACITY, batch_size),
            make_replay(CAPACITY, batch_size, sampler="prioritized"),
            TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=batch_size),
        ]
        for buffer in buffers:
            buffer.extend(transitions(FILLED))
        calls: dict[str, list[Callable[[], object]]] = {
            "extend": [
                partial(plain.extend, dict(data[0].items(True, True))),
                *(partial(buffer.extend, own) for buffer, own in zip(buffers, data[1:])),
            ],
            "sample": [plain.sample, *(buffer.sample for buffer in buffers)],
        }
        for name, functions in calls.items():
            times = in_turns(dict(zip(WAYS, functions)), _ROUNDS + 1, _CALLS)
            us = {way: 1e6 * statistics.median(seconds[1:]) for way, seconds in times.items()}
            numbers = " | ".join(f"{value:.0f}" for value in us.values())
            print(f"| {rows} / {batch_size} | {name} | {numbers} | {us['TorchRL'] / us['ours']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
