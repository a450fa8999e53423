"""The replay buffer of MarineNav's published Rainbow agent, in which the records of all robots form one sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.data.replay import make_replay
from rlstack.data.samplers import importance_weights
from rlstack.data.sum_tree import SumTree

_WHOLE_REDRAWS, _REDRAWS = 100, 1000


class InterleavedReplay:
    """Prioritised n-step replay over one sequence of records (Hessel et al. 2018, as MarineNav published it).

    It is kept for comparison with the published agent: records of several robots follow each other, so returns and next
    observations mix robots. Within a return, records from the start of any robot's next episode on are blank: reward
    and observation zero, terminal. Everything else should use n-step transitions of one robot, drawn by a
    ``SumTreeSampler``.

    Args:
        capacity: number of records kept; the oldest are overwritten.
        batch_size: size of a sample.
        device: device of storage and samples.
        n_step: number of records summed into a return.
        gamma: discount per record.
        alpha: exponent of the priorities, applied when they are set.
        beta: exponent of the importance weights, constant.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        device: torch.device | str,
        n_step: int = 3,
        gamma: float = 0.99,
        alpha: float = 0.5,
        beta: float = 0.4,
    ) -> None:
        if not 1 <= n_step < capacity - 1:
            raise ConfigError(f"an interleaved replay of {capacity} records has no returns over {n_step}")
        self._records = make_replay(capacity, batch_size, device)
        self._storage: Any = self._records.storage
        self.capacity, self.batch_size, self.device = capacity, batch_size, self._storage.device
        self.n_step, self.gamma, self.alpha, self.beta = n_step, gamma, alpha, beta
        self._tree = SumTree(capacity, self.device)
        self._max = torch.ones((), dtype=self._tree.dtype, device=self.device)
        self._starts = torch.ones(1, dtype=torch.bool, device=self.device)  # the next record starts an episode
        self._ahead = torch.arange(n_step + 1, device=self.device)
        self._discounts = gamma ** torch.arange(n_step, dtype=torch.float64, device=self.device)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def max_priority(self) -> Tensor:
        """The largest priority so far (0-d, at least 1), with the exponent applied; new records get it."""
        return self._max.clone()

    def extend_interleaved(self, sequences: TensorDictBase) -> None:
        """Adds the active entries of ``[B, T]`` (see :mod:`rlstack.data.flatten`), step by step, in the order of rows.

        The end of an episode is ``("next", "done")``: time-outs count.
        """
        by_time = sequences.select("observation", "action").transpose(0, 1)
        active = sequences.get("active").transpose(0, 1)
        records = by_time[active]
        for name, key in (("reward", "reward"), ("terminal", "done")):
            records.set(name, sequences.get(("next", key)).transpose(0, 1)[active])
        self._extend(records)

    def sample(self, uniform: Callable[[int], Tensor] | None = None) -> TensorDict:
        """Draws a batch of n-step transitions ``[batch_size]``.

        Draws are stratified; the whole batch is drawn again until all its returns lie within the sequence. The
        published loop never ends if the newest records fill a whole segment (with few records, or one priority far
        above the others); here single draws are then replaced by draws from all segments. Checking waits for the
        device.

        Args:
            uniform: returns n numbers in [0, 1), used instead of the device's global generator.

        Returns ``observation``, ``action``, ``next`` (``observation``; ``reward [B, 1]``, the n-step return;
        ``terminated [B, 1]``), ``gamma [B, 1]``, the bootstrap's discount, ``index [B]`` and ``priority_weight [B]``.

        Raises:
            ConfigError: no record has all its successors yet, or those that do have zero priority.
        """
        index = self._draw(uniform)
        batch = self._storage.get(index, ("observation", "action"))
        batch.set("next", self.following(index))
        reward = batch.get(("next", "reward"))
        batch.set("gamma", torch.full_like(reward, self.gamma**self.n_step))
        return batch.set("index", index).set("priority_weight", importance_weights(self._tree.get(index), self.beta))

    def following(self, index: Tensor) -> TensorDict:
        """Returns ``observation``, ``reward`` and ``terminated`` n steps after the records at ``index [N]``."""
        window = (index[:, None] + self._ahead) % self.capacity
        scalars = self._storage.get(window.reshape(-1), ("reward", "terminal", "starts")).view(window.shape)
        # Record k counts only if none of the records 1..k is the first of an episode.
        stands = scalars["starts"][:, 1:, 0].cumsum(1) == 0
        reward = scalars["reward"][:, :-1, 0]
        standing = torch.cat((torch.ones_like(stands[:, :1]), stands[:, :-1]), 1)
        total = (reward * standing).to(torch.float64) @ self._discounts
        blank = ~stands[:, -1:]
        result = self._storage.get(window[:, -1], ("observation",))
        result = result.apply(lambda leaf: leaf.masked_fill(blank.view(-1, *[1] * (leaf.ndim - 1)), 0))
        result.set("reward", total.to(reward.dtype)[:, None])
        return result.set("terminated", scalars["terminal"][:, -1] | blank)

    def update_priority(self, index: Tensor, loss: Tensor) -> None:
        """Sets the priorities of sampled records to ``loss**alpha``, loss ``[N]`` or ``[N, 1]``, >= 0.

        If an index is given twice, the larger loss counts; a loss that is not finite counts as zero.
        """
        loss = torch.nan_to_num(loss.detach().reshape(-1).to(self._tree.dtype), nan=0.0, posinf=0.0)
        priority = loss**self.alpha
        torch.maximum(self._max, priority.max(), out=self._max)
        self._tree.set(index, priority)

    def state_dict(self) -> dict[str, Any]:
        """Returns records, priorities and whether an episode starts, as views: save or copy before the next extend."""
        return {
            "records": self._records.state_dict(),
            "tree": self._tree.state_dict(),
            "max_priority": self.max_priority,
            "starts": self._starts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict` of a buffer of the same capacity.

        Raises:
            ConfigError: the state is that of another capacity.
        """
        self._records.load_state_dict(state["records"])
        self._tree.load_state_dict(state["tree"])
        self._max.copy_(state["max_priority"])
        self._starts = state["starts"].to(self.device, copy=True)

    def _extend(self, records: TensorDictBase) -> None:
        count = len(records)
        if count == 0:
            return
        terminal = records.get("terminal").to(self.device)
        starts = torch.cat((self._starts[None], terminal))
        self._starts = starts[-1].clone()
        records.set("starts", starts[:-1].to(records.device or terminal.device))
        head, stop = self._records.writer.cursor, self._records.writer.cursor + min(count, self.capacity)
        self._records.extend(records)
        self._tree.set_range(head, min(stop, self.capacity), self._max)
        self._tree.set_range(0, stop - self.capacity, self._max)

    def _draw(self, uniform: Callable[[int], Tensor] | None) -> Tensor:
        def numbers() -> Tensor:
            if uniform is None:
                return torch.rand(count, dtype=self._tree.dtype, device=self.device)
            return uniform(count).to(self.device, self._tree.dtype)

        count = self.batch_size
        if len(self) > self.n_step:
            index = self._tree.sample(count, numbers())
            for attempt in range(_REDRAWS):
                valid = self._within(index)
                if bool(valid.all()):
                    return index
                if attempt < _WHOLE_REDRAWS:
                    index = self._tree.sample(count, numbers())
                else:  # the newest records fill a whole segment
                    index = torch.where(valid, index, self._tree.find(numbers() * self._tree.total))
        raise ConfigError(f"{len(self)} records are too few for a return over {self.n_step} that may be drawn")

    def _within(self, index: Tensor) -> Tensor:
        """Marks records that have n successors; the oldest of a full buffer, at the write position, is left out."""
        return (self._records.writer.cursor - index) % self.capacity > self.n_step
