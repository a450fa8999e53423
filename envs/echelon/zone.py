"""The zone that both teams fight for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .state import State
from .tables import Tables


class Hold(NamedTuple):
    """How the zone is held."""

    away: Tensor  # [2, 2, n, W] from mechs to its centre, x and y
    distance: Tensor  # [2, n, W]
    inside: Tensor  # [2, n, W] bool
    contested: Tensor  # [W] bool: both teams are inside
    tick: Tensor  # [2, W] share of a full score that a team gets
    control: Tensor  # [2, W] -1 to 1, difference of tonnage inside over its sum


def hold(state: State, tables: Tables) -> Hold:
    """Who is inside and what that is worth: all of it alone; else a quarter, and the rest by the margin of tonnage."""
    away = state.zone[:2, None, None] - state.position[:2]
    distance = away.square().sum(0).sqrt()
    inside = state.alive & (distance <= state.zone[2]) & (state.position[2] <= rules.ZONE_HEIGHT)
    weight = (inside * tables.tonnage).sum(1)
    other = weight.flip(0)
    contested = (weight > 0) & (other > 0)
    control = (weight - other) / (weight + other).clamp_min(1.0)
    shared = 0.25 + 0.75 * control.clamp_min(0.0)
    tick = torch.where(contested, shared, (weight > 0).to(weight.dtype))
    return Hold(away, distance, inside, contested[0], tick, control)
