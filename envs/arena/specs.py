"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded

from .observation import GROUPS, SIZE
from .rules import Rules

STATISTICS = (
    *("return", "length", "success", "time", "phase", "spawners", "enemies", "health"),
    *("damage_dealt", "damage_taken"),
)
"""What is known about an episode."""

_SIGNED = ("player_state", "combat_targets")


class Specs:
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds: W.
        grouped: observations are dicts.
    """

    def __init__(
        self,
        num_worlds: int,
        rules: Rules,
        grouped: bool,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        lead = (num_worlds,)
        real: dict[str, Any] = {"dtype": dtype, "device": device}

        def within(low: float, size: int) -> Bounded:
            return Bounded(low, 1.0, shape=(num_worlds, size), **real)

        seen: TensorSpec = within(-1.0, SIZE)
        if grouped:
            sizes = {name: part.stop - part.start for name, part in GROUPS.items()}
            parts = {name: within(-1.0 if name in _SIGNED else 0.0, size) for name, size in sizes.items()}
            seen = Composite(parts, shape=lead, device=device)
        column = {"shape": (num_worlds, 1), **real}
        episode = Composite({name: Unbounded(**column) for name in STATISTICS}, shape=lead, device=device)
        self.observation = Composite({"observation": seen, "episode": episode}, shape=lead, device=device)
        self.action = Categorical(rules.num_actions, shape=lead, dtype=torch.int64, device=device)
        self.reward = Unbounded(**column)
        flag = {"shape": (num_worlds, 1), "dtype": torch.bool, "device": device}
        flags = {name: Binary(1, **flag) for name in ("done", "terminated", "truncated")}
        self.done = Composite(flags, shape=lead, device=device)
