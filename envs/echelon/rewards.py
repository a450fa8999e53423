"""The zone that both teams fight for, and the terms of the reward, each with a weight, per mech and decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..world import check_known
from . import rules
from .rules import MAP
from .simulation import EVENTS, Tally
from .state import State
from .tables import Tables

# -- the zone ------------------------------------------------------------------------------------------------------


class Hold(NamedTuple):
    """Control of the zone."""

    away: Tensor  # [2, 2, n, W] from mechs to its centre, x and y
    distance: Tensor  # [2, n, W]
    inside: Tensor  # [2, n, W] bool
    contested: Tensor  # [W] bool: both teams are inside
    within: Tensor  # [2, n, W] bool: where it stands or fell is in the zone
    tick: Tensor  # [2, W] share of a full score that a team gets
    control: Tensor  # [2, W] -1 to 1, difference of tonnage inside over its sum


def hold(state: State, tables: Tables) -> Hold:
    """Measures control and score: all of it for a team alone, otherwise a quarter plus a share by margin of tonnage."""
    away = state.zone[:2, None, None] - state.position[:2]
    distance = away.square().sum(0).sqrt()
    within = (distance <= state.zone[2]) & (state.position[2] <= rules.ZONE_HEIGHT)
    inside = state.alive & within
    weight = (inside * tables.tonnage).sum(1)
    other = weight.flip(0)
    inhabited = weight > 0
    contested = inhabited[0] & inhabited[1]
    control = (weight - other) / (weight + other).clamp_min(1.0)
    shared = 0.25 + 0.75 * control.clamp_min(0.0)
    return Hold(away, distance, inside, contested, within, torch.where(contested, shared, inhabited), control)


# -- the terms -----------------------------------------------------------------------------------------------------


TERMS: dict[str, float] = {
    "approach": 1.5,  # to the zone, by map widths, while outside; half as much for every team mate inside
    "zone": 3.0,  # while inside, by the team's share of the score
    "damage": 0.05,  # per hp taken from enemies
    "kill": 10.0,
    "assist": 5.0,  # a kill of a target that it painted, by another
    "death": -1.0,
    "friendly": -0.05,  # per hp taken from the own team
    "outcome": 0.0,  # 1 for the winning team, -1 for the other, at the end
    "shutdown": 0.0,  # each time it overheats
}
"""Weight of each term. In a contested zone damage, kills and assists count twice, deaths half.

Who dies in the zone counts as inside for the deaths of that decision, its own and others'.
"""


def make_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the weight of each term.

    Args:
        weights: weights by term that replace those of :data:`TERMS`.

    Raises:
        ValueError: a term is unknown.
    """
    check_known("reward_weights", weights or (), TERMS)
    return TERMS | dict(weights or {})


def judge(tally: Tally, before: Tensor, now: Hold, winner: Tensor, was_alive: Tensor) -> Tensor:
    """Returns the unweighted terms of a decision, ``[TERMS, 2, n, W]``; zeros for mechs that were dead before.

    Args:
        before: ``[2, n, W]`` distance from the zone before the decision.
        winner: ``[W]`` 1 blue, -1 red, 0 draw or undecided.
        was_alive: ``[2, n, W]`` bool.
    """
    kind = now.distance.dtype
    events = dict(zip(EVENTS, tally.counted))
    inside = now.inside.to(kind)
    stands = now.inside & now.contested
    double = inside.new_ones(()) + stands
    stood = now.within & was_alive
    fell = stood & stood.any(1, keepdim=True).flip(0)  # who has died is not inside any more
    half = (fell.new_ones((), dtype=kind) + fell).reciprocal()
    mates = inside.sum(1, keepdim=True) - inside
    nearer = (before - now.distance) / MAP * torch.pow(0.5, mates)
    side = torch.stack((winner, -winner))[:, None].expand_as(inside)
    value = {
        "approach": nearer.masked_fill(now.inside, 0.0),
        "zone": inside * now.tick[:, None],
        "damage": tally.credited.sum(2) * double,
        "kill": events["kills"] * double,
        "assist": events["assists"] * double,
        "death": events["deaths"] * half,
        "friendly": events["friendly"],
        "outcome": side,
        "shutdown": events["shutdowns"],
    }
    return torch.stack([value[name].to(kind) for name in TERMS]) * was_alive
