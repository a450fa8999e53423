"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

import torch
from torchrl.data import Unbounded

from ..group_specs import GroupSpecs
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


class Specs(GroupSpecs):
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds, cars: W, C.
        size: of an observation.
        actions: kind of actions.
    """

    def __init__(
        self, num_worlds: int, cars: int, size: int, actions: str, dtype: torch.dtype, device: torch.device | None
    ) -> None:
        super().__init__(num_worlds, cars, STATISTICS, dtype, device)
        seen = {"observation": Unbounded(shape=(*self._lead, size), **self._real), "active": self._flag(*self._lead)}
        self.observation = self._root(seen, episode=self._episode)
        self.action = self._root({"action": action_spec(actions, self._lead, dtype, device)})
