"""Hits, all at once: hit points, legs, heat and stability, and who gets the credit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .sensors import of_enemies
from .state import State
from .tables import Tables

_TIE = 1.0e-6


class Hits(NamedTuple):
    """What shots do in a sub-step; None: nothing. Matrices are by shooter (team and slot) and target (slot)."""

    body: Tensor  # [2, n, n, W] hp of enemies
    own: Tensor | None  # [2, n, n, W] hp of the shooter's own team
    # by who is hit, [2, n, W]
    legs: Tensor
    shock: Tensor | None  # stability
    heat: Tensor | None
    suppressed: Tensor | None  # sub-steps

    def plus(self, other: Hits) -> Hits:
        """Both."""
        body, legs = self.body + other.body, self.legs + other.legs
        rest = (_sum(one, two) for one, two in zip(self[3:], other[3:]))
        return Hits(body, _sum(self.own, other.own), legs, *rest)


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one + two


class Harm(NamedTuple):
    """What hits led to: by the shooter ``[2, n, W]`` but for the first."""

    credited: Tensor  # [2, n, n, W] hp really taken from enemies
    friendly: Tensor  # hp taken from the own team
    kills: Tensor
    assists: Tensor
    deaths: Tensor  # of the mech itself, as the next ones
    legged: Tensor


def strike(state: State, hits: Hits, tables: Tables) -> tuple[State, Harm]:
    """Applies all hits of a sub-step.

    Damage beyond what was left is shared out in proportion. A kill is of who did the most; the painter of the target,
    if it is another, has assisted.
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
    counted = (kill.sum(2), assists.sum(2), dies, legged)
    return _shaken(state, hits), Harm(credited, friendly, *(value.to(kind) for value in counted))


def _killers(body: Tensor, dies: Tensor, tables: Tables) -> Tensor:
    weighed = body * (1 + tables.slots[:, None] * _TIE)
    most = weighed.amax(1, keepdim=True)
    return (weighed == most) & (most > 0) & of_enemies(dies)


def _painters(state: State, tables: Tables) -> Tensor:
    """``[2, n, n, W]`` bool: the mech has painted that enemy."""
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
