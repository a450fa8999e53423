"""Observations of mechs: themselves, sounds, team mates, enemies, the ground around and the direction to the zone.

Other mechs are contacts of 24 numbers each, in the mech's own axes: 0 to 2 place over 64 (forward, left, up), 3 to 5
relative velocity over 10, 6 and 7 sine and cosine of its facing, hp, heat (0 to 2), stability, fallen, legged, alive,
seconds since it was seen over 10, four class flags, 19 to 23: painted, visible, elevation for a gauss slug over pi/4,
closing speed over 10, how much it crosses (0 to 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import rules
from .maps import cell, look_up, within
from .rewards import Hold
from .rules import GRID, MAP, PAINTED
from .sensors import clear_between, measure, of_enemies, rows_of
from .state import RECALLED, State
from .tables import Tables


def turned(ways: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the components ahead and to the left of vectors of the map, ``[2 (x, y), ...]``."""
    x, y = ways[0], ways[1]
    return torch.addcmul(x * cos, y, sin), torch.addcmul(y * cos, x, sin, value=-1)


# -- other mechs ---------------------------------------------------------------------------------------------------


CONTACT = 24
_FALL = 0.5 * rules.GRAVITY / rules.GAUSS_SPEED**2


def contacts_seen(state: State, tables: Tables, visible: Tensor, teams: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns ``[24 * (2n - 1), teams, n, W]``: the other mechs of the team by slot, then every enemy by slot.

    Enemies are as last seen unless visible; unknown ones are zeros, except for the time since.
    """
    every = torch.cat((rows_of(state), state.alive[None], state.clocks[:, PAINTED][None] > 0))
    own = every[:6, :teams, :, None]
    others = every.flatten(1, 2).index_select(1, tables.others[:teams].flatten())
    others = others.unflatten(1, (teams, tables.mechs, -1))
    known, painted = others[RECALLED], others[RECALLED + 1]
    seen = known
    if len(state.memory):
        mates = tables.mechs - 1
        others = torch.cat((others[:RECALLED, :, :, :mates], state.memory[:, :teams]), 3)
        ago = (state.ago[:teams] * (rules.DECISION / 10)).clamp_max(1.0)
        seen = torch.cat((known[:, :, :mates], visible[:teams]), 2)
        known = torch.cat((known[:, :, :mates], known[:, :, mates:] * (ago < 1)), 2)
        ago = torch.cat((torch.zeros_like(known[:, :, :mates]), ago), 2)
    c, s = cos[:, :, None], sin[:, :, None]
    way = others[:6] - own
    way[2].add_(tables.higher_than)
    pace, planar = way[3:], torch.hypot(way[0], way[1]).clamp_min(1.0e-3)
    apart = torch.hypot(planar, way[2])
    parting = (way[:3] * pace).sum(0) / apart
    speed = torch.hypot(torch.hypot(pace[0], pace[1]), pace[2])
    crossing = (1 - (parting / speed.clamp_min(0.1)).abs()) * (speed > 0.1)
    lead = torch.atan2(torch.addcmul(way[2], apart, apart, value=_FALL), planar)
    ahead, left = turned(way.unflatten(0, (2, 3)).transpose(0, 1), c, s)
    turn = others[6] - state.yaw[:teams, :, None]
    body = (others[7:10] * tables.fitness).clamp(0.0, 2.0)
    rows = [
        *(ahead[0], left[0], way[2], ahead[1], left[1], way[5], turn.sin(), turn.cos(), *body),
        *(others[10], others[11] <= 0, known, tables.none.expand_as(known), *tables.other_classes),
        *(painted * seen, seen, lead, parting, crossing),
    ]
    rows = torch.stack([row.expand_as(known) for row in rows]) * (tables.contact_scale * known)
    if len(state.memory):
        rows[14] = ago
    return rows.permute(3, 0, 1, 2, 4).flatten(0, 1)


def visible_enemies(state: State, partial: bool) -> Tensor:
    """Returns enemies in contact, ``[2, n, n, W]`` bool; without ``partial`` all living ones."""
    alive = state.alive
    alive = of_enemies(alive) & alive[:, :, None]
    return alive & (state.ago == 0) if partial else alive


# -- the whole observation -----------------------------------------------------------------------------------------


SELF, SOUNDS, NAVIGATION = 36, 4, 9
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
    cos, sin = pairs.mechs[3:5, :teams]
    place = state.position[:, :teams]
    here = cell(place[:2].int(), state.base, tables.side)
    flow = look_up(tables.maps.flow, here).int()
    way = tables.directions.index_select(1, flow.flatten()).view(2, *flow.shape)
    ways = (state.velocity[:2], held.away, state.hit_from, tables.side / 2 - state.position[:2])
    turned_ways = turned(torch.stack([*(each[:, :teams] for each in ways), way], 1), cos, sin)
    speed, zone, hit, middle, course = torch.stack(turned_ways).unbind(1)

    # The noise of enemies in front, to the left, behind and to the right.
    pace = torch.hypot(state.velocity[0], state.velocity[1])
    noise = (pace * tables.noise * (state.alive > state.fallen)).flip(0)[:teams, None]
    heard = noise / (1 + pairs.distance[:teams].square()) * (0.2 + 0.8 * state.sight[:teams])
    ahead, left = turned(pairs.away[:2, :teams], cos[:, :, None], sin[:, :, None])
    along, front, lefts = ahead.abs() >= left.abs(), ahead > 0, left > 0
    quarters = torch.stack((along & front, lefts > along, along > front, ~(along | lefts)))
    sounds = (quarters * heard).sum(3).log1p() / _LOUD

    # Ground heights at nine by nine points two voxels apart, row by row ahead.
    (x, y, z), (ahead, left) = place, tables.grid
    x = torch.addcmul(torch.addcmul(x, ahead, cos), left, sin, value=-1)
    y = torch.addcmul(torch.addcmul(y, ahead, sin), left, cos)
    places = torch.stack((x, y))
    inside = within(places, tables.side)
    high = look_up(tables.maps.walk, cell(inside.int(), state.base, tables.side))
    grid = ((high - z) / 4).clamp(-2.0, 2.0).masked_fill((inside != places).any(0), 2.0)

    # Direction to the zone, its edge, visibility, the map's middle, height, ground, and the mech's legs.
    goal = torch.stack((state.zone[0], state.zone[1], tables.one.expand_as(state.zone[0])))[:, None, None]
    seen = clear_between(place + tables.lift, goal, state.base, tables)
    lame = torch.add(state.fallen[:teams] * 1.0, state.legs[:teams] <= 0, alpha=0.5)
    edge = (held.distance[:teams] - state.zone[2]) / MAP
    ground = look_up(tables.maps.kind, here) / 4
    navigation = torch.stack([*course, edge, seen, *(middle / MAP), place[2] / rules.CEILING, ground, lame])

    parts = (
        _self(state, tables, held, (speed, zone / MAP, hit), teams, limits),
        sounds,
        contacts_seen(state, tables, visible, teams, cos, sin),
        grid,
        navigation,
    )
    alive = state.alive[:teams].to(state.hp.dtype)
    return (torch.cat(parts) * alive).permute(3, 1, 2, 0).flatten(1, 2)


def _self(
    state: State,
    tables: Tables,
    held: Hold,
    ways: tuple[Tensor, Tensor, Tensor],
    teams: int,
    limits: tuple[float, float],
) -> Tensor:
    """Returns ``[36, teams, n, W]``; see :class:`rlstack.envs.echelon.env.Echelon`.

    Args:
        ways: its velocity, the way to the zone, and where the last damage came from, ``[2, teams, n, W]``.
    """
    speed, zone, hit = ways
    missiles = state.shots.unflatten(2, (tables.packs, rules.SHOTS))[6:, :, :, :2].flatten(2, 3)
    incoming = (missiles[1][:, :, None] == tables.slots) & (missiles[0] > 0)[:, :, None]
    clocks = (state.clocks * tables.clock_scale)[:teams]
    heat = (state.heat / tables.heat_cap)[:teams]
    targeted = (state.focus[:, :, None] == tables.slots) & state.alive[:, :, None]
    score = state.score / limits[1]
    mode = state.ewar[:teams]
    rows: list[Tensor] = [
        *tables.classes,
        targeted.any(1).flip(0)[:teams],
        state.under_fire[:teams],
        clocks[:, PAINTED] > 0,
        heat > 1,
        heat > 0.85,
        (state.hp / tables.hp)[:teams].clamp_min(0.0),
        heat.clamp_max(2.0),
        1 - state.stability[:teams] / rules.STABILITY,
        *hit,
        incoming.any(1).flip(0)[:teams],
        state.quality[:teams] / 1.5,
        state.jam[:teams],
        mode == 1,
        mode == 2,
        clocks[:, rules.SUPPRESSED],
        clocks[:, rules.AMS],
        *(speed / 10),
        state.velocity[2, :teams] / 10,
        *clocks[:, :4].unbind(1),
        held.inside[:teams],
        *zone,
        state.zone[2] / 10,
        held.control[:teams, None],
        score[:teams, None],
        score.flip(0)[:teams, None],
        state.steps / limits[0],
    ]
    return torch.stack([row.expand_as(heat) for row in rows])
