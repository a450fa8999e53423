"""Shapes, types and bounds of everything the environment takes and gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torchrl.data import Bounded, Categorical, Composite, TensorSpec

from ..group_specs import GroupSpecs
from .rules import OBSERVED_OBJECTS
from .simulation import ABSENT, AFTER_GOAL

_STATISTICS = ("return", "discounted_return", "length", "time", "energy", "success", "collision", "level")
# Far beyond what thrust, drag and 1001 steps allow.
_FAR, _FAST, _THRUST, _NEAR = 1.0e4, 100.0, 1.0e4, 100.0


class Specs(GroupSpecs):
    """The specs of a batch of worlds: ``observation``, ``action``, ``reward`` and ``done``.

    Args:
        num_worlds, num_robots: W, A.
        continuous_actions: thrust rates, else the index of one of 25 choices.
    """

    def __init__(
        self,
        num_worlds: int,
        num_robots: int,
        continuous_actions: bool,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        super().__init__(num_worlds, num_robots, _STATISTICS, dtype, device)
        self.observation = self._root(
            {
                "observation": self._what_robots_see(),
                "active": self._flag(*self._lead),
                "info": Bounded(ABSENT, AFTER_GOAL, shape=self._lead, dtype=torch.int64, **self._here),
                "colregs": self._flag(*self._lead),
                "phi": Bounded(0.0, 3.2, shape=self._lead, **self._real),
                "energy": Bounded(0.0, 1.0e6, shape=self._lead, **self._real),
            },
            episode=self._episode,
        )
        action: TensorSpec = Categorical(25, shape=self._lead, dtype=torch.int64, **self._here)
        if continuous_actions:
            action = Bounded(-1.0, 1.0, shape=(*self._lead, 2), **self._real)
        self.action = self._root({"action": action})

    def _what_robots_see(self) -> Composite:
        own = [_FAR, _FAR, _FAST, _FAST, _FAST, _THRUST, _THRUST]
        thing = [_NEAR, _NEAR, _FAST, _FAST, _NEAR]
        leaves = {
            "self": self._within(own, *self._lead),
            "objects": self._within(thing, *self._lead, OBSERVED_OBJECTS),
            "mask": self._flag(*self._lead, OBSERVED_OBJECTS),
        }
        return Composite(leaves, shape=self._lead, **self._here)

    def _within(self, limits: Sequence[float], *lead: int) -> Bounded:
        high = torch.tensor(limits, **self._real).expand(*lead, len(limits)).clone()
        return Bounded(-high, high, shape=high.shape, **self._real)
