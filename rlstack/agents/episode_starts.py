"""Where episodes begin, for policies with a memory that must act in any env."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from .interface import Interface


class EpisodeStarts:
    """Tells at every step which entries of the batch begin an episode.

    With ``is_init`` (TorchRL's ``InitTracker``) in the tensordict, at the root or under the group, that says it.
    Without, the tensordict of the last call is looked at again: the env's step has put ``next`` into it meanwhile, so
    an entry begins anew where ``next`` was done, or where the observation is not the one that ``next`` promised (a
    reset in between, even of a running episode). Where steps leave no ``next`` in the policy's own tensordict (it was
    given a copy), only ``done`` of the tensordict itself is left, and whoever steps must say so by :meth:`reset`.
    """

    def __init__(self, interface: Interface) -> None:
        self._interface, self._keys = interface, interface.observation_keys()
        self._last: TensorDictBase | None = None
        self._lead: torch.Size | None = None

    def reset(self) -> None:
        """Makes everything begin anew at the next step."""
        self._last = self._lead = None

    def __call__(self, tensordict: TensorDictBase, lead: torch.Size) -> Tensor:
        """Bool of shape ``lead``, the batch dimensions (worlds, and agents if there are several)."""
        last, known = self._last, self._lead
        self._last, self._lead = tensordict, lead
        device = tensordict.get(self._keys[0]).device
        init = self._flags(tensordict, "is_init", lead)
        if known != lead or last is None:
            return torch.ones(lead, dtype=torch.bool, device=device)
        if init is not None:
            return init
        starts = torch.zeros(lead, dtype=torch.bool, device=device)
        following = last.get("next", None) if last is not tensordict else None
        for entry in (tensordict, following):
            done = None if entry is None else self._flags(entry, "done", lead)
            starts = starts if done is None else starts | done
        for key in self._keys:
            promised = None if following is None else following.get(key, None)
            if promised is not None:
                differs = promised != tensordict.get(key)
                starts = starts | differs.reshape(*lead, -1).any(-1)
        return starts

    def _flags(self, tensordict: TensorDictBase, name: str, lead: torch.Size) -> Tensor | None:
        """A flag of the world or of the agents, whichever are set, for every entry."""
        found: Tensor | None = None
        for key in {name, self._interface.key(name)}:
            flag = tensordict.get(key, None)
            if flag is None:
                continue
            flag = flag.bool().reshape(flag.shape[:-1] if flag.shape[-1:] == (1,) and flag.dim() > 1 else flag.shape)
            flag = flag.reshape(*flag.shape, *[1] * (len(lead) - flag.dim())).expand(lead)
            found = flag if found is None else found | flag
        return found
