"""What mechs see: themselves, sounds, mates, enemies, the ground around and the way to the zone."""

from __future__ import annotations

import torch
from torch import Tensor

from . import rules
from .contacts import CONTACT, enemies_seen, mates_seen
from .rules import MAP
from .sensors import Pairs, measure
from .state import State
from .tables import Tables
from .terrain import cell, clear_between, look_up
from .zone import Hold

SELF, SOUNDS, GRID, NAVIGATION = 36, 4, 9, 9
_SPACING = 2.0
_LOUD = 5.0


def size(mechs: int) -> int:
    """Numbers of an observation: 346 for teams of five."""
    return SELF + SOUNDS + CONTACT * (2 * mechs - 1) + GRID * GRID + NAVIGATION


def observe(
    state: State, tables: Tables, held: Hold, visible: Tensor, teams: int, limits: tuple[float, float]
) -> Tensor:
    """Observations of the agents of one or both teams, ``[W, A, size]``; zeros for the dead.

    Args:
        held: of the zone, now.
        visible: ``[2, n, n, W]`` bool: enemies in contact.
        limits: decisions of an episode, and the score that wins.
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
    """Forward and left parts of a vector of the world."""
    return x * cos + y * sin, y * cos - x * sin


def _self(state: State, tables: Tables, held: Hold, cos: Tensor, sin: Tensor, limits: tuple[float, float]) -> Tensor:
    """``[36, teams, n, W]``: see :class:`envs.echelon.env.Echelon`."""
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
    """``[2, n, W]`` bool: an enemy missile flies at the mech."""
    missiles = state.shots.unflatten(2, (tables.packs, rules.SHOTS))[6:, :, :, :2].flatten(2, 3)
    flying = (missiles[1][:, :, None] == tables.slots) & (missiles[0] > 0)[:, :, None]
    return flying.any(1).flip(0)


def _sounds(state: State, tables: Tables, pairs: Pairs, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Noise of enemies in front, to the left, behind and to the right, ``[4, teams, n, W]``."""
    speed = state.velocity[:2].square().sum(0).sqrt()
    noise = torch.where(state.alive & ~state.fallen, speed * tables.noise, 0.0).flip(0)[:teams, None]
    heard = noise / (1 + pairs.distance[:teams].square()) * (0.2 + 0.8 * state.sight[:teams])
    ahead, left = _turned(pairs.away[0, :teams], pairs.away[1, :teams], cos[:, :, None], sin[:, :, None])
    along = ahead.abs() >= left.abs()
    quarters = (along & (ahead > 0), ~along & (left > 0), along & (ahead <= 0), ~along & (left <= 0))
    return torch.stack([(heard * quarter).sum(2) for quarter in quarters]).log1p() / _LOUD


def _grid(state: State, tables: Tables, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """How high the ground is around, nine by nine points two voxels apart, ``[81, teams, n, W]``; row by row ahead."""
    steps = (torch.arange(GRID, dtype=cos.dtype, device=cos.device) - GRID // 2) * _SPACING
    ahead, left = steps.repeat_interleave(GRID).view(-1, 1, 1, 1), steps.repeat(GRID).view(-1, 1, 1, 1)
    x = state.position[0, :teams] + ahead * cos - left * sin
    y = state.position[1, :teams] + ahead * sin + left * cos
    high = look_up(tables.maps.walk, cell(x, y, state.base, tables.side), cos)
    high = ((high - state.position[2, :teams]) / 4).clamp(-2.0, 2.0)
    return torch.where((x < 0) | (x >= tables.side) | (y < 0) | (y >= tables.side), 2.0, high)


def _navigation(state: State, tables: Tables, held: Hold, cos: Tensor, sin: Tensor) -> Tensor:
    """``[9, teams, n, W]``: the way to the zone, its edge, whether it is in sight, the map's middle, height, ground."""
    teams = len(cos)
    x, y, z = state.position[:, :teams].unbind(0)
    here = cell(x, y, state.base, tables.side)
    flow = look_up(tables.maps.flow, here, cos).long()
    way = tables.directions.index_select(1, flow.flatten()).view(2, *flow.shape)
    eyes = torch.stack((x, y, z + tables.height / 2))
    goal = torch.stack((state.zone[0], state.zone[1], torch.ones_like(state.zone[0])))[:, None, None]
    seen = clear_between(eyes, goal, state.base, tables)
    middle = _turned(tables.side / 2 - x, tables.side / 2 - y, cos, sin)
    lame = state.fallen[:teams].to(cos.dtype) + 0.5 * (state.legs[:teams] <= 0)
    edge = (held.distance[:teams] - state.zone[2]) / MAP
    ground = look_up(tables.maps.kind, here, cos) / 4
    rows = [*_turned(way[0], way[1], cos, sin), edge, seen.to(cos.dtype), *(part / MAP for part in middle)]
    return torch.stack([*rows, z / rules.CEILING, ground, lame])
