"""Sensors of mechs: lines of sight, jamming, contacts, and the memory of lost enemies."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .maps import cell, look_up
from .rules import SMOKE_RADIUS
from .state import State
from .tables import Tables


def clear_between(one: Tensor, two: Tensor, base: Tensor, tables: Tables) -> Tensor:
    """Returns whether lines are free of ground and foliage, symmetrically in both ends.

    It tests 24 points, at most two voxels apart within 48 voxels; more in larger maps.

    Args:
        one, two: ``[3, a, b, W]``, broadcast.
    """
    # Relative to the middle, so that swapping the ends gives the same rounding.
    middle, half = (one + two) / 2, (two - one) / 2
    x, y, z = (torch.addcmul(middle[k], tables.samples, half[k]) for k in range(3))
    return (look_up(tables.maps.sight, cell(x, y, base, tables.side), z) <= z).all(0)


def clear_of_smoke(one: Tensor, two: Tensor, clouds: Tensor) -> Tensor:
    """Returns whether no cloud touches lines, ``[a, b, W]`` bool.

    Args:
        one, two: ``[3, a, b, W]``, broadcast.
        clouds: ``[4, k, W]``.
    """
    way = (two - one)[:, :, :, None]
    reach = (way * way).sum(0).clamp_min(1.0e-6)
    to = clouds[:3, None, None] - one[:, :, :, None]
    share = ((to * way).sum(0) / reach).clamp(0.0, 1.0)
    apart = (to - share * way).square().sum(0)
    return ~((apart < SMOKE_RADIUS**2) & (clouds[3] > 0)).any(2)


SEEN_NEAR = 14.0
HOT = 0.8


class Pairs(NamedTuple):
    """Every mech against every enemy, ``[2, n, n, W]``: its team and slot, the enemy's slot."""

    away: Tensor  # [3, 2, n, n, W] from centre to centre
    distance: Tensor
    planar: Tensor
    marked: Tensor  # bool: painted by the mech's own pack
    cos: Tensor  # [2, n, W] of the yaw
    sin: Tensor


def centres(state: State, tables: Tables) -> Tensor:
    """Returns the centres of the bodies, ``[3, 2, n, W]``."""
    x, y, z = state.position.unbind(0)
    return torch.stack((x, y, z + tables.height / 2))


def of_enemies(values: Tensor) -> Tensor:
    """Converts ``[2, n, W]`` of every mech to ``[2, 1, n, W]`` of its enemies."""
    return values.flip(0)[:, None]


def measure(state: State, tables: Tables) -> Pairs:
    """Computes the relative positions of all enemies."""
    places, cos, sin = centres(state, tables), state.yaw.cos(), state.yaw.sin()
    away = places.flip(1)[:, :, None] - places[:, :, :, None]
    planar2 = away[0] * away[0] + away[1] * away[1]
    distance = (planar2 + away[2] * away[2]).sqrt()
    return Pairs(away, distance, planar2.sqrt().clamp_min(1.0e-6), painted_by_own(state, tables), cos, sin)


def painted_by_own(state: State, tables: Tables) -> Tensor:
    """Returns ``[2, n, n, W]`` bool: a mech of the same pack has painted the enemy."""
    painted = of_enemies(state.clocks[:, rules.PAINTED]) > 0
    if tables.packs == 1:
        return painted.expand(-1, tables.mechs, -1, -1)
    return painted & (of_enemies(state.painter).div(rules.SLOTS).floor() == tables.pack[:, None])


def look(state: State, tables: Tables, partial: bool, smoke: bool = True) -> State:
    """Updates the sensors after a decision.

    Args:
        partial: whether enemies are seen only within reach of the sensors.
        smoke: whether there may be clouds.
    """
    places = centres(state, tables)
    blue, red = places[:, 0, :, None], places[:, 1, None]
    view = clear_between(blue, red, state.base, tables)
    unclouded = clear_of_smoke(blue, red, state.clouds.flatten(1, 3)) if smoke else torch.ones_like(view)
    sight = _both_ways(view & unclouded).to(state.hp.dtype)
    jam, quality = sensor_quality(state, tables)
    state = state.replace(sight=sight, jam=jam, quality=quality)
    if not partial:
        return state
    visible = contacts(state, tables, _both_ways(unclouded))
    now = recallable(state)[:, :, None].expand(-1, -1, tables.mechs, -1, -1)
    memory = torch.where(visible, now, state.memory)
    return state.replace(memory=memory, ago=torch.where(visible, 0.0, state.ago + 1))


def _both_ways(blue_to_red: Tensor) -> Tensor:
    return torch.stack((blue_to_red, blue_to_red.transpose(0, 1)))


def recallable(state: State) -> Tensor:
    """Returns the remembered rows of every mech's enemies, ``[12, 2, n, W]``."""
    own = torch.stack((state.yaw, state.hp, state.heat, state.stability, state.fallen.to(state.hp.dtype), state.legs))
    return torch.cat((state.position, state.velocity, own)).flip(1)


def sensor_quality(state: State, tables: Tables) -> tuple[Tensor, Tensor]:
    """Returns the jamming of mechs, 0 to 1, and the quality of their sensors, 0.25 to 1.5; ``[2, n, W]``."""
    places = centres(state, tables)
    scouts = slice(rules.SLOTS - 1, None, rules.SLOTS)
    mode = torch.where(state.alive, state.ewar, 0.0)[:, scouts]

    def strongest(sources: Tensor, on: Tensor) -> Tensor:
        apart = (sources[:, :, None] - places[:, :, :, None]).square().sum(0).sqrt()
        strength = (1 - apart / rules.EWAR_RANGE).clamp_min(0.0) * on.to(apart.dtype)[:, None]
        return strength.masked_fill(apart == 0, 0.0).amax(2)  # a mech does not help itself

    jam = strongest(places.flip(1)[:, :, scouts], mode.flip(0) == 1)
    helped = strongest(places[:, :, scouts], mode == 2)
    return jam, (1 - 0.85 * jam + 0.65 * helped).clamp(0.25, 1.5)


def contacts(state: State, tables: Tables, unclouded: Tensor) -> Tensor:
    """Returns the enemies that each mech sees, ``[2, n, n, W]`` bool.

    Args:
        unclouded: ``[2, n, n, W]`` bool: no smoke between.
    """
    pairs = measure(state, tables)
    quality = state.quality[:, :, None]
    near = pairs.distance <= SEEN_NEAR * quality
    loud = (state.heat > HOT * tables.heat_cap) | (state.ewar > 0)
    marked = pairs.marked & (quality >= rules.GUIDED_QUALITY)
    seen = marked | near | (of_enemies(loud) & unclouded) | (state.sight > 0)
    return seen & of_enemies(state.alive) & state.alive[:, :, None]
