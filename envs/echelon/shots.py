"""New missiles, gauss slugs and autocannon shells: nine places for each pack, newest first."""

from __future__ import annotations

import torch
from torch import Tensor

from .rules import LAUNCHERS, SHOTS, SLOTS
from .sensors import Pairs, centres
from .state import State
from .tables import Tables
from .weapons import Volley


def launch(state: State, volley: Volley, tables: Tables, pairs: Pairs) -> State:
    """Puts new shots in the air; the oldest of a launcher makes room."""
    packs = tables.packs
    fired, chosen = volley.fired[:, :, LAUNCHERS], volley.chosen[:, :, LAUNCHERS]

    def of_launchers(values: Tensor, dim: int) -> Tensor:
        return values.unflatten(dim, (packs, SLOTS)).index_select(dim + 1, tables.launcher_slot)

    way = (chosen * of_launchers(pairs.away, 2)).sum(4)
    found = chosen.amax(3) > 0
    way = torch.stack((way[0], way[1], way[2] + tables.launcher_drop * way.square().sum(0)))
    yaw = of_launchers(state.yaw, 1)
    way = torch.where(found, way, torch.stack((yaw.cos(), yaw.sin(), torch.zeros_like(yaw))))
    velocity = way * (tables.launcher_speed / way.square().sum(0).sqrt().clamp_min(1.0e-6))
    place = of_launchers(centres(state, tables), 2)
    rest = torch.stack((tables.launcher_life.expand_as(yaw), (chosen * tables.slots).sum(3)))
    new = torch.cat((place, velocity, rest))
    old = state.shots.unflatten(2, (packs, SHOTS))
    missile, gauss, first, second = new.split(1, 3)
    kept = [old[:, :, :, a : a + k] for a, k in ((0, 1), (3, 2), (6, 2))]
    shifted = torch.cat((missile, kept[0], gauss, first, kept[1], second, kept[2]), 3)
    shots = torch.where(fired.index_select(2, tables.shot_launcher) > 0, shifted, old).flatten(2, 3)
    screens = state.screened.unflatten(1, (packs, 2))
    fresh = torch.cat((torch.zeros_like(screens[:, :, :1]), screens[:, :, :1]), 2)
    screened = torch.where(fired[:, :, :1, None] > 0, fresh, screens).flatten(1, 2)
    return state.replace(shots=shots, screened=screened)
