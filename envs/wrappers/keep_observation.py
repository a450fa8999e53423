"""A world that hides entries of its observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Composite, Unbounded

from ..world import GROUP, World
from .base import Wrapper


class KeepObservation(Wrapper):
    """Selects entries of a vector ``[F]`` in the given order: CartPole without velocities is ``keep=[0, 2]``.

    The rest often does not determine good actions, and a policy needs a recurrent state. ``input_features`` and
    ``nearest_obstacle`` are None, since they apply to whole observations.
    """

    def __init__(self, inner: World, keep: Sequence[int]) -> None:
        super().__init__(inner)
        self.input_features = self.nearest_obstacle = None
        grouped = GROUP in inner.observation_spec.keys()  # noqa: SIM118
        self._key: Any = (GROUP, "observation") if grouped else "observation"
        whole = inner.observation_spec[self._key]
        dims = 2 if grouped else 1
        if isinstance(whole, Composite) or len(whole.shape) != dims + 1 or not isinstance(whole, Bounded | Unbounded):
            raise ValueError(f"observation_keep: the observation of {type(inner).__name__} is not a vector of numbers")
        size = whole.shape[-1]
        chosen = list(keep) if isinstance(keep, Sequence) and not isinstance(keep, str) else []
        whole_numbers = all(type(k) is int and 0 <= k < size for k in chosen)
        if not chosen or not whole_numbers or len(set(chosen)) < len(chosen):
            raise ValueError(f"observation_keep: {keep!r} are not different indices from 0 to {size - 1}")
        self._keep = torch.tensor(chosen, device=self.device)
        kind: dict[str, Any] = {"shape": (*whole.shape[:-1], len(chosen)), "dtype": whole.dtype, "device": self.device}
        spec = inner.observation_spec.clone()
        if isinstance(whole, Bounded):
            spec[self._key] = Bounded(self._kept(whole.space.low), self._kept(whole.space.high), **kind)
        else:
            spec[self._key] = Unbounded(**kind)
        self.observation_spec = spec

    def mirror(self) -> str:
        return "observation_keep: its mirror knows whole observations only"

    def _kept(self, observation: Tensor) -> Tensor:
        return observation.index_select(-1, self._keep)

    def _shown(self, entries: TensorDict) -> TensorDict:
        return entries.copy().set(self._key, self._kept(entries.get(self._key)))

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        return self._shown(self.inner._advance(tensordict))

    def _current(self) -> TensorDict:
        return self._shown(self.inner._current())
