"""Published learners with all their quirks, as ``algorithm: <name>_published``, so that the usual ones have none.

No lower package imports this module: :mod:`rlstack.agents` finds the classes by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.agents.interface import Interface
from rlstack.agents.optimizer import Info
from rlstack.agents.ppo import PPO
from rlstack.agents.rainbow import Rainbow
from rlstack.agents.sac import SAC
from rlstack.config import ConfigError
from rlstack.data.normalizers import RunningMoments
from rlstack.data.replay import make_replay
from rlstack.data.samplers import SumTree, importance_weights

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


class PublishedPPO(PPO):
    """PPO as in the Arena game's own stack.

    - Minibatches have exactly ``minibatch_size`` entries, the last one what is left.
    - Metrics, and the distance that ``target_kl`` bounds, are means over all minibatches of an update so far.
    - Running statistics divide the variance of each batch by N - 1.
    """

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        for statistics in (self.normalizer, self.reward_scaler):
            for module in () if statistics is None else statistics.modules():
                if isinstance(module, RunningMoments):
                    module.unbiased = True

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        self._reports: list[Info] = []
        return super().update(batch)

    def minibatch_sizes(self, rows: int, size: int) -> list[int]:
        """Returns parts of exactly ``size``, the last one with what is left."""
        whole, rest = divmod(rows, size)
        return [size] * whole + [rest] * (rest > 0)

    reports_all = True

    def reported(self, info: Info) -> Info:
        """Returns the means over all minibatches of this update so far."""
        self._reports.append({name: value.clone() for name, value in info.items()})  # the next step may overwrite it
        return {name: torch.stack([metrics[name] for metrics in self._reports]).mean() for name in info}


class PublishedSAC(SAC):
    """SAC as in MarineNav: log densities use the correction for tanh with any squash."""

    def loss_options(self) -> dict[str, Any]:
        return {**super().loss_options(), "correction": "tanh"}


class PublishedRainbow(Rainbow):
    """Rainbow as in MarineNav: its replay buffer is one sequence in which the robots alternate."""

    def make_replay(self, steps: int = 1) -> InterleavedReplay:
        c = self.config
        if self.interface.masked:
            raise ConfigError("agent.algorithm: rainbow_published keeps no action masks, as the env has; use rainbow")
        if c.correction != "none":
            raise ConfigError("agent.correction: rainbow_published replays its own n-step returns; set none")
        if c.steps_per_batch != 1:
            raise ConfigError("agent.steps_per_batch: rainbow_published takes steps one by one; set 1")
        if c.replay.storage != "LazyTensorStorage":
            raise ConfigError("agent.replay.storage: rainbow_published keeps no files; set LazyTensorStorage")
        if c.replay_device is not None:
            raise ConfigError("agent.replay_device: rainbow_published replays on the learner's device; set null")
        return InterleavedReplay(c.buffer_size, c.batch_size, self.device, c.n_step, c.gamma, c.priority_exponent)

    def extend(self, sequences: TensorDictBase) -> None:
        self.replay.extend_interleaved(self._own(sequences))

    def load_data(self, recorded: TensorDictBase, seen: bool = False) -> None:
        raise ConfigError("data: rainbow_published learns from steps of all robots in turn, not from data; use rainbow")

    def sample(self) -> TensorDictBase:
        self.replay.beta = self.scheduled["importance_exponent"]
        return self.replay.sample()
