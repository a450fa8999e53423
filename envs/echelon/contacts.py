"""Other mechs as a mech sees them: 24 numbers each, in its own axes.

0 to 2 place over 64 (forward, left, up), 3 to 5 relative velocity over 10, 6 and 7 sine and cosine of its facing, hp,
heat (0 to 2), stability, fallen, legged, alive, seconds since it was seen over 10, four class flags,
19 to 23: painted, visible, elevation for a gauss slug over pi/4, closing speed over 10, how much it crosses (0 to 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import MAP
from .sensors import of_enemies, recallable
from .state import State
from .tables import Tables

CONTACT = 24
_FALL = 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2


class Others(NamedTuple):
    """Others as seen, ``[..., teams, n, others, W]`` or what broadcasts to it."""

    place: Tensor  # [3, ...] of the feet
    velocity: Tensor  # [3, ...]
    yaw: Tensor
    hp: Tensor
    heat: Tensor
    stability: Tensor
    fallen: Tensor
    legs: Tensor


def enemies_seen(state: State, tables: Tables, visible: Tensor, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """``[24 * n, teams, n, W]``: every enemy by slot, as it is where visible, else as it was last seen."""
    if len(state.memory):
        recalled = state.memory[:, :teams]
    else:
        recalled = recallable(state, tables)[:, :teams, None]
    others = Others(recalled[:3], recalled[3:6], *recalled[6:])
    alive = of_enemies(state.alive)[:teams]
    ago = (state.ago[:teams] * (rules.DECISION / 10)).clamp_max(1.0)
    known = alive & (ago < 1)
    painted = of_enemies(state.clocks[:, rules.PAINTED] > 0)[:teams] & visible[:teams]
    rows = _rows(state, tables, others, teams, cos, sin)
    flags = [known, ago, *_classes(tables), painted, visible[:teams]]
    return _slots(rows, flags, known, ago)


def mates_seen(state: State, tables: Tables, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """``[24 * (n - 1), teams, n, W]``: every team mate by slot, without the mech itself."""
    one = state.position[:, :teams, None], state.velocity[:, :teams, None]
    rest = (state.yaw, state.hp, state.heat, state.stability, state.fallen.to(cos.dtype), state.legs)
    others = Others(*one, *(values[:teams, None] for values in rest))
    alive = state.alive[:teams, None].expand(-1, tables.mechs, -1, -1)
    painted = (state.clocks[:, rules.PAINTED] > 0)[:teams, None] & alive
    rows = _rows(state, tables, others, teams, cos, sin)
    full = _slots(rows, [alive, 0.0 * cos[:, None], *_classes(tables), painted, alive], alive, None)
    return _without_self(full, tables.mechs)


def _classes(tables: Tables) -> list[Tensor]:
    return list(tables.classes)


def _slots(rows: list[Tensor], flags: list[Tensor], known: Tensor, ago: Tensor | None) -> Tensor:
    """Rows of contacts in their order, zeros for whom nothing is known of; ``[24 * others, teams, n, W]``."""
    shape, kind = known.shape, rows[0].dtype

    def by_other(row: Tensor) -> Tensor:
        return row.to(kind).expand(shape).permute(2, 0, 1, 3)

    ordered = torch.stack([by_other(row) for row in (*rows[:13], *flags, *rows[13:])], 1) * by_other(known)[:, None]
    if ago is not None:  # how long is told even of those never seen
        ordered[:, 14] = by_other(ago)
    return ordered.flatten(0, 1)


def _without_self(full: Tensor, mechs: int) -> Tensor:
    """Leaves out the mech's own slot: the later ones move up."""
    slots = full.unflatten(0, (mechs, CONTACT))
    own = torch.arange(mechs, device=full.device)
    place = torch.arange(mechs - 1, device=full.device)[:, None]
    later = (place >= own).view(mechs - 1, 1, 1, mechs, 1)
    return torch.where(later, slots[1:], slots[:-1]).flatten(0, 1)


def _rows(state: State, tables: Tables, others: Others, teams: int, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """The thirteen numbers before the flags, and the three after them."""
    c, s = cos[:, :, None], sin[:, :, None]
    own, speed = state.position[:, :teams, :, None], state.velocity[:, :teams, :, None]
    dx, dy, dz = (there - here for there, here in zip(others.place, own))
    vx, vy, vz = (theirs - mine for theirs, mine in zip(others.velocity, speed))
    dz = dz + (tables.height - tables.height[:, None]) / 2
    turn = others.yaw - state.yaw[:teams, :, None]
    planar = (dx * dx + dy * dy).sqrt().clamp_min(1.0e-3)
    apart = (planar * planar + dz * dz).sqrt()
    closing = -(vx * dx + vy * dy + vz * dz) / apart
    pace = (vx * vx + vy * vy + vz * vz).sqrt()
    crossing = torch.where(pace > 0.1, 1 - (closing / pace.clamp_min(0.1)).abs(), 0.0)
    lead = torch.atan2(dz + _FALL * apart * apart, planar) / (math.pi / 4)
    return [
        (dx * c + dy * s) / MAP,
        (dy * c - dx * s) / MAP,
        dz / MAP,
        (vx * c + vy * s) / 10,
        (vy * c - vx * s) / 10,
        vz / 10,
        turn.sin(),
        turn.cos(),
        (others.hp / tables.hp).clamp_min(0.0),
        (others.heat / tables.heat_cap).clamp_max(2.0),
        others.stability / rules.STABILITY,
        others.fallen,
        others.legs <= 0,
        lead,
        closing / 10,
        crossing,
    ]


def visible_enemies(state: State, tables: Tables, partial: bool) -> Tensor:
    """Enemies in contact, ``[2, n, n, W]`` bool; without ``partial`` all that live."""
    alive = of_enemies(state.alive) & state.alive[:, :, None]
    return alive & (state.ago == 0) if partial else alive
