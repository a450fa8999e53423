"""Running statistics that bring observations and rewards to unit scale.

They change only by ``update``: acting and evaluating leave them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

from rlstack.data.flatten import kept
from rlstack.envs.foundation.tensors import looks_are_free

_CLIP, _EPS = 10.0, 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far (parallel update of Chan et al. 1979).

    Args:
        shape: shape of one entry.
        unbiased: True divides the variance of each batch by N - 1, and takes that of a batch of one entry as zero.
            False divides by N, so that the result does not depend on how the data were split into batches.

    Attributes:
        gather: where several processes share the statistics, takes a tensor of this process and returns those of all
            processes. All must update at the same time.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    gather: Callable[[Tensor], list[Tensor]] | None = None

    def __init__(self, shape: torch.Size, unbiased: bool = False) -> None:
        super().__init__()
        self.unbiased = unbiased
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def set(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Overwrites the moments in place."""
        for buffer, value in ((self.mean, mean), (self.var, var), (self.count, count)):
            buffer.copy_(value.reshape(buffer.shape))

    @torch.no_grad()
    def update(self, values: Tensor, counts: Tensor | None = None) -> None:
        """Takes in ``[N, *shape]``; an empty batch changes nothing.

        Args:
            counts: which of them count, ``[N]`` bool; nothing waits for their number. None: all.
        """
        values = values.double()
        size: Any = len(values)
        seen = (torch.zeros_like(self.mean), torch.zeros_like(self.mean))
        if counts is not None:
            size, there = counts.sum().double(), counts.view(-1, *[1] * (values.dim() - 1))
            mean = values.where(there, 0.0).sum(0) / size.clamp(min=1)
            degrees = (size - int(self.unbiased)).clamp(min=1)
            seen = mean, (values - mean).where(there, 0.0).square().sum(0) / degrees
        elif size:
            seen = values.mean(0), values.var(0, unbiased=self.unbiased and size > 1)
        if self.gather is None:
            self._take(size, *seen)
            return
        for part in self.gather(torch.stack((torch.zeros_like(self.mean) + size, *seen))):
            self._take(part[0].max() if counts is not None else int(part[0].max()), part[1], part[2])

    def _take(self, size: Any, mean: Tensor, var: Tensor) -> None:
        """Merges the moments of a batch of ``size`` entries: a number, or a tensor on the device of the moments."""
        count = self.count + size
        if isinstance(size, Tensor):
            count = count.clamp(min=1)
        elif not size:
            return
        delta = mean - self.mean
        within = self.var * self.count + var * size
        merged = (within + delta.square() * self.count * size / count) / count
        self.var.copy_(merged.where(self.count + size > 0, self.var) if isinstance(size, Tensor) else merged)
        self.mean.add_(delta * size / count)
        self.count.add_(size)


class ObservationNormalizer(nn.Module):
    """Computes ``clip((o - mean) / std, -10, 10)`` of every floating-point leaf; other leaves (masks, images) stay.

    Objects in slots (keys ``objects`` and ``mask``) share one set of statistics, taken over the filled slots.

    Args:
        observation: spec of a single observation.
        masks: further leaves that stay, nested keys with dots: masks of sets, which encoders compare with 0.5.
    """

    def __init__(self, observation: TensorSpec, masks: Collection[str] = ()) -> None:
        super().__init__()
        self._leaves: list[Any] = [None]
        specs = {None: observation}
        if isinstance(observation, Composite):
            specs = dict(observation.items(include_nested=True, leaves_only=True))
            self._leaves = list(specs)
        self._leaves = [key for key in self._leaves if specs[key].dtype.is_floating_point]
        self._masks = {key for key in self._leaves if _name(key) in masks}  # whose statistics nothing uses
        self._slots = "objects" in self._leaves and "mask" in specs
        if self._slots and "mask" in self._leaves:  # a mask of zeros and ones is floating-point, too
            self._leaves.remove("mask")
        shapes = [specs[key].shape[1:] if self._in_slots(key) else specs[key].shape for key in self._leaves]
        self.moments = nn.ModuleList(RunningMoments(shape) for shape in shapes)

    def _in_slots(self, key: Any) -> bool:
        return self._slots and key == "objects"

    def moments_by_leaf(self) -> dict[Any, Any]:
        """Returns the statistics of each normalised leaf by its key, which is None for an observation without keys."""
        return dict(zip(self._leaves, self.moments))

    def update(self, observation: Any, counts: Tensor | None = None) -> None:
        """Takes in a flat batch ``[N, ...]``; see :meth:`RunningMoments.update`."""
        for key, moments in zip(self._leaves, self.moments):
            values, chosen = observation if key is None else observation.get(key), counts
            if self._in_slots(key):
                filled = observation.get("mask") > 0.5
                if looks_are_free(values.device):
                    values = values[filled]
                else:
                    chosen = (filled if counts is None else filled & counts.unsqueeze(-1)).flatten()
                    values = values.flatten(0, 1)
            moments.update(values, chosen)  # type: ignore[operator]

    def forward(self, observation: Any) -> Any:
        """Returns the observation in the same layout ``[..., *observation]``, scaled."""
        if isinstance(observation, Tensor):
            return self._scaled(observation, self.moments[0]) if self._leaves else observation
        scaled: TensorDict = observation.copy()
        for key, moments in zip(self._leaves, self.moments):
            if key not in self._masks:
                scaled.set(key, self._scaled(observation.get(key), moments))
        return scaled

    @staticmethod
    def _scaled(values: Tensor, moments: Any) -> Tensor:
        mean, std = moments.mean.to(values.dtype), (moments.var + _EPS).sqrt().to(values.dtype)
        return ((values - mean) / std).clamp(-_CLIP, _CLIP)


def _name(key: Any) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)


class RewardScaler(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return, without subtracting a mean.

    Subtracting one would change the task wherever episodes differ in length.

    Args:
        gamma: discount of the return.
    """

    returns: Tensor

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments(torch.Size([]))
        self.register_buffer("returns", torch.zeros(0, dtype=torch.float64))
        self.register_load_state_dict_pre_hook(_make_room)

    @torch.no_grad()
    def update(self, sequences: TensorDictBase, everyone: bool = False) -> None:
        """Takes in flattened sequences ``[B, T]`` whose rows continue from one call to the next.

        Args:
            everyone: whether all entries are known to be active.
        """
        following = sequences.get("next")
        reward, done = following.get("reward")[..., 0].double(), following.get("done")[..., 0]
        active = sequences.get("active")
        if not reward.shape[1]:  # an offline run collects nothing
            return
        running = self.returns if len(self.returns) == len(reward) else reward.new_zeros(len(reward))
        seen = []
        for t in range(reward.shape[1]):
            running = torch.where(active[:, t], running * self.gamma + reward[:, t], running)
            seen.append(running)
            running = running.masked_fill(done[:, t], 0.0)
        self.returns = running
        returns = torch.stack(seen, 1)
        if everyone or not looks_are_free(active.device):
            self.moments.update(returns.flatten(), None if everyone else active.flatten())
        else:
            self.moments.update(kept(returns, active))

    def forward(self, reward: Tensor, clip: bool = True) -> Tensor:
        """Returns rewards of any shape, scaled and (with ``clip``) clipped to +-10."""
        scaled = reward / self._std(reward)
        return scaled.clamp(-_CLIP, _CLIP) if clip else scaled

    def clipped(self, reward: Tensor) -> Tensor:
        """Returns rewards of any shape that are within +-10 once they are scaled."""
        bound = _CLIP * self._std(reward)
        return torch.minimum(torch.maximum(reward, -bound), bound)

    def _std(self, like: Tensor) -> Tensor:
        return (self.moments.var + _EPS).sqrt().to(like.dtype)


def _make_room(scaler: RewardScaler, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Resizes the returns of a :class:`RewardScaler` to those of the state that it is about to load."""
    saved = state_dict.get(f"{prefix}returns")
    if saved is not None:
        scaler.returns = torch.zeros_like(saved, device=scaler.returns.device)
