"""What the specs of worlds of several agents share: the groups that they stand in, flags, rewards and ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torchrl.data import Binary, Composite, Unbounded


class GroupSpecs:
    """The specs of a batch of worlds: ``reward`` and ``done``; a world adds ``observation`` and ``action``.

    Args:
        num_worlds, agents: W, A.
        statistics: what is known about an episode, ``[W, 1]`` each.
    """

    observation: Composite
    action: Composite

    def __init__(
        self, num_worlds: int, agents: int, statistics: Iterable[str], dtype: torch.dtype, device: torch.device | None
    ) -> None:
        self._worlds, self._lead = (num_worlds,), (num_worlds, agents)
        self._here: dict[str, Any] = {"device": device}
        self._real: dict[str, Any] = {"dtype": dtype, "device": device}
        column = (num_worlds, 1)
        episode = {name: Unbounded(shape=column, **self._real) for name in statistics}
        self._episode = Composite(episode, shape=self._worlds, **self._here)
        self.reward = self._root({"reward": Unbounded(shape=(*self._lead, 1), **self._real)})
        ends = ("done", "terminated", "truncated")
        self.done = self._root(
            {name: self._flag(*self._lead, 1) for name in ends}, **{name: self._flag(*column) for name in ends}
        )

    def _flag(self, *shape: int) -> Binary:
        return Binary(n=shape[-1], shape=shape, dtype=torch.bool, **self._here)

    def _root(self, agents: dict[str, Any], **root: Any) -> Composite:
        group = Composite(agents, shape=self._lead, **self._here)
        return Composite({"agents": group, **root}, shape=self._worlds, **self._here)
