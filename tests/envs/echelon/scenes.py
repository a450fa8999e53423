"""Worlds for tests: a flat field with mechs placed by hand, random states, and rotations of both."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from rlstack.envs.echelon import rules
from rlstack.envs.echelon.maps import Maps, cell, look_up, make_maps
from rlstack.envs.echelon.projectiles import Which
from rlstack.envs.echelon.sensors import look
from rlstack.envs.echelon.simulation import PLAIN, Tally, advance, command, lucky_numbers
from rlstack.envs.echelon.state import EchelonStarts, State
from rlstack.envs.echelon.tables import Tables

HEAVY, MEDIUM, LIGHT, SCOUT = 0, 1, 3, 4
BLUE, RED = 0, 1
FLAT = rules.MAP * rules.MAP


def flat_maps(**cells: dict[tuple[int, int], int]) -> Maps:
    """Makes one empty map; ``height={(x, y): 5}`` and ``kind`` fill single cells. Only ``floors`` of 1 x 1 cells."""
    layers = {name: torch.zeros(FLAT, dtype=torch.uint8) for name in ("height", "kind", "flow")}
    for name, values in cells.items():
        for (x, y), value in values.items():
            layers[name][y * rules.MAP + x] = value
    height = layers["height"]
    zone, corner = torch.tensor([[32.0], [32.0], [6.0]]), torch.zeros(1, dtype=torch.int64)
    beats = torch.zeros(1, rules.MAP, rules.MAP, dtype=torch.int16)
    return Maps(height, height, height, height.repeat(2), layers["kind"], layers["flow"], zone, corner, beats)


class Field:
    """Makes one world of a pack against a pack on flat ground; mechs that are not placed are dead.

    Args:
        places: ``{(team, slot): (x, y, yaw)}``.
    """

    def __init__(self, places: dict[tuple[int, int], tuple[float, float, float]], maps: Maps | None = None) -> None:
        self.tables = Tables(maps or flat_maps(), (5, 5), torch.float64, torch.device("cpu"))
        self.state: State = start(self.tables, 1)
        self.state.hp.zero_()
        for (team, slot), (x, y, yaw) in places.items():
            self.state.position[:, team, slot, 0] = torch.tensor([x, y, 0.0], dtype=torch.float64)
            self.state.yaw[team, slot] = yaw
            self.state.hp[team, slot] = rules.PACK[slot].hp
        self.orders: dict[tuple[int, int], dict[int, float]] = {}
        self.luck = torch.full((lucky_numbers(1), 1), 0.99, dtype=torch.float64)
        self.sub = PLAIN

    def order(self, team: int, slot: int, **values: float) -> None:
        """Sets what a mech does from now on, as ``primary=1``; anything else is off."""
        self.orders[team, slot] = {getattr(rules, name.upper()): value for name, value in values.items()}

    def step(self, count: int = 1) -> Tally:
        """Runs sub-steps, with new sightings before each."""
        given = torch.zeros(2, rules.ORDERS, 5, 1, dtype=torch.float64)
        given[:, rules.TARGET] = -1
        for (team, slot), values in self.orders.items():
            for row, value in values.items():
                given[team, row, slot] = value
        tallies: list[Tally] = []
        for _ in range(count):
            self.state = look(self.state.replace(focus=given[:, rules.TARGET]), self.tables, False)
            commands = command(self.state, given, self.tables)
            self.state, tally = advance(self.state, commands, self.tables, self.luck, self.sub)
            tallies.append(tally)
        return Tally.summed(tallies)

    def of(self, name: str, team: int, slot: int) -> float:
        """Returns a number of a mech."""
        return float(getattr(self.state, name)[team, slot, 0])

    def clock(self, row: int, team: int, slot: int) -> float:
        """Returns the sub-steps left."""
        return float(self.state.clocks[team, row, slot, 0])


def start(tables: Tables, worlds: int, seed: int = 0, partial: bool = False) -> State:
    """Returns states at the beginning of episodes."""
    starts = EchelonStarts(tables, partial, (1.0, 0.0, 0.0, 0.0), (1.0, 1.0))
    return starts.draw(worlds, torch.Generator().manual_seed(seed), torch.float64)


@lru_cache
def hilly(packs: int = 1) -> Tables:
    """Makes teams of five or ten on sixteen maps that look the same from both sides."""
    return Tables(make_maps(16, 5, True), (5 * packs, 5 * packs), torch.float64, torch.device("cpu"))


def lively(tables: Tables, worlds: int, seed: int = 0) -> State:
    """Places mechs within twelve voxels of the middle, on the ground or on roofs, some damaged and hot."""
    state = start(tables, worlds, seed)
    generator = torch.Generator().manual_seed(seed + 1)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, worlds, generator=generator, dtype=torch.float64)

    mechs = tables.mechs
    planar = 32 + 24 * (uniform(2, 2, mechs) - 0.5)
    base = state.base + tables.floor_base
    ground = look_up(tables.maps.floors, cell(planar, base, tables.side)).double()
    state = state.replace(
        position=torch.cat((planar, ground[None])),
        ground=ground,
        yaw=6.28 * uniform(2, mechs),
        hp=tables.hp * uniform(2, mechs),
        heat=tables.heat_cap * 1.1 * uniform(2, mechs),
        stability=100 * uniform(2, mechs),
    )
    return look(state, tables, False)


def random_orders(steps: int, tables: Tables, worlds: int, seed: int = 2) -> Tensor:
    """Returns orders ``[steps, 2, 10, n, W]``: any steering, fire pressed half of the time, seldom smoke."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, 2, rules.ORDERS, tables.mechs, worlds)
    orders = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    orders[:, :, rules.PRIMARY : rules.TARGET] = (orders[:, :, rules.PRIMARY : rules.TARGET] > 0).double()
    orders[:, :, rules.VENT] *= (orders[:, :, rules.FORWARD] > 0.6).double()
    orders[:, :, rules.TARGET] = (orders[:, :, rules.TARGET] * 3).floor()
    return orders


def luck(steps: int, tables: Tables, worlds: int, seed: int = 3) -> Tensor:
    """Returns random numbers ``[steps, numbers, W]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(steps, lucky_numbers(tables.packs), worlds, generator=generator, dtype=torch.float64)


def run(state: State, orders: Tensor, chance: Tensor, tables: Tables, which: Which = "flying") -> State:
    """Returns the state after some decisions of five sub-steps."""
    for now, numbers in zip(orders, chance):
        state = state.replace(focus=now[:, rules.TARGET])
        commands = command(state, now, tables)
        for _ in range(rules.SUB_STEPS):
            state, _ = advance(state, commands, tables, numbers, PLAIN._replace(which=which))
        state = look(state, tables, False)
    return state


_PLANAR = {"position": "place", "velocity": "way", "hit_from": "way", "shots": "both", "shells": "both"}
_WORLD = ("zone", "score", "base", "rival", "fire_prob", "key", "steps")


def turned(state: State) -> State:
    """Rotates the world by pi about the map's middle, and exchanges the teams."""
    items = {}
    for name, value in state.items():
        if name in _WORLD:
            items[name] = value.flip(0) if name == "score" else value
            continue
        first = 2 if name == "clouds" else 1 if name in _PLANAR or name == "memory" else 0
        new = value.flip(first).clone()
        kind = "place" if name == "clouds" else _PLANAR.get(name, "")
        if kind in ("place", "both"):
            new[:2] = rules.MAP - new[:2]
        if kind == "way":
            new[:2] = -new[:2]
        if kind == "both":
            new[3:5] = -new[3:5]
        items[name] = new + torch.pi if name == "yaw" else new
    return State(**items)
