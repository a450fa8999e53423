"""Acting with a recurrent core, and detecting where episodes begin in envs that do not pass on its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rlstack.envs.world import MEMORY
from rlstack.networks.calls import by_name
from rlstack.networks.recurrent import becomes_a_program, lasts

from .base import Policy
from .interface import MASK, Interface

Recall = Callable[[Any, Tensor], tuple[Any, Tensor]]
"""Maps observation ``[...]`` and recurrent state ``[..., M]`` to the core's output and the next recurrent state."""


class RecurrentPolicy(TensorDictModuleBase):
    """Writes an action for every decision in an env's tensordict, and the recurrent state before and after it.

    The recurrent state ``[..., M]`` is stored as ``memory`` (or ``("agents", "memory")``), that after the decision in
    ``next``. An :class:`rlstack.envs.world.World` passes it on from step to step and sets it to zero where an episode
    ends. In other envs the policy keeps it, and :class:`EpisodeStarts` tells where episodes begin; inside ``vmap``,
    ``torch.export`` and traces it is read from the tensordict there, too, and nothing is kept. The recurrent state of
    an agent that is not active becomes zero.

    Args:
        interface: the env as the agent sees it.
        inner: policy that acts on the core's output in place of an observation.
        recall: see :data:`Recall`.
        size: M; of a larger recurrent state only the first M entries are used.
        first: maps a number of decisions N to the recurrent state ``[N, M]`` to begin with where there is none.
    """

    def __init__(
        self,
        interface: Interface,
        inner: Policy,
        recall: Recall,
        size: int,
        first: Callable[[int], Tensor],
    ) -> None:
        super().__init__()
        self._key: Any = interface.key(MEMORY)
        following = ("next", *(self._key if isinstance(self._key, tuple) else (self._key,)))
        self.in_keys = [*inner.in_keys, *([self._key] if interface.carries else [])]
        self._inner_keys = list(inner.out_keys)
        self.out_keys = [*inner.out_keys, self._key, following]
        self.interface, self.size, self._following = interface, size, following
        self.inner, self._recall, self._first = inner, recall, first
        self._starts = None if interface.carries else EpisodeStarts(interface)
        self._held: Tensor | None = None

    @property
    def phase(self) -> Any:
        """See :class:`~rlstack.agents.base.Policy`."""
        return self.inner.phase

    def reset(self) -> None:
        """Forgets the recurrent states that it keeps itself: the next call begins episodes everywhere."""
        self._held = None
        if self._starts is not None:
            self._starts.reset()

    @torch.no_grad()
    def step(self, observation: Any, memory: Tensor, mask: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """Returns the entries for a tensordict, by name without group, and the next recurrent state ``[..., M]``."""
        seen, following = self._recall(observation, memory)
        return self.inner.entries(seen, mask), following

    def action(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the env's action for an observation ``[...]`` at the beginning of an episode."""
        lead = self.interface.lead(observation)
        return self.step(observation, self._first(lead.numel()).view(*lead, -1), mask)[0]["action"]

    def __reduce_ex__(self, protocol: Any) -> Any:
        build, recipe = self.inner.__reduce_ex__(protocol)
        return build, (*recipe[:-1], self.state_dict())

    @by_name()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        interface = self.interface
        if self.inner.copied:
            self.inner.catch_up()
        observation = interface.observed(tensordict)
        lead = interface.lead(observation)
        starts = self._starts if lasts(tensordict.get(self.in_keys[0])) else None
        memory = self._memory(tensordict, lead, starts)
        acted, following = self.step(
            observation, memory, tensordict.get(interface.key(MASK)) if interface.masked else None
        )
        active = None if interface.group is None else tensordict.get(interface.key("active"), None)
        if active is not None:
            following = following * active.to(following.dtype).unsqueeze(-1)
        for key in self._inner_keys:
            tensordict.set(key, acted[key if isinstance(key, str) else key[-1]])
        if starts is not None:
            self._held = following
            starts.remember(tensordict, lead)
        return tensordict.set(self._key, memory).set(self._following, following)

    def _memory(self, tensordict: TensorDictBase, lead: torch.Size, starts: EpisodeStarts | None) -> Tensor:
        memory = tensordict.get(self._key, None) if starts is None else self._held
        if memory is None or memory.shape[:-1] != lead:
            if self._starts is not None and becomes_a_program():
                raise ValueError(f"the recurrent state is to be given under {self._key!r}: a program keeps none itself")
            return self._first(lead.numel()).view(*lead, -1)
        if starts is None:
            return memory[..., : self.size]
        return memory * (~starts(tensordict, lead)).to(memory.dtype).unsqueeze(-1)


class EpisodeStarts:
    """Tells at every step which entries of the batch begin an episode.

    If the tensordict has ``is_init`` (TorchRL's ``InitTracker``), at the root or under the group, that decides.
    Otherwise the tensordict of the last call is read again: the env's step has put ``next`` into it in the meantime, so
    an entry begins an episode where ``next`` was done, or where the observation differs from that in ``next`` (after a
    reset in between, even of a running episode). Where steps leave no ``next`` in the policy's own tensordict (because
    it was given a copy), only ``done`` of the tensordict itself is left, and the caller must report resets by
    :meth:`reset`.
    """

    def __init__(self, interface: Interface) -> None:
        self._interface, self._keys = interface, interface.observation_keys()
        self._last: TensorDictBase | None = None
        self._lead: torch.Size | None = None

    def reset(self) -> None:
        """Makes all entries begin an episode at the next step."""
        self._last = self._lead = None

    def remember(self, tensordict: TensorDictBase, lead: torch.Size) -> None:
        """Takes a tensordict for that of the last step."""
        self._last, self._lead = tensordict, lead

    def __call__(self, tensordict: TensorDictBase, lead: torch.Size) -> Tensor:
        """Returns bools of shape ``lead``, the batch dimensions (worlds, and agents if there are several)."""
        last, known = self._last, self._lead
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
        """Returns a flag for every entry, set where the world's or the agent's is set; None if neither exists."""
        found: Tensor | None = None
        for key in {name, self._interface.key(name)}:
            flag = tensordict.get(key, None)
            if flag is None:
                continue
            flag = flag.bool().reshape(flag.shape[:-1] if flag.shape[-1:] == (1,) and flag.dim() > 1 else flag.shape)
            flag = flag.reshape(*flag.shape, *[1] * (len(lead) - flag.dim())).expand(lead)
            found = flag if found is None else found | flag
        return found
