"""What pays: named terms, each with a weight, per mech and decision."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .rules import MAP
from .simulation import EVENTS, Tally
from .zone import Hold

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
"""Weight of each term. In a contested zone damage, kills and assists count twice, deaths half."""


def make_weights(weights: Mapping[str, float] | None) -> dict[str, float]:
    """The weight of each term.

    Args:
        weights: instead of those of :data:`TERMS`, by term.

    Raises:
        ValueError: an unknown term.
    """
    unknown = [name for name in weights or {} if name not in TERMS]
    if unknown:
        raise ValueError(f"reward_weights: {unknown[0]!r} is unknown, allowed: {', '.join(TERMS)}")
    return TERMS | dict(weights or {})


def judge(tally: Tally, before: Hold, now: Hold, winner: Tensor, was_alive: Tensor) -> Tensor:
    """The terms of a decision, unweighted, ``[TERMS, 2, n, W]``; zeros for who was dead before.

    Args:
        winner: ``[W]`` 1 blue, -1 red, 0 nobody (yet).
        was_alive: ``[2, n, W]`` bool.
    """
    kind = now.distance.dtype
    events = dict(zip(EVENTS, tally.counted))
    inside = now.inside.to(kind)
    stands = now.inside & now.contested
    double, half = torch.where(stands, 2.0, 1.0), torch.where(stands, 0.5, 1.0)
    mates = inside.sum(1, keepdim=True) - inside
    nearer = (before.distance - now.distance) / MAP * torch.pow(0.5, mates)
    side = torch.stack((winner, -winner))[:, None].expand_as(inside)
    value = {
        "approach": torch.where(now.inside, 0.0, nearer),
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
