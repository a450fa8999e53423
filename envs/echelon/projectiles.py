"""The flight of missiles, gauss slugs and autocannon shells, and their hits.

Only flying shots are processed, as a list of E entries gathered from all worlds. On devices where finding them would
wait, all places are processed; for compiled code, which needs few lengths, some empty places, too. All ways lead to the
same worlds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from . import rules
from .maps import cell, look_up, within
from .rules import DT, LAUNCHERS, SHOTS, SLOTS
from .sensors import Pairs
from .state import State
from .tables import Tables
from .weapons import Hits, Volley


def length(ways: Tensor) -> Tensor:
    """Returns the lengths of vectors ``[3, ...]``, at least a millionth."""
    return torch.hypot(torch.hypot(ways[0], ways[1]), ways[2]).clamp_min(1.0e-6)


# -- launch --------------------------------------------------------------------------------------------------------


def launch(state: State, volley: Volley, tables: Tables, pairs: Pairs) -> State:
    """Launches new shots; each replaces the oldest of its launcher."""
    packs = tables.packs
    fired, chosen, aimed = (rows[:, :, LAUNCHERS] for rows in (volley.fires, volley.chosen, volley.aimed))

    def of_launchers(values: Tensor) -> Tensor:
        return values.unflatten(2, (packs, SLOTS)).index_select(3, tables.launcher_slot)

    mechs = of_launchers(pairs.mechs[:6])
    way = (chosen * of_launchers(pairs.away)).sum(4)
    way = torch.addcmul(way, tables.launcher_drop, way.square().sum(0))
    way = torch.where(aimed, way, mechs[3:])
    velocity = way * (tables.launcher_speed / length(way))
    life = tables.launcher_life.expand_as(velocity[0])
    new = torch.cat((mechs[:3], velocity, life[None], (chosen * tables.slots).sum(3)[None]))
    old = state.shots.unflatten(2, (packs, SHOTS))
    parts = (new[:, :, :, :1], old[:, :, :, :1], new[:, :, :, 1:3], old[:, :, :, 3:5], new[:, :, :, 3:])
    shifted = torch.cat((*parts, old[:, :, :, 6:8]), 3)
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
        self._packs, self._none = tables.packs, tables.none

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
        """Maps ``[..., 2, 2P, W]`` by missile."""
        return values

    def missiles(self, values: Tensor) -> Tensor:
        """Selects what missiles need among numbers of shots."""
        return values.unflatten(-2, (self._packs, SHOTS))[..., :2, :].flatten(-3, -2)

    def flying_missiles(self, live: Tensor) -> Tensor:
        """Returns which missiles fly, given which shots do."""
        return self.missiles(live)

    def without(self, live: Tensor, missiles: Tensor) -> Tensor:
        """Returns which shots fly when some missiles no longer do. It may change ``live``."""
        places = live.unflatten(-2, (self._packs, SHOTS))[..., :2, :]
        places.masked_fill_(missiles.unflatten(-2, (self._packs, 2)), False)
        return live

    def of_worlds(self, values: Tensor) -> Tensor:
        """Maps ``[W]``."""
        return values

    def by_team(self, values: Tensor) -> Tensor:
        """Sums for each team, ``[..., 2, W]``."""
        return values.sum(-2)

    def by_missile(self, values: Tensor) -> Tensor:
        """Sums missiles ``[P, ...]`` to ``[P, 2, 2P, W]``."""
        return values

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
        self._homes = tables.shot_homes.index_select(0, self._slot)
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

    def missiles(self, values: Tensor) -> Tensor:
        return values

    def flying_missiles(self, live: Tensor) -> Tensor:
        return live & self._homes

    def without(self, live: Tensor, missiles: Tensor) -> Tensor:
        return live > missiles

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


def fly(
    state: State, tables: Tables, pairs: Pairs, ready: Tensor, lucky: Tensor, bonus: Tensor, places: Tensor | None
) -> tuple[State, Hits, Tensor]:
    """Moves shots and finds their hits; also counts the interceptions of each mech's AMS, ``[2, n, W]``.

    In the comments ``...`` are the dimensions of the shots' places, ``[2, S, W]`` or ``[E]``.

    Args:
        ready: ``[2, n, W]`` bool: the mech lives, is not shut down, and its AMS may fire.
        lucky: ``[2, 2P, P, W]`` bool: a missile is intercepted by the enemy's heavy of a pack if it can be.
        bonus: result of :func:`rlstack.envs.echelon.weapons.pack_bonus`.
        places: result of :func:`airborne`.
    """
    at = Everywhere(tables) if places is None else Listed(tables, places, state.hp.shape[-1])
    old, rows = at.of_shots(state.shots), at.of_teams(pairs.foes[:5].transpose(1, 2))
    place, heading = rows[:3], rows[3:]  # of enemies: [3, n, ...] of the centre, [2, n, ...]
    alive = at.of_teams(pairs.there.transpose(0, 1))  # [n, ...]
    rel = place - old[:3, None]
    rel2 = rel.square().sum(0)

    # Missiles turn towards living targets.
    mine = (old[7] == at.of_places(tables.shot_target)) & alive
    to = (rel * mine).sum(1)
    course = torch.lerp(old[3:6], to * (rules.MISSILE_SPEED / length(to)), rules.HOMING * DT)
    course = course * (rules.MISSILE_SPEED / length(course))
    velocity = torch.where(mine.any(0), course, old[3:6]) - at.of_places(tables.shot_falls)
    step, live = velocity * DT, old[6] > 0

    # Every ready heavy tries once to intercept each missile that comes near.
    may = at.of_teams(ready[:, ::SLOTS].flip(0).transpose(0, 1)) & at.flying_missiles(live)
    screened = state.screened.movedim(2, 0)
    tries = ((at.missiles(rel2[::SLOTS]) <= rules.AMS_RANGE**2) & may) > at.of_missiles(screened)
    caught = tries & at.of_missiles(lucky.movedim(2, 0))
    screened = (screened + at.by_missile(tries)).movedim(0, 2)
    counted = at.by_team(caught).flip(1).transpose(0, 1)
    state.clocks[:, rules.AMS, ::SLOTS].add_(counted > 0, alpha=rules.AMS_TICKS)
    intercepts = (counted[:, :, None] * tables.heavy[:SLOTS]).flatten(1, 2)
    live = at.without(live, caught.any(0))

    # The share of the step after which a shot meets the ground, a half or 1, or 2 if it does not.
    halves, base = at.of_slots(tables.halves), at.of_worlds(state.base)
    path = torch.addcmul(old[:3, None], halves, step[:, None])
    inside = within(path[:2], tables.side)
    ground = look_up(tables.maps.height, cell(inside.int(), base, tables.side))
    met = (ground > path[2]) | (inside != path[:2]).any(0)
    blocked, goal = torch.where(met, halves, tables.never).amin(0), path[:, 1]

    # The enemy that each shot hits first, [n, ...] one-hot, and when, as a share of the step.
    along = (rel * step[:, None]).sum(0)
    length2 = step.square().sum(0).clamp_min(1.0e-9)
    when = (along / length2).clamp(0.0, 1.0)
    apart2 = torch.addcmul(rel2, when, torch.addcmul(along, when, length2, value=-0.5), value=-2)
    hit = (apart2 <= at.of_slots(tables.reach2)) & (when <= blocked) & (alive & live)
    score = torch.where(hit, when + at.of_slots(tables.lower), tables.never)
    first = score.amin(0)
    direct, found = hit & (score == first), first < _NO_HIT / 2
    struck = live & (found | (blocked <= 1))

    # Damage, shock and suppression of direct hits; suppression is limited, so that the factor has no effect on it.
    numbers = at.of_places(tables.shot_numbers)
    turned = (velocity[:2, None] * heading).sum(0)
    rear = turned > rules.REAR_COSINE * torch.hypot(velocity[0], velocity[1])
    blow = direct * torch.add(tables.one, rear, alpha=rules.REAR_FACTOR - 1) * numbers[:3, None]
    raw = blow[0] * at.of_packs(bonus.permute(2, 0, 1, 3))
    # A shot that meets the ground bursts at its last free place.
    near = torch.addcmul(old[:3], torch.where(found, first, blocked - 0.5).clamp(0.0, 1.0), step)
    legs = raw * (near[2] - place[2] < at.of_slots(tables.low))

    # Damage around missiles and slugs that burst in the open, [2 (own team, enemies), n, ...].
    around, living = at.of_teams(pairs.sides[:3].transpose(2, 3)), at.of_teams(pairs.living.transpose(1, 2))
    way = near[:, None, None] - around
    middle = torch.add(around, way, alpha=0.5)
    ground = look_up(tables.maps.height, cell(within(middle[:2], tables.side).int(), base, tables.side))
    amount = torch.addcmul(numbers[3], length(way), numbers[4]).clamp_min(0.0)
    own, splash = amount * ((ground <= middle[2]) & living & struck)

    body = torch.where(direct, torch.sub(raw, legs, alpha=0.5), splash)
    hurt, mates_hurt = at.by_owner(torch.stack((body, own))).permute(0, 2, 3, 1, 4)
    effects = at.by_team(torch.cat((legs[None], blow[1:]))).transpose(1, 2)
    left = (old[6] - 1) * (live > struck)
    new = torch.cat((goal, velocity, left[None], old[7:]))
    shots = at.put(state.shots, torch.where(old[6] > 0, new, old))
    return state.replace(shots=shots, screened=screened), Hits(hurt, mates_hurt, effects), intercepts


# -- smoke ---------------------------------------------------------------------------------------------------------


class Launch(NamedTuple):
    """Smoke shells that are fired in a sub-step."""

    fires: Tensor  # [2, n, W] bool
    rows: Tensor  # [6, 2, n, W] centre and direction of the mechs


def launch_smoke(state: State, ordered: Tensor, tables: Tables, pairs: Pairs) -> tuple[State, Launch]:
    """Fires smoke shells, which share a clock with missiles; :func:`drift` moves them.

    Args:
        ordered: ``[2, n, W]`` bool: the mech may fire, and is to.
    """
    clock = state.clocks[:, rules.MISSILE]
    fires = ordered > clock  # which is a whole number
    clock.add_(fires, alpha=rules.SMOKE_TICKS)
    return state.replace(heat=torch.add(state.heat, fires, alpha=rules.SMOKE_HEAT)), Launch(fires, pairs.mechs[:6])


def drift(state: State, launches: Sequence[Launch], base: Tensor, tables: Tables) -> State:
    """Moves smoke shells in some sub-steps; one that meets the ground or reaches its range starts a cloud.

    In each sub-step all shells move, then new ones start straight ahead. Nothing else in a decision depends on smoke,
    so that its sub-steps are computed together. They are fewer than those between two shells of a mech, and between a
    shell's start and its end, so that each mech starts one cloud at most.

    Args:
        launches: those of each sub-step.
    """
    fires = [launch.fires for launch in launches]
    fresh = torch.stack([launch.rows for launch in launches]) * tables.shell_start
    place, velocity, left = state.shells[:3], state.shells[3:6], state.shells[6]
    before, after = [], []
    for fired, new in zip(fires, fresh):
        before.append(place)
        after.append(torch.add(place, velocity, alpha=DT))
        place, velocity = torch.where(fired, new[:3], after[-1]), torch.where(fired, new[3:], velocity)
    path = torch.stack(after, 1)
    z = path[2]
    inside = within(path[:2], tables.side)
    ground = look_up(tables.maps.height, cell(inside.int(), base, tables.side))
    buried = (ground > z) | (inside != path[:2]).any(0)
    flying, left_after = [], []
    for fired, stopped in zip(fires, buried):
        flying.append(left)
        left_after.append(functional.softshrink(left, 1.0).masked_fill(stopped, 0.0))  # one less, at least 0
        left = torch.where(fired, tables.shell_life, left_after[-1])
    bursts = (torch.stack(flying) > 0) > (torch.stack(left_after) > 0)
    count = len(launches)
    life = tables.cloud_life[-count:].expand_as(z)
    started = (torch.cat((torch.stack(before, 1), life[None])) * bursts).sum(1)
    clouds = torch.sub(state.clouds, tables.cloud_fading, alpha=count).clamp_min(0.0)
    clouds = torch.where(bursts.any(0), torch.stack((started, clouds[:, 0]), 1), clouds)
    return state.replace(shells=torch.cat((place, velocity, left[None])), clouds=clouds)
