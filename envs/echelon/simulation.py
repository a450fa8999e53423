"""A sub-step of 0.05 s for a batch of worlds, without branching on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import rules
from .maps import LAVA, WATER, cell, look_up
from .projectiles import Which, airborne, drift, fly, launch, launch_smoke
from .rules import DT, FORWARD, JET, STRAFE, YAW
from .sensors import measure
from .state import State
from .tables import Tables
from .weapons import beams, choose, paint, pay, strike

# -- motion --------------------------------------------------------------------------------------------------------


def move(state: State, orders: Tensor, tables: Tables, wet: Tensor) -> State:
    """Moves mechs by a sub-step. Positive strafe goes to the left, along (-sin, cos) of the yaw.

    Args:
        orders: ``[2, 10, n, W]``.
        wet: ``[2, n, W]`` bool: the mech is in water.
    """
    alive, fallen = state.alive, state.fallen
    able = alive & ~fallen & (state.heat <= tables.heat_cap)
    legged = state.legs <= 0
    yaw = state.yaw + torch.where(able, orders[:, YAW] * (tables.yaw_rate * DT), 0.0)
    stays = fallen | ~alive
    planar = torch.where(able, _wish(orders, yaw, tables, wet, legged), state.velocity[:2])
    planar = torch.where(stays, 0.0, planar)
    lift = torch.where(able, orders[:, JET].clamp_min(0.0) * tables.jet, 0.0)
    lift = torch.where(legged, lift * rules.LEGGED_JET, lift)
    climb = state.velocity[2] + (lift - rules.GRAVITY) * DT
    climb = torch.where(alive, climb, 0.0)
    planar, climb = planar * rules.DAMPING, climb * rules.DAMPING
    shift = planar * DT + _push(state, tables, alive)
    return _walk(state.replace(yaw=yaw), tables, shift, planar, climb)


def _wish(orders: Tensor, yaw: Tensor, tables: Tables, wet: Tensor, legged: Tensor) -> Tensor:
    """Returns the ordered velocity, ``[2 (x, y), 2, n, W]``."""
    forward, strafe = orders[:, FORWARD], orders[:, STRAFE]
    speed = tables.speed / (forward.square() + strafe.square()).sqrt().clamp_min(1.0)
    speed = torch.where(wet, speed * rules.WATER_SPEED, speed)
    speed = torch.where(legged, speed * rules.LEGGED_SPEED, speed)
    cos, sin = yaw.cos(), yaw.sin()
    return torch.stack(((forward * cos - strafe * sin) * speed, (forward * sin + strafe * cos) * speed))


def _push(state: State, tables: Tables, alive: Tensor) -> Tensor:
    """Returns half of the overlap with all other mechs, away from them, ``[2 (x, y), 2, n, W]``."""
    x, y, z = state.position.flatten(1, 2).unbind(0)
    wide, high = (torch.cat((values, values)) for values in (tables.width / 2, tables.height / 2))
    wide = torch.where(alive.flatten(0, 1), wide, -tables.side)  # dead mechs have no overlap
    middle = z + high
    dx, dy = x[:, None] - x, y[:, None] - y
    apart = torch.addcmul(dx * dx, dy, dy).sqrt()
    overlap = (wide[:, None] + wide - apart).clamp_min(0.0)
    beside = (middle[:, None] - middle).abs() < high[:, None] + high
    amount = overlap / apart.clamp_min(1.0e-6) * beside
    pushed = torch.stack(((dx * amount).sum(1), (dy * amount).sum(1))) / 2
    return pushed.unflatten(1, (2, tables.mechs))


def _walk(state: State, tables: Tables, shift: Tensor, planar: Tensor, climb: Tensor) -> State:
    """Moves along x, then y, then z, each if the ground allows."""
    x, y, z = state.position.unbind(0)
    margin = tables.width / 2
    base = state.base + tables.floor_base
    limit = z + torch.where(state.velocity[2].abs() < rules.STEP_CALM, rules.STEP_UP, 0.0)
    to_x = torch.minimum((x + shift[0]).maximum(margin), tables.side - margin)
    high = look_up(tables.maps.floors, cell(to_x, y, base, tables.side), z)
    free_x = high <= limit
    x, ground = torch.where(free_x, to_x, x), torch.where(free_x, high, state.ground)
    to_y = torch.minimum((y + shift[1]).maximum(margin), tables.side - margin)
    high = look_up(tables.maps.floors, cell(x, to_y, base, tables.side), z)
    free_y = high <= limit
    y, ground = torch.where(free_y, to_y, y), torch.where(free_y, high, ground)
    to_z = z + climb * DT
    landed = (to_z <= ground) | (to_z >= rules.CEILING)
    z = torch.maximum(to_z, ground).clamp_max(rules.CEILING)
    velocity = torch.stack(
        (torch.where(free_x, planar[0], 0.0), torch.where(free_y, planar[1], 0.0), torch.where(landed, 0.0, climb))
    )
    return state.replace(position=torch.stack((x, y, z)), velocity=velocity, ground=ground)


# -- a sub-step ----------------------------------------------------------------------------------------------------


EVENTS = ("kills", "assists", "deaths", "legged", "friendly", "falls", "shutdowns", "intercepts") + (
    *("lasers", "flamers", "missiles", "kinetics", "paints"),
)
"""Events counted for every mech, rows of :attr:`Tally.events`."""
LUCK = 5
"""Number of beams of a pack, each of which draws a number in every sub-step."""


class Tally(NamedTuple):
    """Sums over sub-steps."""

    credited: Tensor  # [2, n, n, W] hp that mechs took from enemies
    counted: Tensor  # [8, 2, n, W] the events before "lasers"
    fired: Tensor  # [2, P, 13, W] how often each weapon of a pack fired

    def plus(self, other: Tally) -> Tally:
        """Returns the sum of both."""
        return Tally(*(one + two for one, two in zip(self, other)))

    @property
    def events(self) -> Tensor:
        """Returns ``[EVENTS, 2, n, W]``."""
        fired = self.fired
        nobody = torch.zeros_like(fired[:, :, :1])
        lasers = torch.cat((fired[:, :, 0:4], nobody), 2)
        flamers = torch.cat((nobody, nobody, nobody, fired[:, :, 4:5], nobody), 2)
        missiles = torch.cat((fired[:, :, 5:6], nobody, nobody, nobody, nobody), 2)
        kinetics = torch.cat((fired[:, :, 6:9], nobody, nobody), 2)
        paints = torch.cat((nobody, fired[:, :, 9:13]), 2)
        used = torch.stack((lasers, flamers, missiles, kinetics, paints))
        return torch.cat((self.counted, used.flatten(2, 3)))


def lucky_numbers(packs: int) -> int:
    """Random numbers of a sub-step: legs for each beam, interceptions for each missile and heavy."""
    return 2 * packs * LUCK + 2 * (2 * packs) * packs


class SubStepOptions(NamedTuple):
    """Options of sub-steps.

    Attributes:
        step: :func:`step`, eager or compiled.
        vent_blocks_fire: whether mechs cannot fire while venting.
        smoke: whether there may be smoke.
        which: shots to process; see :func:`rlstack.envs.echelon.projectiles.airborne`.
    """

    step: Callable[..., tuple[State, Tally]]
    vent_blocks_fire: bool
    smoke: bool
    which: Which


def advance(
    state: State, orders: Tensor, tables: Tables, luck: Tensor, sub: SubStepOptions | None = None
) -> tuple[State, Tally]:
    """Makes one sub-step: clocks, hazards, balance, heat; then shots and beams hit simultaneously; then all move.

    Args:
        orders: ``[2, 10, n, W]``, see the rows in :mod:`rlstack.envs.echelon.rules`.
        luck: ``[lucky_numbers, W]`` uniform.
    """
    sub = sub or PLAIN
    places = airborne(state.shots, sub.which)
    return sub.step(state, orders, tables, luck, places, sub.vent_blocks_fire, sub.smoke)


def step(
    state: State, orders: Tensor, tables: Tables, luck: Tensor, places: Tensor, vent_blocks_fire: bool, smoke: bool
) -> tuple[State, Tally]:
    """Makes a sub-step for given ``places`` of shots, without branching on data; see :func:`advance`."""
    packs = tables.packs
    beam_luck = luck[: 2 * packs * LUCK].view(2, packs, LUCK, -1)
    missile_luck = luck[2 * packs * LUCK :].view(2, 2 * packs, packs, -1)
    was_alive, was_hot = state.alive, state.heat > tables.heat_cap
    x, y, z = state.position.unbind(0)
    ground = look_up(tables.maps.kind, cell(x, y, state.base, tables.side), z)
    low = (z <= rules.HAZARD_HEIGHT) & was_alive
    wet, burning = (ground == WATER) & low, (ground == LAVA) & low
    state, falls = _balanced(_in_hazards(state, wet, burning))
    state, venting = _cooled(state, orders, tables)
    able = state.alive & (state.heat <= tables.heat_cap)
    if vent_blocks_fire:
        able = able & ~venting
    pairs = measure(state, tables)
    state, hits, intercepts = fly(state, tables, pairs, missile_luck, places)
    volley = choose(state, orders, tables, pairs, able)
    state, harm = strike(state, hits.plus(beams(volley, tables, pairs, beam_luck)), tables)
    state = paint(launch(pay(state, volley, tables), volley, tables, pairs), volley, tables)
    if smoke:
        state = launch_smoke(drift(state, tables), orders, tables, able)
    state = move(state, orders, tables, wet)
    overheats = state.alive & (state.heat > tables.heat_cap) & ~was_hot
    deaths = was_alive & ~state.alive
    counted = (harm.kills, harm.assists, deaths, harm.legged, harm.friendly, falls, overheats, intercepts)
    return state, Tally(harm.credited, torch.stack([row.to(state.hp.dtype) for row in counted]), volley.fired)


PLAIN = SubStepOptions(step, True, True, "flying")
"""Sub-steps without a compiler, for worlds that may have smoke."""


def _in_hazards(state: State, wet: Tensor, burning: Tensor) -> State:
    """Advances the clocks; water cools, and lava burns."""
    clocks = (state.clocks - 1).clamp_min(0.0)
    # A mech that has just stood up has half of its balance; see below.
    rose = (state.clocks[:, rules.FALLEN] == 1) & state.alive
    stability = torch.where(rose, _full(state) / 2, state.stability)
    change = torch.where(burning, rules.LAVA_HEAT * DT, torch.where(wet, rules.WATER_HEAT * DT, 0.0))
    heat = (state.heat + change.to(state.heat.dtype)).clamp_min(0.0)
    hp = torch.where(burning, state.hp - rules.LAVA_DAMAGE * DT, state.hp)
    return state.replace(clocks=clocks, stability=stability, heat=heat, hp=hp)


def _full(state: State) -> Tensor:
    return torch.where(state.legs > 0, rules.STABILITY, rules.STABILITY * rules.LEGGED_STABILITY).to(state.hp.dtype)


def _balanced(state: State) -> tuple[State, Tensor]:
    """Restores balance or makes mechs fall; also returns which fall, bool."""
    clocks, alive = state.clocks, state.alive
    falls = alive & (state.stability <= 0) & ~state.fallen
    row = torch.where(falls, rules.FALL_TICKS, clocks[:, rules.FALLEN])
    moving = state.velocity.square().sum(0) > 1.0
    penalty = 0.5 * (state.legs <= 0) + 0.5 * moving + 0.75 * (clocks[:, rules.SUPPRESSED] > 0)
    gain = rules.REGENERATION * DT * (1 - penalty).clamp_min(0.1)
    stands = alive & (row == 0)
    stability = torch.minimum(torch.where(stands, state.stability + gain, state.stability), _full(state))
    clocks = clocks.select_scatter(row.to(clocks.dtype), 1, rules.FALLEN)
    return state.replace(clocks=clocks, stability=stability.to(state.hp.dtype)), falls


def _cooled(state: State, orders: Tensor, tables: Tables) -> tuple[State, Tensor]:
    """Dissipates heat, three times as fast while venting; jammers add heat. Also returns which vent, bool."""
    on = state.alive & (state.heat <= tables.heat_cap)
    venting = (orders[:, rules.VENT] > 0) & on
    off = torch.where(venting, 3.0 * DT, DT) * tables.dissipation
    mode = torch.where(on, orders[:, rules.SECONDARY] * tables.scout, 0.0)
    cost = torch.where(mode == 1, rules.ECM_HEAT * DT, torch.where(mode == 2, rules.ECCM_HEAT * DT, 0.0))
    heat = (state.heat - off).clamp_min(0.0) + cost
    return state.replace(heat=heat.to(state.hp.dtype), ewar=mode), venting
