"""Actions of numbers and choices together, a dict in the env, as one vector for an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

if TYPE_CHECKING:
    from .interface import Interface


class HybridAction:
    """How a dict of bounded vectors and of choices is written as a vector ``[..., D + K]``.

    First all D numbers, in [-1, 1], then the K choices as whole numbers; both in the order of the dict.

    Args:
        parts: of the dict by key, each as the interface of an env with that action alone.

    Attributes:
        numbers: D.
        counts: options of each of the K choices.
    """

    def __init__(self, parts: Mapping[str, Interface]) -> None:
        self.vectors = {key: part for key, part in parts.items() if part.continuous}
        self.selections = {key: part for key, part in parts.items() if not part.continuous}
        self.numbers = sum(part.action.shape[-1] for part in self.vectors.values())
        self.counts = tuple(count for part in self.selections.values() for count in part.choices or ())
        self._widths = [part.action.shape[-1] for part in self.vectors.values()]
        self._widths += [len(part.choices or ()) for part in self.selections.values()]

    @classmethod
    def of(cls, parts: Mapping[str, Interface]) -> HybridAction | None:
        """None unless there are both and nothing else."""
        kinds = {part.continuous for part in parts.values()}
        if kinds != {True, False} or any(not part.continuous and part.choices is None for part in parts.values()):
            return None
        return cls(parts)

    def to_env(self, action: Tensor) -> TensorDict:
        """A vector as the env takes it; numbers beyond [-1, 1] are cut off."""
        columns = iter(action.split(self._widths, -1))
        entries = {key: part.to_env(next(columns).clamp(-1, 1)) for key, part in self.vectors.items()}
        for key, part in self.selections.items():
            chosen = next(columns).long()
            entries[key] = part.to_env(chosen.squeeze(-1) if len(part.choices or ()) == 1 else chosen)
        return TensorDict._new_unsafe(entries, batch_size=action.shape[:-1], device=action.device)

    def from_env(self, action: TensorDictBase) -> Tensor:
        """The inverse of :meth:`to_env`."""
        vectors = [part.from_env(action.get(key)) for key, part in self.vectors.items()]
        for key, part in self.selections.items():
            chosen = part.from_env(action.get(key)).to(vectors[0].dtype)
            vectors.append(chosen.unsqueeze(-1) if len(part.choices or ()) == 1 else chosen)
        return torch.cat(vectors, -1)
