"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Binary, Composite, Unbounded

from .actions import action_spec
from .rewards import TERMS

TEAMS = ("blue", "orange")
COUNTED = ("touches", "demos", "boost_collected")
STATISTICS = (
    *("return", "length", "time", "success", "goals_for", "goals_against"),
    *(f"{name}_{team}" for name in COUNTED for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""What is known about an episode, ``[W, 1]`` each."""


class Specs:
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds, cars: W, C.
        size: of an observation.
        actions: kind of actions.
    """

    def __init__(
        self, num_worlds: int, cars: int, size: int, actions: str, dtype: torch.dtype, device: torch.device | None
    ) -> None:
        self._worlds, self._lead = (num_worlds,), (num_worlds, cars)
        self._here: dict[str, Any] = {"device": device}
        real: dict[str, Any] = {"dtype": dtype, "device": device}
        column = (num_worlds, 1)
        episode = {name: Unbounded(shape=column, **real) for name in STATISTICS}
        seen = {"observation": Unbounded(shape=(*self._lead, size), **real), "active": self._flag(*self._lead)}
        self.observation = self._root(seen, episode=Composite(episode, shape=self._worlds, **self._here))
        self.action = self._root({"action": action_spec(actions, self._lead, dtype, device)})
        self.reward = self._root({"reward": Unbounded(shape=(*self._lead, 1), **real)})
        ends = ("done", "terminated", "truncated")
        self.done = self._root(
            {name: self._flag(*self._lead, 1) for name in ends}, **{name: self._flag(*column) for name in ends}
        )

    def _flag(self, *shape: int) -> Binary:
        return Binary(n=shape[-1], shape=shape, dtype=torch.bool, **self._here)

    def _root(self, agents: dict[str, Any], **root: Any) -> Composite:
        group = Composite(agents, shape=self._lead, **self._here)
        return Composite({"agents": group, **root}, shape=self._worlds, **self._here)
