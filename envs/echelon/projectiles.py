"""The flight of missiles, gauss slugs and autocannon shells, and their hits.

Only flying shots are processed, as a list of E entries gathered from all worlds. On devices where finding them would
wait, all places are processed; for compiled code, which needs few lengths, some empty places, too. All ways lead to the
same worlds.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from . import rules
from .maps import cell, look_up, within
from .rules import DT, LAUNCHERS, SHOTS, SLOTS
from .sensors import Pairs
from .state import State
from .tables import Tables
from .weapons import Hits, Volley, pack_bonus, rear_bonus


def length(ways: Tensor) -> Tensor:
    """Returns the lengths of vectors ``[3, ...]``, at least a millionth."""
    return torch.hypot(torch.hypot(ways[0], ways[1]), ways[2]).clamp_min(1.0e-6)


# -- launch --------------------------------------------------------------------------------------------------------


def launch(state: State, volley: Volley, tables: Tables, pairs: Pairs) -> State:
    """Launches new shots; each replaces the oldest of its launcher."""
    packs = tables.packs
    fired, chosen = volley.fired[:, :, LAUNCHERS] > 0, volley.chosen[:, :, LAUNCHERS]

    def of_launchers(values: Tensor) -> Tensor:
        return values.unflatten(2, (packs, SLOTS)).index_select(3, tables.launcher_slot)

    mechs = of_launchers(pairs.mechs[:6])
    way = (chosen * of_launchers(pairs.away)).sum(4)
    way = torch.addcmul(way, tables.launcher_drop, way.square().sum(0))
    way = torch.where(chosen.any(3), way, mechs[3:])
    velocity = way * (tables.launcher_speed / length(way))
    life = tables.launcher_life.expand_as(velocity[0])
    new = torch.cat((mechs[:3], velocity, life[None], (chosen * tables.slots).sum(3)[None]))
    old = state.shots.unflatten(2, (packs, SHOTS))
    shifted = torch.cat((new, old), 3).index_select(3, tables.shot_source)
    shots = torch.where(fired.index_select(2, tables.shot_launcher), shifted, old).flatten(2, 3)
    screens = state.screened.unflatten(1, (packs, 2))
    fresh = torch.cat((tables.none.expand_as(screens[:, :, :1]), screens[:, :, :1]), 2)
    screened = torch.where(fired[:, :, :1, None], fresh, screens).flatten(1, 2)
    return state.replace(shots=shots, screened=screened)


# -- places --------------------------------------------------------------------------------------------------------


Which = Literal["flying", "padded", "all"]

_LENGTHS = (128, 512, 2048)
_NO_HIT = 9.0


def airborne(shots: Tensor, which: Which) -> Tensor | None:
    """Returns places of shots, ``[E]`` integers among ``[2, S, W]``; None for all.

    Args:
        shots: ``[8, 2, S, W]``.
        which: ``"flying"``; ``"padded"`` with empty places up to one of few lengths; or ``"all"``.
    """
    if which == "all":
        return None
    live = shots[6].flatten() > 0
    flying = live.nonzero()[:, 0]
    if which == "flying":
        return flying
    length = next((length for length in _LENGTHS if len(flying) <= length < len(live)), len(live))
    # One empty place, repeated, has no effect.
    idle = live.to(torch.uint8).argmin().expand(length - len(flying))
    return torch.cat((flying, idle))


class Everywhere:
    """All places of shots: their numbers are ``[..., 2, S, W]``."""

    def __init__(self, tables: Tables) -> None:
        self._packs, self._missile, self._none = tables.packs, tables.shot_missile, tables.none

    def of_shots(self, values: Tensor) -> Tensor:
        """Maps ``[..., 2, S, W]`` by shot."""
        return values

    def of_places(self, values: Tensor) -> Tensor:
        """Maps ``[..., S]`` by the shot's place, for both teams and all worlds."""
        return values[..., None, :, None]

    def of_slots(self, values: Tensor) -> Tensor:
        """Maps ``[n, 1]`` by slot."""
        return values[..., None, None]

    def of_teams(self, values: Tensor) -> Tensor:
        """Maps ``[..., 2, W]`` by the shooter's team."""
        return values[..., None, :]

    def of_packs(self, values: Tensor) -> Tensor:
        """Maps ``[..., 2, P, W]`` by the shooter's pack."""
        return values if self._packs == 1 else values.repeat_interleave(SHOTS, -2)

    def of_missiles(self, values: Tensor) -> Tensor:
        """Maps ``[..., 2, 2P, W]`` by missile, some of them for other shots."""
        return values.index_select(-2, self._missile)

    def of_worlds(self, values: Tensor) -> Tensor:
        """Maps ``[W]``."""
        return values

    def by_team(self, values: Tensor) -> Tensor:
        """Sums for each team, ``[..., 2, W]``."""
        return values.sum(-2)

    def by_missile(self, values: Tensor) -> Tensor:
        """Sums missiles ``[P, ...]`` to ``[P, 2, 2P, W]``."""
        return values.unflatten(-2, (self._packs, SHOTS))[..., :2, :].flatten(-3, -2)

    def by_owner(self, values: Tensor) -> Tensor:
        """Sums for each shooter, ``[..., 2, n, W]``."""
        owners = values.unflatten(-2, (self._packs, 3, 3)).sum(-2)
        return torch.cat((owners, self._none.expand_as(owners[..., :2, :])), -2).flatten(-3, -2)

    def put(self, shots: Tensor, new: Tensor) -> Tensor:
        """Returns all shots with new numbers ``[8, ...]``."""
        return new


class Listed:
    """Some places of shots, ``[E]`` integers among ``[2, S, W]``: their numbers are ``[..., E]``.

    Methods are those of :class:`Everywhere`.
    """

    def __init__(self, tables: Tables, places: Tensor, worlds: int) -> None:
        shots = tables.packs * SHOTS
        self._place, self._worlds, self._mechs, self._packs = places, worlds, tables.mechs, tables.packs
        self._kind = tables.slots.dtype
        self._world, row = places % worlds, places // worlds
        team, self._slot = row // shots, row % shots
        self._owner = self._at(team * tables.mechs + tables.shot_owner.index_select(0, self._slot))
        self._missile = self._at(team * 2 * tables.packs + tables.shot_missile.index_select(0, self._slot))
        self._pack = self._at(row // SHOTS)
        self._team = self._at(team)

    def _at(self, row: Tensor) -> Tensor:
        return row * self._worlds + self._world

    def of_shots(self, values: Tensor) -> Tensor:
        return values.flatten(-3).index_select(-1, self._place)

    def of_places(self, values: Tensor) -> Tensor:
        return values.index_select(-1, self._slot)

    def of_slots(self, values: Tensor) -> Tensor:
        return values

    def of_teams(self, values: Tensor) -> Tensor:
        return values.flatten(-2).index_select(-1, self._team)

    def of_packs(self, values: Tensor) -> Tensor:
        return values.flatten(-3).index_select(-1, self._pack)

    def of_missiles(self, values: Tensor) -> Tensor:
        return values.flatten(-3).index_select(-1, self._missile)

    def of_worlds(self, values: Tensor) -> Tensor:
        return values.index_select(0, self._world)

    def by_team(self, values: Tensor) -> Tensor:
        return self._summed(values, self._team, 2)

    def by_missile(self, values: Tensor) -> Tensor:
        return self._summed(values, self._missile, 2, 2 * self._packs)

    def by_owner(self, values: Tensor) -> Tensor:
        return self._summed(values, self._owner, 2, self._mechs)

    def put(self, shots: Tensor, new: Tensor) -> Tensor:
        return shots.flatten(1).index_copy(1, self._place, new).view_as(shots)

    def _summed(self, values: Tensor, index: Tensor, *shape: int) -> Tensor:
        columns, rows = math.prod(shape) * self._worlds, math.prod(values.shape[:-1])
        # In one dimension, since otherwise the CPU adds column by column.
        flat = torch.arange(0, rows * columns, columns, device=index.device)[:, None] + index
        values = values.to(self._kind)
        found = values.new_zeros(rows * columns).index_add(0, flat.flatten(), values.flatten())
        return found.view(*values.shape[:-1], *shape, self._worlds)


# -- flight --------------------------------------------------------------------------------------------------------


class Shots(NamedTuple):
    """Shots in a sub-step; ``...`` are the dimensions of their places, ``[2, S, W]`` or ``[E]``."""

    place: Tensor  # [3, ...]
    velocity: Tensor  # [3, ...]
    step: Tensor  # [3, ...]
    live: Tensor  # bool
    missile: Tensor  # bool
    damage: Tensor
    shock: Tensor
    suppression: Tensor
    splash: Tensor  # at the centre
    fading: Tensor  # of the splash per voxel, negative


class Foes(NamedTuple):
    """Enemies of each shot, ``[n, ...]``."""

    place: Tensor  # [3, n, ...] of the centre
    heading: Tensor  # [2, n, ...]
    alive: Tensor  # bool


def fly(
    state: State, tables: Tables, pairs: Pairs, working: Tensor, luck: Tensor, places: Tensor | None
) -> tuple[State, Hits, Tensor]:
    """Moves shots and finds their hits; also counts the interceptions of each mech's AMS, ``[2, n, W]``.

    Args:
        working: ``[2, n, W]`` bool: the mech lives and is not shut down.
        luck: ``[2, 2P, P, W]`` uniform; a missile is intercepted below 0.6.
        places: result of :func:`airborne`.
    """
    at = Everywhere(tables) if places is None else Listed(tables, places, state.hp.shape[-1])
    old, rows = at.of_shots(state.shots), at.of_teams(pairs.foes[:5].transpose(1, 2))
    foes = Foes(rows[:3], rows[3:], at.of_teams(pairs.there.transpose(0, 1)))
    rel = foes.place - old[:3, None]
    shots = _moving(old, rel, foes, tables, at)
    rel2 = rel.square().sum(0)
    state, live, intercepts = _intercept(state, shots, rel2, working, tables, at, luck)
    shots = shots._replace(live=live)
    blocked = _blocked(shots, at.of_worlds(state.base), tables, at)
    direct, when = _direct(shots, rel, rel2, foes, blocked, tables, at)
    found = when < _NO_HIT / 2
    struck = live & (found | (blocked <= 1))
    # A shot that meets the ground bursts at its last free place.
    moment = torch.where(found, when, blocked - 0.5).clamp(0.0, 1.0)
    hits = _hits(state, shots, foes, pairs, direct, moment, struck, tables, at)
    left = (old[6] - 1) * (live > struck)
    new = torch.cat((shots.place + shots.step, shots.velocity, left[None], old[7:]))
    return state.replace(shots=at.put(state.shots, torch.where(old[6] > 0, new, old))), hits, intercepts


def _moving(old: Tensor, rel: Tensor, foes: Foes, tables: Tables, at: Everywhere | Listed) -> Shots:
    """Returns the shots; missiles turn towards living targets."""
    missile = at.of_places(tables.shot_homes)
    mine = (old[7] == at.of_slots(tables.slots)) & foes.alive & missile
    to = (rel * mine).sum(1)
    course = torch.lerp(old[3:6], to * (rules.MISSILE_SPEED / length(to)), rules.HOMING * DT)
    course = course * (rules.MISSILE_SPEED / length(course))
    velocity = torch.where(mine.any(0), course, old[3:6]) - at.of_places(tables.shot_falls)
    return Shots(old[:3], velocity, velocity * DT, old[6] > 0, missile, *at.of_places(tables.shot_numbers))


def _intercept(
    state: State, shots: Shots, rel2: Tensor, working: Tensor, tables: Tables, at: Everywhere | Listed, luck: Tensor
) -> tuple[State, Tensor, Tensor]:
    """Lets every ready heavy try once to intercept each missile that comes near."""
    ams = state.clocks[:, rules.AMS, ::SLOTS]
    ready = (working[:, ::SLOTS] & (ams == 0)).flip(0).transpose(0, 1)
    screened = state.screened.movedim(2, 0)
    fresh, lucky = at.of_missiles(screened == 0), at.of_missiles((luck < rules.AMS_CHANCE).movedim(2, 0))
    tries = (rel2[::SLOTS] <= rules.AMS_RANGE**2) & at.of_teams(ready) & fresh & (shots.live & shots.missile)
    caught = tries & lucky
    screened = (screened + at.by_missile(tries)).movedim(0, 2)
    counted = at.by_team(caught).flip(1).transpose(0, 1)
    ams.add_(counted > 0, alpha=rules.AMS_TICKS)
    spread = (counted[:, :, None] * tables.heavy[:SLOTS]).flatten(1, 2)
    return state.replace(screened=screened), shots.live > caught.any(0), spread


def _blocked(shots: Shots, base: Tensor, tables: Tables, at: Everywhere | Listed) -> Tensor:
    """Returns the share of the step after which a shot meets the ground, a half or 1, or 2 if it does not."""
    halves = at.of_slots(tables.halves)
    path = torch.addcmul(shots.place[:, None], halves, shots.step[:, None])
    inside = within(path[:2], tables.side)
    ground = look_up(tables.maps.height, cell(inside.int(), base, tables.side))
    met = (ground > path[2]) | (inside != path[:2]).any(0)
    return torch.where(met, halves, tables.never).amin(0)


def _direct(
    shots: Shots, rel: Tensor, rel2: Tensor, foes: Foes, blocked: Tensor, tables: Tables, at: Everywhere | Listed
) -> tuple[Tensor, Tensor]:
    """Returns the enemy that each shot hits first, one-hot ``[n, ...]`` bool, and when, as a share of the step."""
    along = (rel * shots.step[:, None]).sum(0)
    length2 = shots.step.square().sum(0).clamp_min(1.0e-9)
    when = (along / length2).clamp(0.0, 1.0)
    apart2 = torch.addcmul(rel2, when, torch.addcmul(along, when, length2, value=-0.5), value=-2)
    hit = (apart2 <= at.of_slots(tables.reach2)) & (when <= blocked) & (foes.alive & shots.live)
    score = torch.where(hit, when + at.of_slots(tables.lower), tables.never)
    first = score.amin(0)
    return hit & (score == first), first


def _hits(
    state: State,
    shots: Shots,
    foes: Foes,
    pairs: Pairs,
    direct: Tensor,
    moment: Tensor,
    struck: Tensor,
    tables: Tables,
    at: Everywhere | Listed,
) -> Hits:
    """Sums the hits of all shots by shooter and by target."""
    speed = torch.hypot(shots.velocity[0], shots.velocity[1])
    turned = (shots.velocity[:2, None] * foes.heading).sum(0)
    blow = direct * rear_bonus(turned > rules.REAR_COSINE * speed, tables)
    raw = blow * shots.damage * at.of_packs(pack_bonus(pairs, tables).permute(2, 0, 1, 3))
    near = torch.addcmul(shots.place, moment, shots.step)
    legs = raw * (near[2] - foes.place[2] < at.of_slots(tables.low))
    splash, own = _splash(shots, foes, near, struck, pairs, at.of_worlds(state.base), tables, at)
    body = torch.addcmul(torch.sub(raw, legs, alpha=0.5), splash, ~direct)
    hurt, mates_hurt = at.by_owner(torch.stack((body, own))).permute(0, 2, 3, 1, 4)
    effects = at.by_team(torch.stack((legs, blow * shots.shock, direct * shots.suppression))).transpose(1, 2)
    return Hits(hurt, mates_hurt, effects)


def _splash(
    shots: Shots,
    foes: Foes,
    near: Tensor,
    struck: Tensor,
    pairs: Pairs,
    base: Tensor,
    tables: Tables,
    at: Everywhere | Listed,
) -> Tensor:
    """Returns damage ``[2 (enemies, own team), n, ...]`` around missiles and slugs that burst in the open."""
    places = torch.stack((foes.place, at.of_teams(pairs.mechs[:3].transpose(1, 2))), 1)
    alive = torch.stack((foes.alive, at.of_teams(pairs.alive.transpose(0, 1))))
    away = places - near[:, None, None]
    middle = torch.sub(places, away, alpha=0.5)
    ground = look_up(tables.maps.height, cell(within(middle[:2], tables.side).int(), base, tables.side))
    amount = torch.addcmul(shots.splash, length(away), shots.fading).clamp_min(0.0)
    return amount * ((ground <= middle[2]) & alive & struck)


# -- smoke ---------------------------------------------------------------------------------------------------------


def drift(state: State, base: Tensor, tables: Tables) -> State:
    """Moves smoke shells; one that meets the ground or reaches its range starts a cloud."""
    place = torch.add(state.shells[:3], state.shells[3:6], alpha=DT)
    left = state.shells[6:]
    inside = within(place[:2], tables.side)
    ground = look_up(tables.maps.height, cell(inside.int(), base, tables.side))
    stopped = (ground > place[2]) | (inside != place[:2]).any(0) | (left <= 1)
    flying = left > 0
    bursts = flying & stopped
    clouds = (state.clouds - tables.cloud_fading).clamp_min(0.0)
    fresh = torch.cat((state.shells[:3], tables.cloud_life.expand_as(left)))
    clouds = torch.where(bursts, torch.stack((fresh, clouds[:, 0]), 1), clouds)
    left = (left - 1) * (flying > stopped)
    return state.replace(shells=torch.cat((place, state.shells[3:6], left)), clouds=clouds)


def launch_smoke(state: State, ordered: Tensor, tables: Tables, pairs: Pairs) -> State:
    """Fires smoke shells straight ahead; smoke and missiles share a clock.

    Args:
        ordered: ``[2, n, W]`` bool: the mech may fire, and is to.
    """
    clock = state.clocks[:, rules.MISSILE]
    fires = ordered & (clock == 0)
    clock.add_(fires, alpha=rules.SMOKE_TICKS)
    fresh = torch.cat((pairs.mechs[:3], pairs.mechs[3:6] * rules.SMOKE_SPEED, tables.shell_life.expand_as(clock)[None]))
    heat = torch.add(state.heat, fires, alpha=rules.SMOKE_HEAT)
    return state.replace(shells=torch.where(fires, fresh, state.shells), heat=heat)
