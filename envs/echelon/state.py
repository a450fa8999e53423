"""The state of a batch of Echelon worlds: plain tensors whose last dimension is the world.

Mechs have the axes ``[2, n, W]``: team (blue, red), slot, world; a target is given by its slot in the other team.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..foundation.tensors import made_once
from ..states import Record
from . import rules
from .rules import SHOTS, SLOTS, SPAWN_SQUARE
from .tables import Tables

RECALLED = 12
"""Number of values remembered of a lost enemy: position, velocity, yaw, hp, heat, stability, fallen, legs."""


@dataclass
class State(Record):
    """The state of worlds. Flags are 0 or 1; clocks count sub-steps down as integers."""

    position: Tensor  # [3, 2, n, W] of the feet
    velocity: Tensor  # [3, 2, n, W]
    yaw: Tensor  # [2, n, W]
    hp: Tensor  # [2, n, W] 0 or less: dead, or an empty slot
    legs: Tensor  # [2, n, W] hp
    heat: Tensor  # [2, n, W]
    stability: Tensor  # [2, n, W]
    ground: Tensor  # [2, n, W] height below the feet
    clocks: Tensor  # [2, CLOCKS, n, W]
    painter: Tensor  # [2, n, W] slot of the enemy that painted it last
    focus: Tensor  # [2, n, W] slot of the chosen target, -1: none
    ewar: Tensor  # [2, n, W] 0 off, 1 ECM, 2 ECCM
    hit_from: Tensor  # [2, 2, n, W] direction (x, y) that the last damage came from
    under_fire: Tensor  # [2, n, W] flag: damaged in the last decision
    shots: Tensor  # [8, 2, 9P, W] position, velocity, sub-steps left, target slot
    screened: Tensor  # [2, 2P, P, W] flag: that enemy heavy has tried to intercept the missile
    shells: Tensor  # [7, 2, n, W] of smoke: position, velocity, sub-steps left
    clouds: Tensor  # [4, 2, 2, n, W] centre, sub-steps left; two for each mech
    # seen at the end of the last decision
    sight: Tensor  # [2, n, n, W] flag: line of sight to each enemy
    quality: Tensor  # [2, n, W] of sensors
    jam: Tensor  # [2, n, W] 0 to 1
    memory: Tensor  # [12, 2, n, n, W] of enemies as last seen; [0, ...] where everything is seen
    ago: Tensor  # [2, n, n, W] decisions since then
    # what bots remember
    still: Tensor  # [2, n, W] decisions without having moved
    escape: Tensor  # [2, n, W] decisions left of getting free
    # of the world
    zone: Tensor  # [3, W] centre, radius
    score: Tensor  # [2, W] seconds
    base: Tensor  # [W] first cell of its map in a bank's layers
    rival: Tensor  # [W] kind of bot that plays red, an index
    fire_prob: Tensor  # [W] probability that it fires when it would
    key: Tensor  # [W] int64, of its random numbers
    steps: Tensor  # [W] decisions

    @property
    def fallen(self) -> Tensor:
        """Returns ``[2, n, W]`` bool: the mech lies on the ground."""
        return self.clocks[:, rules.FALLEN] > 0

    @property
    def alive(self) -> Tensor:
        """``[2, n, W]`` bool."""
        return self.hp > 0


# -- random numbers ------------------------------------------------------------------------------------------------


_GOLDEN, _FIRST, _SECOND, _THIRD = -7046029254386353131, -4658895280553007687, -7723592293110705685, 3935559000370003845


def draws(key: Tensor, time: Tensor, count: int, salt: int) -> Tensor:
    """Returns uniform numbers in [0, 1), ``[count, W]`` float32: splitmix64 (Steele et al. 2014) of the arguments.

    Args:
        key: ``[W]`` int64.
        time: ``[W]`` integers.
        salt: distinguishes uses at the same time.
    """
    x = key + time.to(torch.int64) * _GOLDEN + made_once(_places, count, salt, key.device)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    x = x ^ ((x >> 31) & 0x1FFFFFFFF)
    return ((x >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _places(count: int, salt: int, device: torch.device) -> Tensor:
    return (torch.arange(count, device=device)[:, None] + salt * 4096) * _THIRD


# -- beginnings ----------------------------------------------------------------------------------------------------


_COLUMNS = (0.0, -1.0, 1.0, 2.0, -2.0)  # of the slots of a pack: the heavy in the middle
_ROWS_APART = 4.5
_NEVER_SEEN = 1.0e6


@dataclass(frozen=True)
class EchelonStarts:
    """Makes initial states of episodes.

    Attributes:
        partial: whether states remember enemies.
        bots: weights of the kinds of bots that play red.
        fire: least and greatest probability with which bots fire, drawn for every episode.
    """

    tables: Tables
    partial: bool
    bots: tuple[float, ...]
    fire: tuple[float, float]

    def draw(self, count: int, generator: torch.Generator, dtype: torch.dtype) -> State:
        """Makes ``count`` worlds: each team stands in five columns across the map's diagonal, later packs behind."""
        tables, maps, device = self.tables, self.tables.maps, generator.device
        mechs, packs, side = tables.mechs, tables.packs, tables.side

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, count, generator=generator, dtype=dtype, device=device)

        def zeros(*lead: int) -> Tensor:
            return torch.zeros(*lead, count, dtype=dtype, device=device)

        which = torch.randint(maps.size, (count,), generator=generator, device=device)
        key = torch.randint(2**62, (count,), generator=generator, device=device)
        zone = maps.zone.to(dtype)[:, which]
        swapped = uniform() < 0.5
        jitter = uniform(2, 2, mechs)
        near, far = SPAWN_SQUARE / 2, side - SPAWN_SQUARE / 2
        south = torch.where(maps.corner[which] == 0, near, far).to(dtype)
        first = torch.stack((torch.full_like(south, near), south))
        corners = torch.stack((first, side - first), 1)  # [2 (x, y), 2, W]
        corners = torch.where(swapped, corners.flip(1), corners)
        inwards = torch.sign(side / 2 - corners) / math.sqrt(2.0)
        across = torch.stack((-inwards[1], inwards[0]))
        column = jitter.new_tensor(_COLUMNS * packs)[:, None] * rules.SPAWN_PITCH
        row = (tables.pack - (packs - 1) / 2) * -_ROWS_APART
        planar = corners[:, :, None] + across[:, :, None] * column + inwards[:, :, None] * row
        planar = planar + (2 * jitter - 1) * rules.SPAWN_JITTER
        position = torch.cat((planar, torch.zeros_like(planar[:1])))
        away = zone[:2, None, None] - planar
        yaw = torch.atan2(away[1], away[0]) + (2 * uniform(2, mechs) - 1) * rules.SPAWN_TURN
        weights = torch.tensor(self.bots, device=device)
        rival = torch.multinomial(weights.expand(count, -1), 1, generator=generator)[:, 0]
        low, high = self.fire
        none = torch.zeros_like(yaw)
        state = State(
            position=position,
            velocity=torch.zeros_like(position),
            yaw=yaw,
            hp=tables.hp * tables.present + none,
            legs=tables.leg_hp + none,
            stability=none + rules.STABILITY,
            clocks=zeros(2, rules.CLOCKS, mechs),
            focus=none - 1,
            hit_from=zeros(2, 2, mechs),
            shots=zeros(8, 2, packs * SHOTS),
            screened=zeros(2, 2 * packs, packs),
            shells=zeros(7, 2, mechs),
            clouds=zeros(4, 2, 2, mechs),
            sight=zeros(2, mechs, mechs),
            quality=none + 1,
            memory=zeros(RECALLED if self.partial else 0, 2, mechs, mechs),
            ago=zeros(2, mechs, mechs) + (_NEVER_SEEN if self.partial else 0.0),
            zone=zone,
            score=zeros(2),
            base=(which * side**2).to(dtype),
            rival=rival,
            fire_prob=low + (high - low) * uniform(),
            key=key,
            steps=zeros(),
            **dict.fromkeys(("heat", "ground", "painter", "ewar", "under_fire", "jam", "still", "escape"), none),
        )
        # Entries must not share memory, since restarts write in place.
        return state.map(lambda value: value.clone(memory_format=torch.contiguous_format))


assert len(_COLUMNS) == SLOTS
