"""The flight of missiles, gauss slugs and autocannon shells, and their hits.

Only flying shots are processed, as a list of E entries gathered from all worlds. On devices where finding them would
wait, all places are processed; for compiled code, which needs few lengths, some empty places, too. All ways lead to the
same worlds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from . import rules
from .maps import cell, look_up
from .rules import DT, LAUNCHERS, SHOTS, SLOTS
from .sensors import Pairs, centres
from .state import State
from .tables import Tables
from .weapons import Hits, Volley, bonuses

# -- launch --------------------------------------------------------------------------------------------------------


def launch(state: State, volley: Volley, tables: Tables, pairs: Pairs) -> State:
    """Launches new shots; each replaces the oldest of its launcher."""
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


# -- flight --------------------------------------------------------------------------------------------------------


Which = Literal["flying", "padded", "all"]

_LENGTHS = (128, 512, 2048)
_NO_HIT = 9.0
_EARLIER = 1.0e-4


class Places(NamedTuple):
    """Places of entries, ``[E]`` integers."""

    place: Tensor  # among [2, S, W]
    slot: Tensor  # of the pack's nine, all packs: 0 to S - 1
    world: Tensor
    mine: Tensor  # among [2, W]: the shooter's team
    foes: Tensor  # the other one
    owner: Tensor  # among [2, n, W]
    missile: Tensor  # among [2, 2P, W]; arbitrary for other shots


class Mechs(NamedTuple):
    """Mechs of one team for each entry, ``[n, E]``, or of both teams, ``[n, 2, E]``."""

    place: Tensor  # [3, ...] of the centre
    feet: Tensor
    cos: Tensor  # of the yaw
    sin: Tensor
    alive: Tensor  # flag


class Shots(NamedTuple):
    """Shots in a sub-step, ``[E]``."""

    place: Tensor  # [3, E]
    velocity: Tensor  # [3, E]
    step: Tensor  # [3, E]
    live: Tensor  # bool
    kind: Tensor  # [7, E] rows of ``Tables.shot_numbers``


def airborne(shots: Tensor, which: Which) -> Tensor:
    """Returns places of shots, ``[E]`` integers among ``[2, S, W]``.

    Args:
        shots: ``[8, 2, S, W]``.
        which: ``"flying"``; ``"padded"`` with empty places up to one of few lengths; or ``"all"``.
    """
    live = shots[6].flatten() > 0
    if which == "all":
        return torch.arange(len(live), device=live.device)
    flying = live.nonzero()[:, 0]
    if which == "flying":
        return flying
    length = next((length for length in _LENGTHS if len(flying) <= length < len(live)), len(live))
    # One empty place, repeated, has no effect.
    idle = live.to(torch.uint8).argmin().expand(length - len(flying))
    return torch.cat((flying, idle))


def fly(state: State, tables: Tables, pairs: Pairs, luck: Tensor, places: Tensor) -> tuple[State, Hits, Tensor]:
    """Moves shots and finds their hits; also counts the interceptions of each mech's AMS, ``[2, n, W]``.

    Args:
        luck: ``[2, 2P, P, W]`` uniform; a missile is intercepted below 0.6.
        places: result of :func:`airborne`.
    """
    at = _places(state, tables, places)
    old = state.shots.flatten(1).index_select(1, at.place)
    both = _table(state, tables, pairs).index_select(2, torch.cat((at.foes, at.mine))).unflatten(2, (2, -1))
    foes = _mechs(both[:, :, 0])
    shots = _moving(old, foes, tables, at)
    rel = foes.place - shots.place[:, None]
    rel2 = (rel * rel).sum(0)
    state, live, intercepts = _intercept(state, shots, rel2, tables, at, luck)
    shots = shots._replace(live=live)
    blocked = _blocked(state, shots, tables, at)
    direct, when = _direct(shots, rel, rel2, foes, blocked, tables)
    found = when < _NO_HIT / 2
    struck = live & (found | (blocked <= 1))
    # A shot that meets the ground bursts at its last free place.
    moment = torch.where(found, when, (blocked - 0.5).clamp(0.0, 1.0))
    hits = _hits(state, shots, foes, _mechs(both), pairs, direct, moment, struck, tables, at)
    left = (old[6] - 1) * (live & ~struck)
    new = torch.cat((shots.place + shots.step, shots.velocity, left[None], old[7:]))
    new = torch.where(old[6] > 0, new, old)
    flown = state.shots.flatten(1).index_copy(1, at.place, new).view_as(state.shots)
    return state.replace(shots=flown), hits, intercepts


def _places(state: State, tables: Tables, index: Tensor) -> Places:
    _, _, count, worlds = state.shots.shape
    world, row = index % worlds, index // worlds
    team, slot = row // count, row % count
    owner = tables.shot_owner.index_select(0, slot)
    missile = tables.shot_missile.index_select(0, slot)
    return Places(
        index,
        slot,
        world,
        team * worlds + world,
        (1 - team) * worlds + world,
        (team * tables.mechs + owner) * worlds + world,
        (team * 2 * tables.packs + missile) * worlds + world,
    )


def _table(state: State, tables: Tables, pairs: Pairs) -> Tensor:
    """Returns the rows of mechs that entries need, ``[7, n, 2 * W]``."""
    rows = (*centres(state, tables), state.position[2], pairs.cos, pairs.sin, state.alive.to(state.hp.dtype))
    return torch.stack(rows).transpose(1, 2).flatten(2)


def _mechs(rows: Tensor) -> Mechs:
    return Mechs(rows[:3], *rows[3:])


def _moving(old: Tensor, foes: Mechs, tables: Tables, at: Places) -> Shots:
    kind = tables.shot_numbers.index_select(1, at.slot)
    place, velocity = old[:3], _homed(old, foes, kind[6], tables)
    velocity = torch.cat((velocity[:2], velocity[2:] - kind[:1]))
    return Shots(place, velocity, velocity * DT, old[6] > 0, kind)


def _homed(old: Tensor, foes: Mechs, missile: Tensor, tables: Tables) -> Tensor:
    """Returns velocities ``[3, E]``; those of missiles turn towards living targets."""
    mine = (old[7] == tables.slots) * foes.alive
    goal = (foes.place * mine).sum(1)
    to = goal - old[:3]
    to = to / to.square().sum(0).sqrt().clamp_min(1.0e-6)
    course = old[3:6] / rules.MISSILE_SPEED
    new = course + rules.HOMING * DT * (to - course)
    new = new * (rules.MISSILE_SPEED / new.square().sum(0).sqrt().clamp_min(1.0e-6))
    return torch.where((mine.sum(0) * missile) > 0, new, old[3:6])


def _intercept(
    state: State, shots: Shots, rel2: Tensor, tables: Tables, at: Places, luck: Tensor
) -> tuple[State, Tensor, Tensor]:
    """Lets every ready heavy try once to intercept each missile that comes near."""
    packs, kind = tables.packs, rel2.dtype
    worlds = state.hp.shape[-1]
    working = state.alive & (state.heat <= tables.heat_cap) & (state.clocks[:, rules.AMS] == 0)
    ready = working[:, ::SLOTS].transpose(0, 1).flatten(1).index_select(1, at.foes)
    missiles = state.screened.movedim(2, 0).flatten(1)  # [P, 2 * 2P * W]
    fresh = missiles.index_select(1, at.missile) == 0
    draw = luck.movedim(2, 0).flatten(1).index_select(1, at.missile)
    tries = (rel2[::SLOTS] <= rules.AMS_RANGE**2) & ready & fresh & shots.live & (shots.kind[6] > 0)
    caught = tries & (draw < rules.AMS_CHANCE)
    screened = missiles + _summed(tries.to(kind), at.missile, missiles.shape[1])
    screened = screened.view(packs, 2, 2 * packs, worlds).movedim(0, 2)
    counted = _summed(caught.to(kind), at.foes, 2 * worlds)
    done = counted.view(packs, 1, 2, worlds) * tables.heavy[:SLOTS].view(1, SLOTS, 1, 1)
    done = done.flatten(0, 1).transpose(0, 1)
    row = torch.where(done > 0, rules.AMS_TICKS, state.clocks[:, rules.AMS])
    clocks = state.clocks.select_scatter(row, 1, rules.AMS)
    return state.replace(clocks=clocks, screened=screened), shots.live & ~caught.any(0), done


def _blocked(state: State, shots: Shots, tables: Tables, at: Places) -> Tensor:
    """Returns the share of the step after which a shot meets the ground, a half or 1, or 2 if it does not, ``[E]``."""
    x, y, z = shots.place[:, None] + tables.halves * shots.step[:, None]
    base = state.base.index_select(0, at.world)
    outside = (x < 0) | (x > tables.side) | (y < 0) | (y > tables.side)
    inside = (look_up(tables.maps.height, cell(x, y, base, tables.side), z) > z) | (z < 0) | outside
    return torch.where(inside[0], 0.5, torch.where(inside[1], 1.0, 2.0)).to(z.dtype)


def _direct(
    shots: Shots, rel: Tensor, rel2: Tensor, foes: Mechs, blocked: Tensor, tables: Tables
) -> tuple[Tensor, Tensor]:
    """Returns the enemy that each shot hits first, one-hot ``[n, E]`` bool, and when, as a share of the step."""
    along = (rel * shots.step[:, None]).sum(0)
    length2 = shots.step.square().sum(0).clamp_min(1.0e-9)
    when = (along / length2).clamp(0.0, 1.0)
    apart2 = rel2 - when * (2 * along - when * length2)
    hit = (apart2 <= tables.reach * tables.reach) & (when <= blocked) & shots.live & (foes.alive > 0)
    score = torch.where(hit, when + tables.slots * _EARLIER, _NO_HIT)
    first = score.amin(0)
    return (score == first) & hit, torch.where(first < _NO_HIT / 2, first.clamp_max(1.0), _NO_HIT)


def _hits(
    state: State,
    shots: Shots,
    foes: Mechs,
    both: Mechs,
    pairs: Pairs,
    direct: Tensor,
    moment: Tensor,
    struck: Tensor,
    tables: Tables,
    at: Places,
) -> Hits:
    """Sums the hits of all shots by shooter and by target.

    Args:
        both: enemies and the own team, ``[n, 2, E]``.
    """
    mechs, worlds, kind = tables.mechs, state.hp.shape[-1], moment.dtype
    vx, vy, _ = shots.velocity
    rear = (vx * foes.cos + vy * foes.sin > rules.REAR_COSINE * (vx * vx + vy * vy).sqrt()).to(kind)
    marked = pairs.marked.permute(2, 0, 1, 3).flatten(1).index_select(1, at.owner).to(kind)
    hit = direct.to(kind)
    raw = hit * shots.kind[1] * bonuses(rear, marked)
    low = shots.place[2] + moment * shots.step[2] - foes.feet < rules.LEG_HEIGHT * tables.height
    legs = raw * low
    near = shots.place + moment * shots.step
    base = state.base.index_select(0, at.world)
    splash, own = _splash(shots, both, near, struck, tables, base).unbind(1)
    by_owner = _summed(torch.cat((raw - legs / 2 + splash * (1 - hit), own)), at.owner, 2 * mechs * worlds)
    body, mates_hurt = by_owner.view(2, mechs, 2, mechs, worlds).permute(0, 2, 3, 1, 4)
    shock = hit * (1 + (rules.REAR_FACTOR - 1) * rear) * shots.kind[2]
    by_target = _summed(torch.cat((legs, shock, hit * shots.kind[3])), at.foes, 2 * worlds)
    on_legs, shocks, suppressed = by_target.view(3, mechs, 2, worlds).transpose(1, 2)
    return Hits(body, mates_hurt, on_legs, shocks, None, suppressed.clamp_max(rules.SUPPRESSED_TICKS))


def _summed(values: Tensor, index: Tensor, columns: int) -> Tensor:
    """Adds columns of ``values [R, E]`` at ``index [E]``; returns ``[R, columns]``."""
    rows = len(values)
    # In one dimension, since otherwise the CPU adds column by column.
    flat = torch.arange(0, rows * columns, columns, device=index.device)[:, None] + index
    return values.new_zeros(rows * columns).index_add(0, flat.flatten(), values.flatten()).view(rows, columns)


def _splash(shots: Shots, both: Mechs, near: Tensor, struck: Tensor, tables: Tables, base: Tensor) -> Tensor:
    """Returns the damage ``[n, 2, E]`` to both teams around bursting missiles and slugs, if no ground is between."""
    burst = near[:, None, None]
    apart = (both.place - burst).square().sum(0).sqrt()
    x, y, z = (both.place + burst) / 2
    free = look_up(tables.maps.height, cell(x, y, base, tables.side), z) <= z
    amount = shots.kind[5] * (1 - apart / shots.kind[4]).clamp_min(0.0) * both.alive
    return amount * (free & struck)


# -- smoke ---------------------------------------------------------------------------------------------------------


def drift(state: State, tables: Tables) -> State:
    """Moves smoke shells; one that meets the ground or reaches its range starts a cloud."""
    place = state.shells[:3] + state.shells[3:6] * DT
    x, y, z = place.unbind(0)
    left = state.shells[6]
    outside = (x < 0) | (x > tables.side) | (y < 0) | (y > tables.side)
    stopped = (look_up(tables.maps.height, cell(x, y, state.base, tables.side), z) > z) | outside | (left <= 1)
    bursts = (left > 0) & stopped
    clouds = torch.cat((state.clouds[:3], (state.clouds[3:] - 1).clamp_min(0.0)))
    fresh = torch.cat((state.shells[:3], torch.full_like(left, rules.CLOUD_TICKS)[None]))
    clouds = torch.where(bursts, torch.stack((fresh, clouds[:, 0]), 1), clouds)
    left = torch.where(bursts, 0.0, (left - 1).clamp_min(0.0))
    return state.replace(shells=torch.cat((place, state.shells[3:6], left[None])), clouds=clouds)


def launch_smoke(state: State, orders: Tensor, tables: Tables, able: Tensor) -> State:
    """Fires smoke shells straight ahead; smoke and missiles share a clock."""
    clock = state.clocks[:, rules.MISSILE]
    fires = (orders[:, rules.SPECIAL] > 0) & able & (clock == 0)
    yaw = state.yaw
    velocity = torch.stack((yaw.cos(), yaw.sin(), torch.zeros_like(yaw))) * rules.SMOKE_SPEED
    fresh = torch.cat((centres(state, tables), velocity, torch.full_like(yaw, rules.SHELL_TICKS)[None]))
    row = torch.where(fires, rules.SMOKE_TICKS, clock)
    clocks = state.clocks.select_scatter(row, 1, rules.MISSILE)
    heat = state.heat + torch.where(fires, rules.SMOKE_HEAT, 0.0)
    return state.replace(shells=torch.where(fires, fresh, state.shells), clocks=clocks, heat=heat)
