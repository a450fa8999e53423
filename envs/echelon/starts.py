"""How episodes begin: a map, who starts in which corner, and everyone in line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from . import rules
from .rules import SHOTS, SLOTS, SPAWN_SQUARE
from .sensors import RECALLED
from .state import State
from .tables import Tables

_COLUMNS = (0.0, -1.0, 1.0, 2.0, -2.0)  # of the slots of a pack: the heavy in the middle
_ROWS_APART = 4.5
_NEVER = 1.0e6


@dataclass(frozen=True)
class Starts:
    """Beginnings of episodes.

    Attributes:
        partial: states remember enemies.
        bots: kinds of bots that play red and how often, as weights.
        fire: least and greatest probability with which bots fire, drawn for every episode.
    """

    tables: Tables
    partial: bool
    bots: tuple[float, ...]
    fire: tuple[float, float]

    def draw(self, count: int, generator: torch.Generator, dtype: torch.dtype) -> State:
        """``count`` worlds."""
        device = generator.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, count, generator=generator, dtype=dtype, device=device)

        maps = self.tables.maps
        which = torch.randint(maps.size, (count,), generator=generator, device=device)
        key = torch.randint(2**62, (count,), generator=generator, device=device)
        zone = maps.zone.to(dtype)[:, which]
        swapped = uniform() < 0.5
        mechs = self.tables.mechs
        position = self._places(maps.corner[which], swapped, uniform(2, 2, mechs))
        away = zone[:2, None, None] - position[:2]
        yaw = torch.atan2(away[1], away[0]) + (2 * uniform(2, mechs) - 1) * rules.SPAWN_TURN
        weights = torch.tensor(self.bots, device=device)
        rival = torch.multinomial(weights.expand(count, -1), 1, generator=generator)[:, 0]
        low, high = self.fire
        fire = low + (high - low) * uniform()
        state = self._state(position, yaw, zone, (which * self.tables.side**2).to(dtype))
        return state.replace(key=key, rival=rival, fire_prob=fire)

    def _places(self, corner: Tensor, swapped: Tensor, jitter: Tensor) -> Tensor:
        """Feet, ``[3, 2, n, W]``: five columns across the diagonal, later packs further back."""
        side = self.tables.side
        near, far = SPAWN_SQUARE / 2, side - SPAWN_SQUARE / 2
        kind = jitter.dtype
        first = torch.stack((torch.full_like(swapped, near, dtype=kind), torch.where(corner == 0, near, far).to(kind)))
        corners = torch.stack((first, side - first), 1)  # [2 (x, y), 2, W]
        corners = torch.where(swapped, corners.flip(1), corners)
        inwards = torch.sign(side / 2 - corners) / math.sqrt(2.0)
        across = torch.stack((-inwards[1], inwards[0]))
        packs = self.tables.packs
        column = jitter.new_tensor(_COLUMNS * packs)[:, None] * rules.SPAWN_PITCH
        row = (self.tables.pack - (packs - 1) / 2) * -_ROWS_APART
        planar = corners[:, :, None] + across[:, :, None] * column + inwards[:, :, None] * row
        planar = planar + (2 * jitter - 1) * rules.SPAWN_JITTER
        return torch.cat((planar, torch.zeros_like(planar[:1])))

    def _state(self, position: Tensor, yaw: Tensor, zone: Tensor, base: Tensor) -> State:
        tables = self.tables
        mechs, packs, worlds = tables.mechs, tables.packs, base.shape[0]
        none = torch.zeros_like(yaw)

        def zeros(*lead: int) -> Tensor:
            return yaw.new_zeros(*lead, worlds)

        hp = tables.hp * tables.present + none
        state = State(
            position=position,
            velocity=torch.zeros_like(position),
            yaw=yaw,
            hp=hp,
            legs=tables.leg_hp + none,
            heat=none,
            stability=none + rules.STABILITY,
            ground=none,
            clocks=zeros(2, rules.CLOCKS, mechs),
            painter=none,
            focus=none - 1,
            ewar=none,
            hit_from=zeros(2, 2, mechs),
            under_fire=none,
            shots=zeros(8, 2, packs * SHOTS),
            screened=zeros(2, 2 * packs, packs),
            shells=zeros(7, 2, mechs),
            clouds=zeros(4, 2, 2, mechs),
            sight=zeros(2, mechs, mechs),
            quality=none + 1,
            jam=none,
            memory=zeros(RECALLED if self.partial else 0, 2, mechs, mechs),
            ago=zeros(2, mechs, mechs) + (_NEVER if self.partial else 0.0),
            still=none,
            escape=none,
            zone=zone,
            score=zeros(2),
            base=base,
            rival=base.long(),
            fire_prob=torch.ones_like(base),
            key=base.long(),
            steps=zeros(),
        )
        # No two entries may share memory: restarts write in place.
        return state.map(lambda value: value.clone(memory_format=torch.contiguous_format))


assert len(_COLUMNS) == SLOTS
