"""A world in which every action is taken several times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, TensorSpec, Unbounded

from ..recording import EpisodeRecorder
from ..world import GROUP, World
from .base import Wrapper, mapped, replaced

_RECORDERS: WeakKeyDictionary[World, WeakSet[EpisodeRecorder[Any, Any]]] = WeakKeyDictionary()
"""The recorders of each world; not attributes, since they would prevent pickling."""


class ActionRepeat(Wrapper):
    """Takes every action ``repeats`` times and sums the rewards.

    A world stops at its first end: the entries under ``"next"`` are those of the step that ended it, or of the last.
    The same holds for an agent of the group ``agents`` (except ``active``, which is always current): rewards after its
    own end do not count. ``("next", "episode", "length")`` and time limits count the inner world's steps. A world that
    ended early is still stepped with the others, which every world must tolerate. Recordings (:meth:`recorder`) show
    every step of the inner world up to the end.
    """

    def __init__(self, inner: World, repeats: int) -> None:
        super().__init__(inner)
        self.repeats = repeats
        self.reward_spec = mapped(inner.full_reward_spec, lambda spec: _summed(spec, repeats))
        self._root_keys = list(self.observation_spec.keys(include_nested=True, leaves_only=True))
        self._shown = TensorDict({}, self.batch_size, self.device)

    def recorder(self, worlds: Sequence[int], titles: Sequence[str] | None = None) -> EpisodeRecorder[Any, Any] | None:
        """See :meth:`~rlstack.envs.world.WorldHooks.recorder`; it records while this world exists."""
        found = super().recorder(worlds, titles)
        if isinstance(found, EpisodeRecorder):
            _RECORDERS.setdefault(self, WeakSet()).add(found)
        return found

    def _advance(self, tensordict: TensorDictBase) -> TensorDict:
        outcome = self.inner._advance(tensordict)
        for _ in range(self.repeats - 1):
            for recorder in _RECORDERS.get(self, ()):
                recorder.add(outcome.get("done")[:, 0])
            outcome = self._then(outcome, self.inner._advance(tensordict))
        self._shown = outcome.select(*self._root_keys)
        return outcome

    def _then(self, first: TensorDict, later: TensorDict) -> TensorDict:
        """Combines two steps; ``later`` does not count for worlds that ended in ``first``."""
        outcome = _kept(first.get("done"), first, later)
        agents = first.get(GROUP, None)
        if agents is not None and "done" in agents.keys():  # noqa: SIM118
            outcome.set(GROUP, self._agents_then(agents, outcome.get(GROUP)))
        for key in self.reward_keys:
            group = key[:-1] if isinstance(key, tuple) else ()
            over = first.get((*group, "done"), None)
            more = later.get(key)
            for flag in (first.get("done"), over):
                more = more if flag is None else more.masked_fill(_aligned(flag, more), 0)
            outcome.set(key, first.get(key) + more)
        return outcome

    def _agents_then(self, first: TensorDict, later: TensorDict) -> TensorDict:
        ended = first.get("done")
        flags = [name for name in ("done", "terminated", "truncated") if name in first.keys()]  # noqa: SIM118
        active = later.get("active", None)
        gone = ended if active is None else ended & ~active[..., None]
        outcome = _kept(gone, first, later)
        outcome.update(_kept(ended, first.select(*flags), later.select(*flags)))
        return outcome if active is None else outcome.set("active", active)

    def _show_anew(self, worlds: Tensor | None) -> None:
        now = self.inner._current()
        self._shown = now if worlds is None else replaced(self._shown, worlds, now)

    def _current(self) -> TensorDict:
        return self._shown.copy()

    def _state_to_save(self) -> dict[str, Any]:
        return super()._state_to_save() | {"shown": self._shown.to_dict()}

    def _load_state(self, state: dict[str, Any]) -> None:
        super()._load_state(state)
        if self.saves_episodes:
            self._shown = self._loaded(state["shown"])
        else:  # the inner world began new episodes
            self._show_anew(None)


def _aligned(flag: Tensor, value: Tensor) -> Tensor:
    """Returns ``flag [..., 1]`` with as many dimensions as ``value [..., *]``."""
    return flag.reshape(*flag.shape[:-1], *[1] * (value.dim() - flag.dim() + 1))


def _kept(flag: Tensor, first: TensorDict, later: TensorDict) -> TensorDict:
    """Returns ``first`` where the flag is set, ``later`` elsewhere."""
    return first.apply(lambda old, new: torch.where(_aligned(flag, old), old, new), later)


def _summed(spec: TensorSpec, most: int) -> TensorSpec:
    """Returns the spec of a sum of one to ``most`` rewards."""
    kind = {"shape": spec.shape, "dtype": spec.dtype, "device": spec.device}
    if not isinstance(spec, Bounded):
        return Unbounded(**kind)
    low, high = spec.space.low, spec.space.high
    return Bounded(torch.minimum(low, most * low), torch.maximum(high, most * high), **kind)
