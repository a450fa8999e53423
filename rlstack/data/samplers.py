"""Prioritised replay (Schaul et al. 2016) as a TorchRL sampler, in plain torch."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Storage
from torchrl.data.replay_buffers import RandomSampler, Sampler

from rlstack.config import ConfigError
from rlstack.envs.foundation.files import replacing
from rlstack.envs.foundation.packages import found
from rlstack.envs.foundation.tensors import looks_are_free

from .sum_tree import SumTree

_FILE = "sum_tree.pt"


class UniformSampler(RandomSampler):
    """TorchRL's ``RandomSampler``, which on a GPU reads the number of entries there, so that draws can be recorded.

    Attributes:
        generator: random number generator on the storage's device; None for its global one.
    """

    generator: torch.Generator | None = None

    def sample(self, storage: Any, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws positions ``[batch_size]`` with replacement."""
        if looks_are_free(storage.device) or not hasattr(storage, "filled"):
            return super().sample(storage, batch_size)
        drawn = torch.rand(batch_size, dtype=torch.float64, device=storage.device, generator=self.generator)
        return (drawn * storage.filled).long(), {}


class SumTreeSampler(Sampler):
    """Draws entries in proportion to ``(priority + eps)**alpha``, stratified.

    This is the proportional variant of Schaul et al., "Prioritized Experience Replay" (ICLR 2016). TorchRL's own
    ``PrioritizedSampler`` needs a C++ extension, which its wheels do not include for every version of torch. A
    :class:`~rlstack.data.Replay` takes either.

    Args:
        capacity: capacity of the storage.
        alpha: how much priorities count, from 0 (uniform) to 1.
        beta: exponent of the importance weights ``(N P)**-beta / max``, the maximum over the batch; 0 makes them 1.
        eps: added to every priority, > 0, so that every entry can be drawn.
        device: device of the tree: that of the storage.

    Attributes:
        generator: random number generator on that device; None for its global one.
    """

    generator: torch.Generator | None = None

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        device: torch.device | str = "cpu",
    ) -> None:
        if alpha < 0 or eps <= 0:
            raise ConfigError(f"prioritised replay needs alpha >= 0 and eps > 0, got {alpha} and {eps}")
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self.tree = SumTree(capacity, device)
        self._max = torch.ones((), dtype=self.tree.dtype, device=self.tree.device)

    @property
    def max_priority(self) -> Tensor:
        """The largest priority so far (0-d, at least 1), which is given to new entries."""
        return self._max.clone()

    @property
    def default_priority(self) -> float:
        return float(self._max)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws positions ``[batch_size]``, and returns them with ``priority_weight [batch_size]``."""
        tree = self.tree
        drawn = torch.rand(batch_size, dtype=tree.dtype, device=tree.device, generator=self.generator)
        index = tree.sample(batch_size, drawn)
        return index, {"priority_weight": importance_weights(tree.get(index), self.beta)}

    def add(self, index: int) -> None:
        self.renew(index, 1)

    def extend(self, index: Tensor) -> None:
        """Gives new entries ``index [N]`` the largest priority so far."""
        index = index.reshape(-1).to(self.tree.device)
        self.tree.set(index, self._stored(self._max).expand(len(index)))

    def renew(self, start: int, count: int) -> None:
        """Gives ``count`` new entries from ``start`` on the largest priority so far; the range wraps round."""
        stop, value = start + count, self._stored(self._max)
        self.tree.set_range(start, min(stop, self.tree.capacity), value)
        self.tree.set_range(0, stop - self.tree.capacity, value)

    def update_priority(self, index: Any, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets new priorities of sampled entries.

        Args:
            index: ``[N]``, the sample's ``index``; if one is given twice, the larger priority counts.
            priority: ``[N]`` or ``[N, 1]``, absolute errors or losses. Non-finite ones count as zero: a diverged loss
                must not take all the mass for ever.
            storage: unused.
        """
        device, dtype = self.tree.device, self.tree.dtype
        priority = torch.as_tensor(priority).detach().reshape(-1).to(device, dtype).abs()
        if not len(priority):
            return
        priority = torch.nan_to_num(priority, nan=0.0, posinf=0.0)
        torch.maximum(self._max, priority.max(), out=self._max)
        self.tree.set(torch.as_tensor(index).reshape(-1).to(device), self._stored(priority))

    def state_dict(self) -> dict[str, Any]:
        """Returns the tree's values, as a view, and the largest priority."""
        return {"tree": self.tree.state_dict(), "max_priority": self.max_priority}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.tree.load_state_dict(state_dict["tree"])
        self._max.copy_(state_dict["max_priority"])

    def dumps(self, path: Path | str) -> None:
        """Writes :meth:`state_dict` into a folder."""
        with replacing(Path(path) / _FILE) as (partial,):
            torch.save(self.state_dict(), partial)

    def loads(self, path: Path | str) -> None:
        """Restores what :meth:`dumps` wrote."""
        self.load_state_dict(torch.load(Path(path) / _FILE, weights_only=True, map_location=self.tree.device))

    def _empty(self) -> None:
        self.tree.set_range(0, self.tree.capacity, 0.0)
        self._max.fill_(1.0)

    def _stored(self, priority: Tensor) -> Tensor:
        return (priority + self.eps) ** self.alpha


def make_sampler(name: str, **options: Any) -> Sampler:
    """Makes a sampler.

    Args:
        name: ``uniform``: TorchRL's ``RandomSampler``; ``prioritized``: a :class:`SumTreeSampler`; or
            ``package.module:Class``, a subclass of TorchRL's ``Sampler``.
        options: ``capacity``, ``alpha``, ``eps`` and ``device`` as for a :class:`SumTreeSampler`; a constructor gets
            those that it names.

    Raises:
        ConfigError: there is no such sampler.
    """
    kinds: dict[str, Any] = {"uniform": UniformSampler, "prioritized": SumTreeSampler}
    try:
        kind = kinds[name] if name in kinds else found(name)
    except ValueError as error:
        raise ConfigError(f"agent.replay.sampler: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Sampler)):
        raise ConfigError(f"agent.replay.sampler: {name} is not a torchrl.data.replay_buffers.Sampler")
    known = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    options |= {"max_capacity": options["capacity"], "beta": 0.4}
    return kind(**{key: value for key, value in options.items() if key in known})


def takes_priorities(sampler: Any) -> bool:
    """Returns whether a sampler uses the errors of what it drew."""
    return getattr(type(sampler), "update_priority", Sampler.update_priority) is not Sampler.update_priority


def importance_weights(priority: Tensor, beta: float) -> Tensor:
    """Returns ``(N P)**-beta`` over its maximum, ``[B]``, for entries drawn in proportion to ``priority [B]`` (> 0).

    Because of the maximum, neither the number of entries nor the total priority matters: the entry with the lowest
    priority has weight 1, the others less.
    """
    return ((priority / priority.min()) ** -beta).to(torch.get_default_dtype())
