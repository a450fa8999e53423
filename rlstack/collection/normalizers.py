"""Running statistics that bring observations and rewards to unit scale."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Composite, TensorSpec

_CLIP, _EPS = 10.0, 1e-8


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far (parallel update of Chan et al. 1979)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, values: Tensor) -> None:
        """Takes in ``[N, *shape]``; an empty batch changes nothing."""
        if not len(values):
            return
        values = values.double()
        count = self.count + len(values)
        delta = values.mean(0) - self.mean
        within = self.var * self.count + values.var(0, unbiased=False) * len(values)
        self.var.copy_((within + delta.square() * self.count * len(values) / count) / count)
        self.mean.add_(delta * len(values) / count)
        self.count.copy_(count)


class ObservationNormalizer(nn.Module):
    """``clip((o - mean) / std, -10, 10)`` of every floating-point leaf; others, such as masks and images, stay.

    Objects in slots (keys ``objects`` and ``mask``) share one set of statistics, of the slots that are filled.

    Args:
        observation: spec of a single observation.
    """

    def __init__(self, observation: TensorSpec) -> None:
        super().__init__()
        self._leaves: list[Any] = [None]
        specs = {None: observation}
        if isinstance(observation, Composite):
            specs = dict(observation.items(include_nested=True, leaves_only=True))
            self._leaves = list(specs)
        self._leaves = [key for key in self._leaves if specs[key].dtype.is_floating_point]
        self._slots = "objects" in self._leaves and "mask" in specs
        if self._slots and "mask" in self._leaves:  # a mask of 0 and 1 is one, too
            self._leaves.remove("mask")
        shapes = [specs[key].shape[1:] if self._in_slots(key) else specs[key].shape for key in self._leaves]
        self.moments = nn.ModuleList(RunningMoments(shape) for shape in shapes)

    def _in_slots(self, key: Any) -> bool:
        return self._slots and key == "objects"

    def moments_by_leaf(self) -> dict[Any, Any]:
        """The statistics of each normalised leaf by its key, None for an observation without keys."""
        return dict(zip(self._leaves, self.moments))

    def update(self, observation: Any) -> None:
        """Takes in a flat batch ``[N, ...]``."""
        for key, moments in zip(self._leaves, self.moments):
            values = observation if key is None else observation.get(key)
            if self._in_slots(key):
                values = values[observation.get("mask") > 0.5]
            moments.update(values)  # type: ignore[operator]

    def forward(self, observation: Any) -> Any:
        """The same layout ``[..., *observation]``, scaled."""
        if isinstance(observation, Tensor):
            return self._scaled(observation, self.moments[0]) if self._leaves else observation
        scaled: TensorDict = observation.copy()
        for key, moments in zip(self._leaves, self.moments):
            scaled.set(key, self._scaled(observation.get(key), moments))
        return scaled

    @staticmethod
    def _scaled(values: Tensor, moments: Any) -> Tensor:
        mean, std = moments.mean.to(values.dtype), (moments.var + _EPS).sqrt().to(values.dtype)
        return ((values - mean) / std).clamp(-_CLIP, _CLIP)


class RewardScaler(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return; their mean stays.

    Subtracting a mean would change the task wherever episodes differ in length.

    Args:
        gamma: discount of the return.
    """

    returns: Tensor

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.moments = RunningMoments(torch.Size([]))
        self.register_buffer("returns", torch.zeros(0, dtype=torch.float64))

    @torch.no_grad()
    def update(self, sequences: TensorDictBase) -> None:
        """Takes in folded sequences ``[B, T]`` whose rows go on from one call to the next."""
        following = sequences.get("next")
        reward, done = following.get("reward")[..., 0].double(), following.get("done")[..., 0]
        active = sequences.get("active")
        running = self.returns if len(self.returns) == len(reward) else reward.new_zeros(len(reward))
        seen = []
        for t in range(reward.shape[1]):
            running = torch.where(active[:, t], running * self.gamma + reward[:, t], running)
            seen.append(running)
            running = running.masked_fill(done[:, t], 0.0)
        self.returns = running
        self.moments.update(torch.stack(seen, 1)[active])

    def forward(self, reward: Tensor) -> Tensor:
        """Rewards of any shape, scaled and clipped to +-10."""
        return (reward / (self.moments.var + _EPS).sqrt().to(reward.dtype)).clamp(-_CLIP, _CLIP)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}returns")
        if saved is not None:
            self.returns = torch.zeros_like(saved, device=self.returns.device)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
