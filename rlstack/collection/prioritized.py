"""Prioritised replay (Schaul et al. 2016) in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.collection.replay import Replay
from rlstack.collection.sum_tree import SumTree
from rlstack.config import ConfigError


class PrioritizedReplay(Replay):
    """Replay in which transitions are drawn in proportion to ``(priority + eps)**alpha``.

    The proportional variant of Schaul et al., "Prioritized Experience Replay" (ICLR 2016), with stratified draws. The
    tree lives on the storage's device.

    Args:
        capacity, batch_size, device, storage_device: as of :class:`Replay`.
        alpha: how much priorities count, 0 (uniform) to 1.
        eps: added to every priority, > 0, so that each transition keeps a chance.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        device: torch.device | str,
        storage_device: torch.device | str | None = None,
        alpha: float = 0.6,
        eps: float = 1e-6,
    ) -> None:
        if alpha < 0 or eps <= 0:
            raise ConfigError(f"prioritised replay needs alpha >= 0 and eps > 0, got {alpha} and {eps}")
        super().__init__(capacity, batch_size, device, storage_device)
        self.alpha, self.eps = alpha, eps
        self._tree = SumTree(capacity, self.storage_device)
        self._max = torch.ones((), dtype=self._tree.dtype, device=self.storage_device)

    @property
    def max_priority(self) -> Tensor:
        """The largest priority so far (0-d, at least 1), which new transitions get."""
        return self._max.clone()

    def extend(self, transitions: TensorDictBase) -> None:
        """Adds a flat batch ``[N]`` with the largest priority so far; see :meth:`Replay.extend`."""
        start = self.cursor
        super().extend(transitions)
        stop, value = start + min(transitions.batch_size[0], self.capacity), self._stored(self._max)
        self._tree.set_range(start, min(stop, self.capacity), value)
        self._tree.set_range(0, stop - self.capacity, value)

    def sample(self, beta: float | None = None) -> TensorDict:
        """A batch ``[batch_size]`` on ``device``, with ``index`` int64 ``[B]`` and ``weight [B, 1]``.

        Args:
            beta: exponent of the importance weights ``(N P)**-beta / max``, the maximum over the batch; None leaves
                them at 1.

        Raises:
            ConfigError: the replay is empty.
        """
        self._check_filled()
        index = self._tree.sample(self.batch_size)
        batch = self.take(index)
        weight = importance_weights(self._tree.get(index), beta or 0.0)
        return batch.set("index", index.to(self.device)).set("weight", weight.to(self.device))

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Sets new priorities of sampled transitions.

        Args:
            index: ``[N]``, the batch's ``index``; of one given twice the larger priority counts.
            priority: ``[N]`` or ``[N, 1]``, absolute errors or losses. Those that are not finite count as zero: a
                diverged loss must not take all mass for ever.
        """
        index = index.to(self.storage_device)
        priority = priority.detach().reshape(-1).to(self.storage_device, self._tree.dtype).abs()
        priority = torch.nan_to_num(priority, nan=0.0, posinf=0.0)
        torch.maximum(self._max, priority.max(), out=self._max)
        self._tree.set(index, self._stored(priority))

    def state_dict(self) -> dict[str, Any]:
        """That of :class:`Replay`, the tree's values and the largest priority; views."""
        return {**super().state_dict(), "tree": self._tree.state_dict(), "max_priority": self.max_priority}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`.

        Raises:
            ConfigError: the state does not fit, or is that of a uniform replay.
        """
        if "tree" not in state:
            raise ConfigError("a prioritised replay cannot go on from a uniform replay's state")
        super().load_state_dict(state)
        self._tree.load_state_dict(state["tree"])
        self._max.copy_(state["max_priority"])

    def _stored(self, priority: Tensor) -> Tensor:
        return (priority + self.eps) ** self.alpha


def importance_weights(priority: Tensor, beta: float) -> Tensor:
    """``(N P)**-beta`` over its maximum, ``[B, 1]``, of entries drawn in proportion to ``priority [B]`` (> 0).

    Normalised over the batch, neither the number of entries nor the total priority matters: the entry of the least
    priority has weight 1, the others less.
    """
    weight = (priority / priority.min()) ** -beta
    return weight.to(torch.get_default_dtype())[:, None]
