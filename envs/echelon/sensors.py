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
    places = torch.addcmul(middle[:, None], tables.samples, half[:, None])
    ground = look_up(tables.maps.sight, cell(places[:2].int(), base, tables.side))
    return (ground.to(places.dtype) <= places[2]).all(0)


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

    sides: Tensor  # [9, 2, 2, n, W] of its own team, of the other: rows of ``mechs``
    living: Tensor  # [2, 2, n, W] bool: the same: alive
    mechs: Tensor  # [9, 2, n, W] centre, direction of the facing, painter, clock of its mark, hp
    foes: Tensor  # [9, 2, n, W] the same of the other team
    alive: Tensor  # [2, n, W] bool
    there: Tensor  # [2, n, W] bool: living mechs of the other team
    away: Tensor  # [3, 2, n, n, W] from centre to centre
    distance: Tensor  # to the living
    planar: Tensor
    marked: Tensor  # [2, P, n, W] bool: painted by the pack


def centres(state: State, tables: Tables) -> Tensor:
    """Returns the centres of the bodies, ``[3, 2, n, W]``."""
    return state.position + tables.lift


def of_enemies(values: Tensor) -> Tensor:
    """Converts ``[2, n, W]`` of every mech to ``[2, 1, n, W]`` of its enemies."""
    return values.flip(0)[:, None]


def measure(state: State, tables: Tables) -> Pairs:
    """Computes the relative positions of all enemies."""
    yaw = state.yaw
    rows = yaw.cos(), yaw.sin(), tables.none.expand_as(yaw), state.painter, state.clocks[:, rules.PAINTED], state.hp
    mechs = torch.cat((centres(state, tables), *(row[None] for row in rows)))
    # Of blue, red, blue, the first two teams and the last two.
    sides = torch.cat((mechs, mechs[:, :1]), 1).unfold(1, 2, 1).movedim(-1, 2)
    living = sides[8] > 0
    (mechs, foes), (alive, there) = sides.unbind(1), living
    away = foes[:3, :, None] - mechs[:3, :, :, None]
    planar = torch.hypot(away[0], away[1])
    distance = torch.where(there[:, None], torch.hypot(planar, away[2]), tables.never)
    marked = _marked(foes[6], foes[7], tables)
    return Pairs(sides, living, mechs, foes, alive, there, away, distance, planar.clamp_min(1.0e-6), marked)


def painted_by_own(state: State, tables: Tables, team: int) -> Tensor:
    """Returns ``[1, P, n, W]`` bool: the team's pack has painted the enemy."""
    foes = slice(1 - team, 2 - team)
    return _marked(state.painter[foes], state.clocks[foes, rules.PAINTED], tables)


def _marked(painter: Tensor, clock: Tensor, tables: Tables) -> Tensor:
    painted = (clock > 0)[:, None]
    if tables.packs == 1:
        return painted
    return painted & (painter.div(rules.SLOTS).floor()[:, None] == tables.pack[:: rules.SLOTS, None])


def by_mech(by_pack: Tensor) -> Tensor:
    """Converts ``[2, P, n, W]`` of every pack to ``[2, n or 1, n, W]`` of its mechs."""
    return by_pack if by_pack.shape[1] == 1 else by_pack.repeat_interleave(rules.SLOTS, 1)


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
    now = rows_of(state).flip(1)[:, :, None].expand(-1, -1, tables.mechs, -1, -1)
    memory = torch.where(visible, now, state.memory)
    return state.replace(memory=memory, ago=torch.where(visible, 0.0, state.ago + 1))


def _both_ways(blue_to_red: Tensor) -> Tensor:
    return torch.stack((blue_to_red, blue_to_red.transpose(0, 1)))


def rows_of(state: State) -> Tensor:
    """Returns what others see and remember of every mech, ``[12, 2, n, W]``."""
    own = torch.stack((state.yaw, state.hp, state.heat, state.stability, state.fallen, state.legs))
    return torch.cat((state.position, state.velocity, own))


def sensor_quality(state: State, tables: Tables) -> tuple[Tensor, Tensor]:
    """Returns the jamming of mechs, 0 to 1, and the quality of their sensors, 0.25 to 1.5; ``[2, n, W]``."""
    places, scouts = centres(state, tables), slice(rules.SLOTS - 1, None, rules.SLOTS)
    mode, sources = (state.ewar * state.alive)[:, scouts], places[:, :, scouts]
    on = torch.stack((mode.flip(0) == 1, mode == 2))
    away = torch.stack((sources.flip(1), sources), 1)[:, :, :, None] - places[:, None, :, :, None]
    apart = torch.hypot(torch.hypot(away[0], away[1]), away[2])
    # A mech does not help itself.
    strength = (1 - apart / rules.EWAR_RANGE).clamp_min(0.0) * (on[:, :, None] & (apart > 0))
    jam, helped = strength.amax(3)
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
    marked = by_mech(pairs.marked) & (quality >= rules.GUIDED_QUALITY)
    seen = marked | near | (of_enemies(loud) & unclouded) | (state.sight > 0)
    return seen & pairs.there[:, None] & state.alive[:, :, None]
