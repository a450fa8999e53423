"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Unbounded

from ..group_specs import GroupSpecs
from .actions import action_spec, mask_spec
from .observation import size
from .rewards import TERMS
from .simulation import EVENTS

TEAMS = ("blue", "red")
STATISTICS = (
    *("return", "length", "time", "success", "lost", "draw", "hp_margin"),
    *(f"score_{team}" for team in TEAMS),
    *(f"{name}_{team}" for name in (*EVENTS, "damage") for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""What is known about an episode, ``[W, 1]`` each."""


class Specs(GroupSpecs):
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds, teams, mechs: W, how many teams are agents, n.
        actions: kind of actions.
    """

    def __init__(
        self, num_worlds: int, teams: int, mechs: int, actions: str, dtype: torch.dtype, device: torch.device | None
    ) -> None:
        super().__init__(num_worlds, teams * mechs, STATISTICS, dtype, device)
        self.action = self._root({"action": action_spec(actions, self._lead, mechs, dtype, device)})
        seen: dict[str, Any] = {"observation": Unbounded(shape=(*self._lead, size(mechs)), **self._real)}
        seen["active"] = self._flag(*self._lead)
        mask = mask_spec(actions, self._lead, mechs, device)
        if mask is not None:
            seen["action_mask"] = mask
        self.observation = self._root(seen, episode=self._episode)
