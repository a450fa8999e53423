"""Observations of mechs: themselves, sounds, team mates, enemies, the ground around and the direction to the zone.

Other mechs are contacts of 24 numbers each, in the mech's own axes: 0 to 2 place over 64 (forward, left, up), 3 to 5
relative velocity over 10, 6 and 7 sine and cosine of its facing, hp, heat (0 to 2), stability, fallen, legged, alive,
seconds since it was seen over 10, four class flags, 19 to 23: painted, visible, elevation for a gauss slug over pi/4,
closing speed over 10, how much it crosses (0 to 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .maps import cell, look_up, within
from .rewards import Hold
from .rules import MAP
from .sensors import Pairs, clear_between, measure, of_enemies, recallable
from .state import State
from .tables import Tables

# -- other mechs ---------------------------------------------------------------------------------------------------


CONTACT = 24
_FALL = 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2


class Others(NamedTuple):
    """Observed mechs, ``[..., teams, n, others, W]`` or broadcastable to it."""

    place: Tensor  # [3, ...] of the feet
    velocity: Tensor  # [3, ...]
    yaw: Tensor
    hp: Tensor
    heat: Tensor
    stability: Tensor
    fallen: Tensor
    legs: Tensor


def enemies_seen(state: State, tables: Tables, visible: Tensor, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns ``[24 * n, teams, n, W]``: every enemy by slot, as it is if visible, otherwise as last seen."""
    if len(state.memory):
        recalled = state.memory[:, :teams]
    else:
        recalled = recallable(state)[:, :teams, None]
    others = Others(recalled[:3], recalled[3:6], *recalled[6:])
    alive = of_enemies(state.alive)[:teams]
    ago = (state.ago[:teams] * (rules.DECISION / 10)).clamp_max(1.0)
    known = alive & (ago < 1)
    painted = of_enemies(state.clocks[:, rules.PAINTED] > 0)[:teams] & visible[:teams]
    rows = _rows(state, tables, others, teams, cos, sin)
    flags = [known, ago, *_classes(tables), painted, visible[:teams]]
    return _slots(rows, flags, known, ago)


def mates_seen(state: State, tables: Tables, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns ``[24 * (n - 1), teams, n, W]``: every team mate by slot, without the mech itself."""
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
    """Returns rows of contacts in order, zeros for unknown ones; ``[24 * others, teams, n, W]``."""
    shape, kind = known.shape, rows[0].dtype

    def by_other(row: Tensor) -> Tensor:
        return row.to(kind).expand(shape).permute(2, 0, 1, 3)

    ordered = torch.stack([by_other(row) for row in (*rows[:13], *flags, *rows[13:])], 1) * by_other(known)[:, None]
    if ago is not None:  # the time since is given even for mechs never seen
        ordered[:, 14] = by_other(ago)
    return ordered.flatten(0, 1)


def _without_self(full: Tensor, mechs: int) -> Tensor:
    """Removes the mech's own slot; later ones move up."""
    slots = full.unflatten(0, (mechs, CONTACT))
    own = torch.arange(mechs, device=full.device)
    place = torch.arange(mechs - 1, device=full.device)[:, None]
    later = (place >= own).view(mechs - 1, 1, 1, mechs, 1)
    return torch.where(later, slots[1:], slots[:-1]).flatten(0, 1)


def _rows(state: State, tables: Tables, others: Others, teams: int, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Returns the thirteen numbers before the flags, and the three after them."""
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


def visible_enemies(state: State, partial: bool) -> Tensor:
    """Returns enemies in contact, ``[2, n, n, W]`` bool; without ``partial`` all living ones."""
    alive = of_enemies(state.alive) & state.alive[:, :, None]
    return alive & (state.ago == 0) if partial else alive


# -- the whole observation -----------------------------------------------------------------------------------------


SELF, SOUNDS, GRID, NAVIGATION = 36, 4, 9, 9
_SPACING = 2.0
_LOUD = 5.0


def size(mechs: int) -> int:
    """Returns the size of an observation: 346 for teams of five."""
    return SELF + SOUNDS + CONTACT * (2 * mechs - 1) + GRID * GRID + NAVIGATION


def observe(
    state: State, tables: Tables, held: Hold, visible: Tensor, teams: int, limits: tuple[float, float]
) -> Tensor:
    """Returns observations of the agents of one or both teams, ``[W, A, size]``; zeros for the dead.

    Args:
        held: current control of the zone.
        visible: ``[2, n, n, W]`` bool: enemies in contact.
        limits: number of decisions of an episode, and the score that wins.
    """
    pairs = measure(state, tables)
    cos, sin = state.yaw[:teams].cos(), state.yaw[:teams].sin()
    parts = (
        _self(state, tables, held, cos, sin, limits),
        _sounds(state, tables, pairs, teams, cos, sin),
        mates_seen(state, tables, teams, cos, sin),
        enemies_seen(state, tables, visible, teams, cos, sin),
        _grid(state, tables, teams, cos, sin),
        _navigation(state, tables, held, cos, sin),
    )
    alive = state.alive[:teams].to(state.hp.dtype)
    out = torch.empty(state.hp.shape[-1], teams, tables.mechs, size(tables.mechs), dtype=cos.dtype, device=cos.device)
    place = 0
    for part in parts:
        out[..., place : place + len(part)] = (part * alive).permute(3, 1, 2, 0)
        place += len(part)
    return out.flatten(1, 2)


def _turned(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the forward and left components of a world vector."""
    return x * cos + y * sin, y * cos - x * sin


def _self(state: State, tables: Tables, held: Hold, cos: Tensor, sin: Tensor, limits: tuple[float, float]) -> Tensor:
    """Returns ``[36, teams, n, W]``; see :class:`rlstack.envs.echelon.env.Echelon`."""
    teams, like = len(cos), cos
    clocks, speed = state.clocks[:teams], state.velocity[:, :teams]
    heat = (state.heat / tables.heat_cap)[:teams]
    targeted = (state.focus[:, :, None] == tables.slots) & state.alive[:, :, None]
    forward, left = _turned(speed[0], speed[1], cos, sin)
    zone = _turned(held.away[0, :teams], held.away[1, :teams], cos, sin)
    hit = _turned(state.hit_from[0, :teams], state.hit_from[1, :teams], cos, sin)
    score = state.score / limits[1]
    waits = [clocks[:, row] / most for row, most in ((0, 12.0), (1, 100.0), (2, 80.0), (3, 20.0))]
    mode = state.ewar[:teams]
    rows: list[Tensor] = [
        *tables.classes,
        targeted.any(1).flip(0)[:teams],
        state.under_fire[:teams],
        clocks[:, rules.PAINTED] > 0,
        heat > 1,
        heat > 0.85,
        (state.hp / tables.hp)[:teams].clamp_min(0.0),
        heat.clamp_max(2.0),
        1 - state.stability[:teams] / rules.STABILITY,
        *hit,
        _incoming(state, tables)[:teams],
        state.quality[:teams] / 1.5,
        state.jam[:teams],
        mode == 1,
        mode == 2,
        clocks[:, rules.SUPPRESSED] / rules.SUPPRESSED_TICKS,
        clocks[:, rules.AMS] / rules.AMS_TICKS,
        *(part / 10 for part in (forward, left, speed[2])),
        *waits,
        held.inside[:teams],
        *(part / MAP for part in zone),
        state.zone[2] / 10,
        held.control[:teams, None],
        score[:teams, None],
        score.flip(0)[:teams, None],
        state.steps / limits[0],
    ]
    return torch.stack([row.to(like.dtype).expand_as(like) for row in rows])


def _incoming(state: State, tables: Tables) -> Tensor:
    """Returns ``[2, n, W]`` bool: an enemy missile flies at the mech."""
    missiles = state.shots.unflatten(2, (tables.packs, rules.SHOTS))[6:, :, :, :2].flatten(2, 3)
    flying = (missiles[1][:, :, None] == tables.slots) & (missiles[0] > 0)[:, :, None]
    return flying.any(1).flip(0)


def _sounds(state: State, tables: Tables, pairs: Pairs, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the noise of enemies in front, to the left, behind and to the right, ``[4, teams, n, W]``."""
    speed = state.velocity[:2].square().sum(0).sqrt()
    noise = torch.where(state.alive & ~state.fallen, speed * tables.noise, 0.0).flip(0)[:teams, None]
    heard = noise / (1 + pairs.distance[:teams].square()) * (0.2 + 0.8 * state.sight[:teams])
    ahead, left = _turned(pairs.away[0, :teams], pairs.away[1, :teams], cos[:, :, None], sin[:, :, None])
    along = ahead.abs() >= left.abs()
    quarters = (along & (ahead > 0), ~along & (left > 0), along & (ahead <= 0), ~along & (left <= 0))
    return torch.stack([(heard * quarter).sum(2) for quarter in quarters]).log1p() / _LOUD


def _grid(state: State, tables: Tables, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns ground heights at nine by nine points two voxels apart, ``[81, teams, n, W]``, row by row ahead."""
    steps = (torch.arange(GRID, dtype=cos.dtype, device=cos.device) - GRID // 2) * _SPACING
    ahead, left = steps.repeat_interleave(GRID).view(-1, 1, 1, 1), steps.repeat(GRID).view(-1, 1, 1, 1)
    x = state.position[0, :teams] + ahead * cos - left * sin
    y = state.position[1, :teams] + ahead * sin + left * cos
    high = look_up(tables.maps.walk, cell(*within(torch.stack((x, y)), tables.side).int(), state.base, tables.side))
    high = ((high - state.position[2, :teams]) / 4).clamp(-2.0, 2.0)
    return torch.where((x < 0) | (x >= tables.side) | (y < 0) | (y >= tables.side), 2.0, high)


def _navigation(state: State, tables: Tables, held: Hold, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns ``[9, teams, n, W]``: direction to the zone, its edge, visibility, the map's middle, height, ground."""
    teams = len(cos)
    x, y, z = state.position[:, :teams].unbind(0)
    here = cell(x, y, state.base, tables.side)
    flow = look_up(tables.maps.flow, here).int()
    way = tables.directions.index_select(1, flow.flatten()).view(2, *flow.shape)
    eyes = torch.stack((x, y, z + tables.height / 2))
    goal = torch.stack((state.zone[0], state.zone[1], torch.ones_like(state.zone[0])))[:, None, None]
    seen = clear_between(eyes, goal, state.base, tables)
    middle = _turned(tables.side / 2 - x, tables.side / 2 - y, cos, sin)
    lame = state.fallen[:teams].to(cos.dtype) + 0.5 * (state.legs[:teams] <= 0)
    edge = (held.distance[:teams] - state.zone[2]) / MAP
    ground = look_up(tables.maps.kind, here) / 4
    rows = [*_turned(way[0], way[1], cos, sin), edge, seen.to(cos.dtype), *(part / MAP for part in middle)]
    return torch.stack([*rows, z / rules.CEILING, ground.to(z.dtype), lame])
