"""Weapons of mechs: the choice of targets in a sub-step, heat and cooldowns, and the effects of all hits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .rules import HITSCAN, MOUNTS, PAINTERS, SLOTS
from .sensors import Pairs, by_mech
from .state import State
from .tables import Tables

# -- hits ----------------------------------------------------------------------------------------------------------


class Hits(NamedTuple):
    """Hits of a sub-step. Matrices are by shooter (team and slot) and target (slot)."""

    body: Tensor  # [2, n, n, W] hp of enemies
    own: Tensor  # [2, n, n, W] hp of the shooter's own team
    effects: Tensor  # [3, 2, n, W] on the mechs of the other team: hp of legs, stability, and at least the sub-steps of
    # suppression


class Beams(NamedTuple):
    """Hits of lasers and flamers."""

    body: Tensor  # [2, n, n, W] hp of enemies
    effects: Tensor  # [2, 2, n, W] on the mechs of the other team: hp of legs, and heat


class Harm(NamedTuple):
    """Consequences of hits, by shooter."""

    credited: Tensor  # [2, n, n, W] hp really taken from enemies
    counted: Tensor  # [3, 2, n, W] kills, assists, hp taken from the own team


_TINY = 1.0e-6


def strike(state: State, hits: Hits, beams: Beams, tables: Tables, pairs: Pairs, stands: Tensor) -> tuple[State, Harm]:
    """Applies all hits of a sub-step.

    Damage beyond the remaining hp is reduced in proportion. The mech with the most damage gets the kill; another mech
    that painted the target gets an assist.
    """
    body = hits.body + beams.body
    total = body.sum(1) + hits.own.sum(1).flip(0)  # of the enemies, as long as nothing else is said
    left = pairs.foes[8] - total
    share = (pairs.foes[8] / total.clamp_min(_TINY)).clamp(0.0, 1.0)
    dies = (pairs.there > (left > 0))[:, None]
    own = torch.cat((hits.effects, beams.effects, left[None], share[None])).flip(1)
    weighed = body * tables.higher
    kill = (weighed == weighed.amax(1, keepdim=True).clamp_min(_TINY)) & dies
    painted = by_mech(pairs.marked) & (pairs.foes[6, :, None] == tables.slots[:, None])
    assists = painted & (kill.any(1, keepdim=True) > kill)
    legs = (state.legs - (own[0] + own[3])).clamp_min(0.0)
    stability = torch.addcmul(state.stability, own[1], stands, value=-1).clamp_min(0.0)
    state.clocks[:, rules.SUPPRESSED].clamp_(own[2], tables.suppressed)
    harm = Harm(body * share[:, None], torch.stack((kill, assists, hits.own * own[6, :, None])).sum(3))
    return state.replace(hp=own[5], legs=legs, stability=stability, heat=state.heat + own[4]), harm


# -- fire ----------------------------------------------------------------------------------------------------------


_NOBODY = 1.0e5
_FOCUS_FIRST = 1000.0


class Triggers(NamedTuple):
    """What decides in a decision which weapons fire at whom, ``[2, mounts, n, W]`` with the targets' slots."""

    pressed: Tensor  # [2, mounts, W] bool
    reach: Tensor  # greatest distance
    guided: Tensor  # the same if the weapon's pack has painted the target
    cone: Tensor  # least cosine
    rank: Tensor  # is added to distances; the lowest sum is hit


def aim(state: State, pressed: Tensor, tables: Tables) -> Triggers:
    """Prepares the choice of targets; ``pressed [2, 10, n, W]`` bool are orders."""
    slots = tables.mount_slot
    focused = (state.focus[:, :, None] == tables.slots).index_select(1, slots)
    seen = (state.sight > 0).index_select(1, slots) | tables.mount_blind
    reach = torch.where(seen, tables.mount_reach, tables.nobody)
    steered = tables.mount_guided & (state.quality >= rules.GUIDED_QUALITY).index_select(1, slots)[:, :, None]
    return Triggers(
        pressed.flatten(1, 2).index_select(1, tables.mount_button),
        reach,
        reach.masked_fill(steered, rules.GUIDED_RANGE),
        torch.where(focused, tables.mount_focus_cone, tables.mount_cone),
        torch.add(tables.lower, focused, alpha=-_FOCUS_FIRST),
    )


class Volley(NamedTuple):
    """Weapons by pack, in the order of ``rules.MOUNTS``."""

    fired: Tensor  # [2, P, 13, W] flag
    chosen: Tensor  # [2, P, 13, n, W] bool: the target that it was fired at
    fires: Tensor  # [2, P, 13, W] bool: it was fired
    aimed: Tensor  # [2, P, 13, W] bool: at a target


def choose(state: State, triggers: Triggers, tables: Tables, pairs: Pairs, unable: Tensor) -> Volley:
    """Returns the weapons that fire, at the chosen target if possible, otherwise at the nearest enemy.

    Args:
        unable: ``[2, n, W]`` bool: the mech must not fire.
    """
    packs = (tables.packs, len(MOUNTS))
    ahead = (pairs.away[:2] * pairs.mechs[3:5, :, :, None]).sum(0) / pairs.planar
    rows = torch.stack((pairs.distance, ahead)).index_select(2, tables.mount_slot)
    marked = pairs.marked[:, :, None]
    reach = torch.where(marked, triggers.guided.unflatten(1, packs), triggers.reach.unflatten(1, packs)).flatten(1, 2)
    possible = (rows[0] <= reach) & (rows[1] >= triggers.cone)
    score = torch.where(possible, rows[0] + triggers.rank, tables.never)
    best = score.amin(2)
    found = best < _NOBODY
    # The clocks, which a fallen mech's heavy weapons share, reach 0 before a weapon can fire again.
    waits = torch.addcmul(state.clocks[:, :4], state.clocks[:, rules.FALLEN :], tables.upright)
    waits = torch.add(waits, unable[:, None]).flatten(1, 2).index_select(1, tables.mount_clock)
    fires = (triggers.pressed > waits) & (found | tables.mount_free)  # since True is 1
    aimed = fires & found
    chosen = (score == best[:, :, None]) & aimed[:, :, None]
    return Volley(*(rows.unflatten(1, packs) for rows in (fires.to(state.hp.dtype), chosen, fires, aimed)))


def pay(state: State, volley: Volley, tables: Tables) -> State:
    """Adds the heat and cooldowns of fired weapons."""
    price = (tables.mount_price @ volley.fired.flatten(1, 2)).unflatten(1, (5, tables.mechs))
    state.clocks[:, :4].add_(price[:, 1:])
    return state.replace(heat=state.heat + price[:, 0])


def beams(volley: Volley, tables: Tables, pairs: Pairs, lucky: Tensor, bonus: Tensor) -> Beams:
    """Computes the hits of lasers and flamers.

    Args:
        lucky: ``[2, P, 5, W]`` bool: a leg is hit.
        bonus: result of :func:`pack_bonus`.
    """
    hit = volley.chosen[:, :, HITSCAN]
    turned = (pairs.away[:2] * pairs.foes[3:5, :, None]).sum(0)
    rear = (turned > rules.REAR_COSINE * pairs.planar).unflatten(1, (tables.packs, SLOTS))
    bonus = torch.addcmul(bonus[:, :, None], bonus[:, :, None], rear, value=rules.REAR_FACTOR - 1)
    raw = hit * tables.beam_damage * bonus.index_select(2, tables.beam_slot)
    legs = raw * lucky[:, :, :, None]
    body = torch.sub(raw, legs, alpha=0.5)
    light = body[:, :, 3:].sum(2, keepdim=True)
    body = torch.cat((body[:, :, :3], light, tables.none.expand_as(light)), 2).flatten(1, 2)
    return Beams(body, torch.stack((legs, hit * tables.beam_burn)).sum((2, 3)))


def pack_bonus(pairs: Pairs, tables: Tables) -> Tensor:
    """Returns the factors of damage to targets that the shooter's pack has painted, ``[2, P, n, W]``."""
    return torch.add(tables.one, pairs.marked, alpha=rules.PAINT_FACTOR - 1)


def paint(state: State, volley: Volley, tables: Tables) -> State:
    """Marks the targets of painters; of several painters, the one in the highest slot counts."""
    hit = volley.chosen[:, :, PAINTERS].flatten(1, 2)
    last = torch.where(hit, tables.painter_slot, tables.nobody).amax(1).flip(0)
    marks = last >= 0
    state.clocks[:, rules.PAINTED].masked_fill_(marks, rules.PAINTED_TICKS)
    return state.replace(painter=torch.where(marks, last, state.painter))
