"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Binary, Composite, Unbounded

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


class Specs:
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds, teams, mechs: W, how many teams are agents, n.
        actions: kind of actions.
    """

    def __init__(
        self, num_worlds: int, teams: int, mechs: int, actions: str, dtype: torch.dtype, device: torch.device | None
    ) -> None:
        self._worlds, self._lead = (num_worlds,), (num_worlds, teams * mechs)
        self._here: dict[str, Any] = {"device": device}
        real: dict[str, Any] = {"dtype": dtype, "device": device}
        column = (num_worlds, 1)
        episode = {name: Unbounded(shape=column, **real) for name in STATISTICS}
        seen: dict[str, Any] = {"observation": Unbounded(shape=(*self._lead, size(mechs)), **real)}
        seen["active"] = self._flag(*self._lead)
        self.action = self._root({"action": action_spec(actions, self._lead, mechs, dtype, device)})
        mask = mask_spec(actions, self._lead, mechs, device)
        if mask is not None:
            seen["action_mask"] = mask
        self.observation = self._root(seen, episode=Composite(episode, shape=self._worlds, **self._here))
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
