"""Samplers of replay buffers, and the sum tree that draws by priority."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchrl.data import Storage
from torchrl.data.replay_buffers import RandomSampler, Sampler

from rlstack.config import ConfigError
from rlstack.config.errors import unknown_key
from rlstack.envs.foundation.files import replacing
from rlstack.envs.foundation.packages import found
from rlstack.envs.foundation.tensors import looks_are_free

# -- sum tree ----------------------------------------------------------------------------------------------------------


_TILE = 256


class SumTree:
    """Non-negative values with their running sums, vectorised over a batch and without host synchronisation.

    The tree has two levels: groups of values under one root. A tensor operation costs more than summing thousands of
    numbers, so up to millions of entries a flat tree is several times faster than a binary one with twenty levels.
    All sums are recomputed from the values below whenever one of these changes, so that errors do not accumulate over a
    long run, and a state is restored exactly from the values alone.

    Args:
        capacity: number of entries, all zero at first.
        device: device of the tree.
    """

    dtype = torch.float64
    """In float32 the running sum over a million priorities has no bits left for small ones, which are never found."""

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        self.capacity, self.device = capacity, torch.device(device)
        # The root has at most 256 times as many entries as a group: it is summed once, groups are summed per index.
        self._width = max(64, 2 ** math.ceil(math.log2(max(capacity, 1)) / 2 - 4))
        groups = -(-capacity // self._width)
        zeros = partial(torch.zeros, dtype=self.dtype, device=self.device)
        self._values = zeros(groups * self._width)
        self._grouped = self._values.view(groups, self._width)
        self._group_totals = zeros(groups)
        # Running sums begin with a zero, so that entry k is the sum before entry k.
        self._group_sums = zeros(groups, self._width + 1)
        self._root_sums = zeros(groups + 1)
        self._zero = zeros(())

    @property
    def total(self) -> Tensor:
        """The sum of all values, 0-d."""
        return self._root_sums[-1].clone()

    @property
    def values(self) -> Tensor:
        """All values ``[capacity]``; a view, not to be written to."""
        return self._values[: self.capacity]

    def get(self, index: Tensor) -> Tensor:
        """Returns the values ``[N]`` at ``index [N]`` (int64)."""
        return self._values.index_select(0, index)

    def set(self, index: Tensor, value: Tensor) -> None:
        """Sets ``value [N]`` (>= 0, finite) at ``index [N]``; if an index is given twice, the larger value counts.

        It is the larger one because on a GPU "the last" is not defined, and results should not depend on a race.
        """
        self._values.index_fill_(0, index, 0).scatter_reduce_(0, index, value.to(self.dtype), "amax")
        if index.shape[0] >= self._grouped.shape[0]:  # summing every group once is cheaper
            self._sum_groups(0, self._grouped.shape[0])
            return
        group = index // self._width
        sums = _running_sums(self._grouped.index_select(0, group))
        self._group_sums[:, 1:].index_copy_(0, group, sums)
        self._group_totals.index_copy_(0, group, sums[:, -1])
        self._sum_root()

    def set_range(self, start: int, stop: int, value: Tensor | float) -> None:
        """Sets entries ``start..stop-1`` to one value (0-d) or to ``value [stop - start]``; the range may be empty."""
        if start < stop:
            self._values[start:stop] = value
            self._sum_groups(start // self._width, (stop - 1) // self._width + 1)

    def find(self, mass: Tensor) -> Tensor:
        """Finds the entries in which prefix masses fall: for each mass the first whose running sum exceeds it.

        Args:
            mass: ``[N]``, from 0 to :attr:`total`; the total itself and anything above belongs to the last entry.

        Returns int64 ``[N]``, always entries greater than zero. There must be at least one such entry.
        """
        # Just below a total some running sum still exceeds the mass, and the first one to do so rises there, so its
        # entry is greater than zero. Rounding may raise the remaining mass within a group to the group's total.
        mass = torch.minimum(mass.to(self.dtype), torch.nextafter(self._root_sums[-1], self._zero))
        group = torch.searchsorted(self._root_sums, mass, right=True).sub_(1)
        mass = mass - self._root_sums.index_select(0, group)
        sums = self._group_sums.index_select(0, group)
        mass = torch.minimum(mass, torch.nextafter(sums[:, -1], self._zero))
        entry = torch.searchsorted(sums, mass[:, None], right=True)[:, 0].sub_(1)
        return group.mul_(self._width).add_(entry)

    def sample(self, count: int, uniform: Tensor | None = None) -> Tensor:
        """Draws stratified entries: one uniform draw in each of ``count`` equal segments of the total mass.

        Args:
            count: number of draws.
            uniform: ``[count]`` in [0, 1), used instead of the device's global generator.

        Returns int64 ``[count]``, in ascending order. At least one entry must be greater than zero.
        """
        if uniform is None:
            uniform = torch.rand(count, dtype=self.dtype, device=self.device)
        segment = torch.arange(count, dtype=self.dtype, device=self.device)
        return self.find((segment + uniform) * (self._root_sums[-1] / count))

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the values, as a view."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores :meth:`state_dict` of a tree of the same capacity.

        Raises:
            ValueError: the capacity is different.
        """
        if state["values"].shape != (self.capacity,):
            raise ValueError(f"a sum tree of {[*state['values'].shape]} does not fit a capacity of {self.capacity}")
        self.set_range(0, self.capacity, state["values"].to(self.device))

    def _sum_groups(self, start: int, stop: int) -> None:
        sums = _running_sums(self._grouped[start:stop])
        self._group_sums[start:stop, 1:] = sums
        self._group_totals[start:stop] = sums[:, -1]
        self._sum_root()

    def _sum_root(self) -> None:
        self._root_sums[1:] = _running_sums(self._group_totals)


def _running_sums(values: Tensor) -> Tensor:
    """Returns running sums along the last dimension that never fall, and rise only at values greater than zero.

    On the CPU terms are added one by one, which guarantees both. In parallel they are added in a different order for
    each entry, so that neighbours may differ merely by rounding.
    """
    return values.cumsum(-1) if values.device.type == "cpu" else _rising_only_at_values(values, _summed(values))


def _summed(values: Tensor) -> Tensor:
    """Returns running sums in an order that is always the same, as products with triangles of ones.

    Torch's ``cumsum`` of floats leaves the order to chance on a GPU.
    """
    size = values.shape[-1]
    ones = values.new_ones(min(size, _TILE), min(size, _TILE)).triu()
    if size <= _TILE:
        return (values[..., None, :] @ ones)[..., 0, :]
    sums = pad(values, (0, -size % _TILE)).unflatten(-1, (-1, _TILE)) @ ones
    before = pad(_summed(sums[..., -1]), (1, -1))
    return (sums + before[..., None]).flatten(-2)[..., :size]


def _rising_only_at_values(values: Tensor, sums: Tensor) -> Tensor:
    return torch.where(values > 0, sums, 0).cummax(-1).values


# -- samplers ----------------------------------------------------------------------------------------------------------


_FILE = "sum_tree.pt"
_OF_THE_BUFFER = ("capacity", "max_capacity", "beta", "device")
"""Arguments of samplers that no option sets: ``beta`` follows ``agent.importance_exponent``."""
_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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


def make_sampler(config: str | Mapping[str, Any], **options: Any) -> Sampler:
    """Makes a sampler.

    Args:
        config: ``uniform``: TorchRL's ``RandomSampler``; ``prioritized``: a :class:`SumTreeSampler`; or
            ``package.module:Class``, a subclass of TorchRL's ``Sampler``; or a mapping of such a ``name`` and further
            arguments of its constructor, which may replace ``alpha`` and ``eps``.
        options: ``capacity``, ``alpha``, ``eps`` and ``device`` as for a :class:`SumTreeSampler`; a constructor gets
            those that it names, of TorchRL's names also ``max_capacity`` (the same) and ``beta`` (0.4).

    Raises:
        ConfigError: there is no such sampler, or it has no such option.
    """
    own = {"name": config} if isinstance(config, str) else dict(config)
    name = own.pop("name")
    kinds: dict[str, Any] = {"uniform": UniformSampler, "prioritized": SumTreeSampler}
    try:
        kind = kinds[name] if name in kinds else found(name)
    except ValueError as error:
        raise ConfigError(f"agent.replay.sampler: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Sampler)):
        raise ConfigError(f"agent.replay.sampler: {name} is not a torchrl.data.replay_buffers.Sampler")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ConfigError(
            f"agent.replay.sampler: {name} lacks {', '.join(missing)}, which TorchRL's Sampler leaves to subclasses; "
            "RandomSampler has them"
        )
    known = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    options |= {"max_capacity": options["capacity"], "beta": 0.4}
    takes = {key for key, entry in known.items() if entry.kind not in _SEVERAL} - {"self", *_OF_THE_BUFFER}
    if wrong := sorted(own.keys() - takes):
        raise ConfigError(unknown_key(f"agent.replay.sampler.{wrong[0]}", takes))
    try:
        return kind(**{key: value for key, value in options.items() if key in known} | own)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"agent.replay.sampler: {name} refuses its options: {error}") from error


def importance_weights(priority: Tensor, beta: float) -> Tensor:
    """Returns ``(N P)**-beta`` over its maximum, ``[B]``, for entries drawn in proportion to ``priority [B]`` (> 0).

    Because of the maximum, neither the number of entries nor the total priority matters: the entry with the lowest
    priority has weight 1, the others less.
    """
    return ((priority / priority.min()) ** -beta).to(torch.get_default_dtype())
