"""Weapons of mechs: the choice of targets in a sub-step, heat and cooldowns, and the effects of all hits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import HITSCAN, MOUNTS, PAINTERS, SLOTS
from .sensors import Pairs, of_enemies
from .state import State
from .tables import Tables

# -- hits ----------------------------------------------------------------------------------------------------------


_TIE = 1.0e-6


class Hits(NamedTuple):
    """Hits of a sub-step; None means no hits. Matrices are by shooter (team and slot) and target (slot)."""

    body: Tensor  # [2, n, n, W] hp of enemies
    own: Tensor | None  # [2, n, n, W] hp of the shooter's own team
    # by who is hit, [2, n, W]
    legs: Tensor
    shock: Tensor | None  # stability
    heat: Tensor | None
    suppressed: Tensor | None  # sub-steps

    def plus(self, other: Hits) -> Hits:
        """Returns the sum of both."""
        body, legs = self.body + other.body, self.legs + other.legs
        rest = (_sum(one, two) for one, two in zip(self[3:], other[3:]))
        return Hits(body, _sum(self.own, other.own), legs, *rest)


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one + two


class Harm(NamedTuple):
    """Consequences of hits, by shooter ``[2, n, W]`` except the first."""

    credited: Tensor  # [2, n, n, W] hp really taken from enemies
    friendly: Tensor  # hp taken from the own team
    kills: Tensor
    assists: Tensor
    legged: Tensor  # of the mech itself


def strike(state: State, hits: Hits, tables: Tables) -> tuple[State, Harm]:
    """Applies all hits of a sub-step.

    Damage beyond the remaining hp is reduced in proportion. The mech with the most damage gets the kill; another mech
    that painted the target gets an assist.
    """
    own = hits.own if hits.own is not None else torch.zeros_like(hits.body)
    total = hits.body.sum(1).flip(0) + own.sum(1)
    hp = state.hp - total
    share = (state.hp / total.clamp_min(1.0e-6)).clamp(0.0, 1.0)
    dies = state.alive & (hp <= 0)
    credited = hits.body * of_enemies(share)
    friendly = (own * share[:, None]).sum(2)
    kill = _killers(hits.body, dies, tables)
    assists = _painters(state, tables) & kill.any(1, keepdim=True) & ~kill
    legs = (state.legs - hits.legs).clamp_min(0.0)
    legged = (state.legs > 0) & (legs <= 0) & state.alive
    kind = state.hp.dtype
    state = state.replace(hp=hp, legs=legs)
    counted = (kill.sum(2), assists.sum(2), legged)
    return _shaken(state, hits), Harm(credited, friendly, *(value.to(kind) for value in counted))


def _killers(body: Tensor, dies: Tensor, tables: Tables) -> Tensor:
    weighed = body * (1 + tables.slots[:, None] * _TIE)
    most = weighed.amax(1, keepdim=True)
    return (weighed == most) & (most > 0) & of_enemies(dies)


def _painters(state: State, tables: Tables) -> Tensor:
    """Returns ``[2, n, n, W]`` bool: the mech has painted the enemy."""
    painted = of_enemies(state.clocks[:, rules.PAINTED]) > 0
    return painted & (of_enemies(state.painter) == tables.slots[:, None])


def _shaken(state: State, hits: Hits) -> State:
    if hits.shock is not None:
        stability = torch.where(state.fallen, state.stability, (state.stability - hits.shock).clamp_min(0.0))
        state = state.replace(stability=stability)
    if hits.heat is not None:
        state = state.replace(heat=state.heat + hits.heat)
    if hits.suppressed is not None:
        row = torch.maximum(state.clocks[:, rules.SUPPRESSED], hits.suppressed)
        state = state.replace(clocks=state.clocks.select_scatter(row, 1, rules.SUPPRESSED))
    return state


# -- fire ----------------------------------------------------------------------------------------------------------


_NOBODY = 1.0e6
_FOCUS_FIRST = 1000.0
_NEARER = 1.0e-4  # prefers the lower slot of equally near targets


class Volley(NamedTuple):
    """Weapons by pack, in the order of ``rules.MOUNTS``."""

    fired: Tensor  # [2, P, 13, W] flag
    chosen: Tensor  # [2, P, 13, n, W] flag: the target that it was fired at


def choose(state: State, orders: Tensor, tables: Tables, pairs: Pairs, able: Tensor) -> Volley:
    """Returns the weapons that fire, at the chosen target if possible, otherwise at the nearest enemy.

    Args:
        orders: ``[2, 10, n, W]``.
        able: ``[2, n, W]`` bool: the mech may fire.
    """
    slots = tables.mount_slot
    ahead = (pairs.away[0] * pairs.cos[:, :, None] + pairs.away[1] * pairs.sin[:, :, None]) / pairs.planar
    distance = torch.where(of_enemies(state.alive), pairs.distance, _NOBODY)
    guided = pairs.marked & (state.quality >= rules.GUIDED_QUALITY)[:, :, None] & (distance <= rules.GUIDED_RANGE)
    focused = (state.focus[:, :, None] == tables.slots).to(distance.dtype)
    # Values that do not depend on the weapon are computed before they are repeated for every weapon.
    score = (distance + tables.slots * _NEARER - focused * _FOCUS_FIRST).index_select(1, slots)
    near = (distance.index_select(1, slots) <= tables.mount_reach) & (
        (state.sight > 0).index_select(1, slots) | tables.mount_blind
    )
    near = near | (guided.index_select(1, slots) & tables.mount_guided)
    cone = torch.where(focused.index_select(1, slots) > 0, tables.mount_focus_cone, tables.mount_cone)
    score = torch.where(near & (ahead.index_select(1, slots) >= cone), score, _NOBODY)
    best = score.amin(2)
    found = best < _NOBODY / 2
    fired = _triggers(state, orders, tables, able) & (found | tables.mount_free)
    chosen = (score == best[:, :, None]) & (fired & found)[:, :, None]
    packs = (tables.packs, len(MOUNTS))
    kind = state.hp.dtype
    return Volley(fired.to(kind).unflatten(1, packs), chosen.to(kind).unflatten(1, packs))


def _triggers(state: State, orders: Tensor, tables: Tables, able: Tensor) -> Tensor:
    """Returns the weapons that would fire if they had a target, ``[2, mounts, W]`` bool."""
    pressed = orders.flatten(1, 2).index_select(1, tables.mount_button) > 0
    ready = state.clocks.flatten(1, 2).index_select(1, tables.mount_clock) == 0
    steady = able & ~state.fallen
    may = torch.stack((able, steady), 1).flatten(1, 2).index_select(1, tables.mount_able)
    return pressed & ready & may


def pay(state: State, volley: Volley, tables: Tables) -> State:
    """Adds the heat and cooldowns of fired weapons."""
    fired = volley.fired.flatten(1, 2)
    nothing = torch.zeros_like(fired[:, :1])
    mechs = tables.mechs
    heat = torch.cat((fired * tables.mount_heat, nothing), 1).index_select(1, tables.heat_sources)
    wait = torch.cat((fired * tables.mount_cooldown, nothing), 1).index_select(1, tables.clock_sources)
    clocks = torch.cat((state.clocks[:, :4] + wait.unflatten(1, (4, mechs)), state.clocks[:, 4:]), 1)
    return state.replace(heat=state.heat + heat.unflatten(1, (3, mechs)).sum(1), clocks=clocks)


def beams(volley: Volley, tables: Tables, pairs: Pairs, luck: Tensor) -> Hits:
    """Computes the hits of lasers and flamers.

    Args:
        luck: ``[2, P, 5, W]`` uniform; a leg is hit below 0.1.
    """
    hit = volley.chosen[:, :, HITSCAN]
    cos, sin = of_enemies(pairs.cos), of_enemies(pairs.sin)
    rear = pairs.away[0] * cos + pairs.away[1] * sin > rules.REAR_COSINE * pairs.planar
    kind = hit.dtype
    bonus = bonuses(rear.to(kind), pairs.marked.to(kind)).unflatten(1, (tables.packs, SLOTS))
    raw = hit * tables.beam_damage * torch.cat((bonus[:, :, :4], bonus[:, :, 3:4]), 2)
    legs = raw * (luck < rules.LEG_CHANCE).to(raw.dtype)[:, :, :, None]
    body = raw - legs / 2
    light = body[:, :, 3:4] + body[:, :, 4:5]
    by_mech = torch.cat((body[:, :, :3], light, torch.zeros_like(light)), 2).flatten(1, 2)
    return Hits(by_mech, None, legs.sum((1, 2)).flip(0), None, (hit * tables.beam_burn).sum((1, 2)).flip(0), None)


def bonuses(rear: Tensor, marked: Tensor) -> Tensor:
    """Returns factors of damage: ``rear`` from behind, ``marked`` by the pack that painted the target (flags 0, 1)."""
    return (1 + (rules.REAR_FACTOR - 1) * rear) * (1 + (rules.PAINT_FACTOR - 1) * marked)


def paint(state: State, volley: Volley, tables: Tables) -> State:
    """Marks the targets of painters; of several painters, the one in the highest slot counts."""
    hit = volley.chosen[:, :, PAINTERS].flatten(1, 2)
    places = tables.slots.view(tables.packs, SLOTS, 1)[:, 1:].reshape(-1, 1, 1)
    last = (hit * (places + 1)).amax(1).flip(0)
    painted = torch.where(last > 0, rules.PAINTED_TICKS, state.clocks[:, rules.PAINTED])
    clocks = state.clocks.select_scatter(painted, 1, rules.PAINTED)
    return state.replace(clocks=clocks, painter=torch.where(last > 0, last - 1, state.painter))
