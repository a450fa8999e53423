"""A sub-step of 0.05 s for a batch of worlds, without branching on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from . import rules
from .maps import cell, look_up
from .projectiles import Launch, Which, airborne, drift, fly, launch, launch_smoke
from .rules import DT, FORWARD, JET, STRAFE, YAW
from .sensors import Pairs, measure
from .state import State
from .tables import Tables
from .weapons import Triggers, aim, beams, choose, pack_bonus, paint, pay, strike

# -- orders --------------------------------------------------------------------------------------------------------


class Commands(NamedTuple):
    """Orders of a decision in the units of its sub-steps, and what else stays the same in them."""

    turn: Tensor  # [2, n, W] rad
    wish: Tensor  # [3, 2, n, W] speed ahead and to the left, and vertical speed that is added
    vents: Tensor  # [2, n, W] bool
    smokes: Tensor  # [2, n, W] bool
    jams: Tensor  # [2, n, W] mode of scouts' electronics
    jam_heat: Tensor  # [2, n, W]
    triggers: Triggers
    base: Tensor  # [W] int32, see State
    floor: Tensor  # [n, W] int32, first cell of its map in the floors of a mech's size


def command(state: State, orders: Tensor, tables: Tables) -> Commands:
    """Prepares the sub-steps of a decision.

    Args:
        orders: ``[2, 10, n, W]``, see the rows in :mod:`rlstack.envs.echelon.rules`.
    """
    steps = orders[:, FORWARD : STRAFE + 1].transpose(0, 1)
    steps = steps * (tables.speed / steps.square().sum(0).sqrt().clamp_min(1.0))
    lift = orders[:, JET].clamp_min(0.0) * (tables.jet * DT)
    jams = orders[:, rules.SECONDARY] * tables.scout
    heat = (jams == 1) * (rules.ECM_HEAT * DT) + (jams == 2) * (rules.ECCM_HEAT * DT)
    pressed, base = orders > 0, state.base.int()
    return Commands(
        orders[:, YAW] * (tables.yaw_rate * DT),
        torch.cat((steps, lift[None])),
        pressed[:, rules.VENT],
        pressed[:, rules.SPECIAL],
        jams,
        heat.to(jams.dtype),
        aim(state, pressed, tables),
        base,
        base + tables.floor_base,
    )


# -- motion --------------------------------------------------------------------------------------------------------


def move(
    state: State,
    commands: Commands,
    tables: Tables,
    pairs: Pairs,
    here: Tensor,
    wet: Tensor,
    sound: Tensor,
    alive: Tensor,
    hot: Tensor,
    stands: Tensor,
) -> State:
    """Moves mechs by a sub-step. Positive strafe goes to the left, along (-sin, cos) of the yaw.

    Args:
        here: cells ``[2 (x, y), 2, n, W]`` of the mechs, int32.
        wet, sound, alive, hot, stands: ``[2, n, W]`` bool: the mech is in water, has its legs, lives, is overheated,
            has not fallen.
    """
    awake = alive & stands
    able, coasts = awake > hot, awake & hot
    yaw = torch.addcmul(state.yaw, commands.turn, able)
    cos, sin = yaw.cos(), yaw.sin()
    ahead, left, up = commands.wish
    wish = torch.stack((torch.addcmul(ahead * cos, left, sin, value=-1), torch.addcmul(ahead * sin, left, cos), up))
    slow_wet = torch.addcmul(tables.one, tables.slow_wet, wet, value=-1)
    slow_legged = torch.where(sound, tables.one, tables.legged_speed)
    pushed = torch.addcmul(tables.gravity, wish * slow_wet * slow_legged, able)
    kept = torch.stack((coasts, coasts, alive))
    velocity = torch.addcmul(pushed, state.velocity, kept) * (alive * rules.DAMPING)

    # Mechs push each other away by half of their overlap.
    place = pairs.mechs[:3].flatten(1, 2)
    way = place[:, :, None] - place[:, None]
    apart = torch.hypot(way[0], way[1])
    wide = torch.add(tables.wide, alive.flatten(0, 1), alpha=tables.side)  # dead mechs have no overlap
    overlap = torch.add(wide[:, None] + wide, apart, alpha=-0.5).clamp_min(0.0)
    amount = overlap / apart.clamp_min(1.0e-6) * (way[2].abs() < tables.stacked)
    shift = torch.add((way[:2] * amount).sum(2).unflatten(1, (2, tables.mechs)), velocity[:2], alpha=DT)

    # They move along x, then y, then z, each if the ground allows.
    old = state.position
    limit = torch.add(old[2], state.velocity[2].abs() < rules.STEP_CALM, alpha=rules.STEP_UP)
    goal = (old[:2] + shift).clamp(tables.margin, tables.far_margin)
    x, y = torch.stack((here, goal.int()), 1)
    # Heights by x and y, each old or new.
    high = look_up(tables.maps.floors, cell((x[:, None], y), commands.floor, tables.side)).to(old.dtype)
    high[0, 0].copy_(state.ground)
    free_x = high[1, 0] <= limit
    before, after = torch.where(free_x, high[1], high[0])
    free_y = after <= limit
    ground = torch.where(free_y, after, before)
    up = torch.add(old[2], velocity[2], alpha=DT)
    z = up.maximum(ground).clamp_max(rules.CEILING)
    free = torch.stack((free_x, free_y, z == up))
    position = torch.cat((torch.where(free[:2], goal, old[:2]), z[None]))
    return state.replace(yaw=yaw, position=position, velocity=velocity * free, ground=ground)


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

    @classmethod
    def summed(cls, tallies: Sequence[Tally]) -> Tally:
        """Returns the sums of some."""
        return cls(*(torch.stack(rows).sum(0) for rows in zip(*tallies)))

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

    step: Callable[..., tuple[State, Tally, Launch | None]]
    vent_blocks_fire: bool
    smoke: bool
    which: Which


def advance(
    state: State, commands: Commands, tables: Tables, luck: Tensor, sub: SubStepOptions | None = None
) -> tuple[State, Tally]:
    """Makes one sub-step: clocks, hazards, balance, heat; then shots and beams hit simultaneously; then all move.

    Args:
        luck: ``[lucky_numbers, W]`` uniform.
    """
    state, tally, fired = without_smoke(state, commands, tables, luck, sub or PLAIN)
    return (state if fired is None else drift(state, [fired], commands.base, tables)), tally


def without_smoke(
    state: State, commands: Commands, tables: Tables, luck: Tensor, sub: SubStepOptions
) -> tuple[State, Tally, Launch | None]:
    """Makes one sub-step, in which smoke does not move; also returns which smoke shells are fired, if any may be."""
    places = airborne(state.shots, sub.which)
    return sub.step(state, commands, tables, luck < tables.chances, places, sub.vent_blocks_fire, sub.smoke)


def step(
    state: State,
    commands: Commands,
    tables: Tables,
    lucky: Tensor,
    places: Tensor | None,
    vent_blocks_fire: bool,
    smoke: bool,
) -> tuple[State, Tally, Launch | None]:
    """Makes a sub-step for given ``places`` of shots, without branching on data; see :func:`without_smoke`."""
    packs = tables.packs
    lucky_beams = lucky[: 2 * packs * LUCK].view(2, packs, LUCK, -1)
    lucky_ams = lucky[2 * packs * LUCK :].view(2, 2 * packs, packs, -1)
    body = torch.stack((state.hp, state.legs, state.heat, state.position[2]))
    was_alive, was_sound, was_hot, high = body > tables.limits
    here = state.position[:2].int()
    ground = look_up(tables.maps.kind, cell(here, commands.base, tables.side))
    wet, burning = (ground == tables.hazards) & (was_alive > high)
    body = torch.addcmul(torch.addcmul(body[:3], wet, tables.water), burning, tables.lava)
    alive, _, hot = body > tables.limits[:3]
    state = state.replace(hp=body[0], heat=body[2].clamp_min(0.0))

    # Clocks run; balance returns, or mechs fall. One that has just stood up has half of its balance.
    full, half, gain = torch.where(was_sound, tables.balance, tables.legged_balance)
    rises = (state.clocks[:, rules.FALLEN] == 1) & alive
    stability = torch.where(rises, half, state.stability)
    clocks = functional.softshrink(state.clocks, 1.0)  # one less, at least 0
    falls = alive & (stability.maximum(clocks[:, rules.FALLEN]) <= 0)
    clocks[:, rules.FALLEN].add_(falls, alpha=rules.FALL_TICKS)
    on = clocks > 0
    stands = alive > on[:, rules.FALLEN]
    most = rules.REGENERATION * DT
    gain = torch.add(gain, state.velocity.square().sum(0) > 1.0, alpha=-0.5 * most)
    gain = torch.add(gain, on[:, rules.SUPPRESSED], alpha=-0.75 * most).clamp_min(0.1 * most)
    stability = torch.addcmul(stability, gain, stands).minimum(full)

    # Working mechs dissipate heat, threefold while venting; jammers add heat.
    runs = alive > hot
    venting = commands.vents & runs
    heat = (state.heat - torch.addcmul(tables.cooling, venting, tables.cooling, value=2)).clamp_min(0.0)
    heat = torch.addcmul(heat, commands.jam_heat, runs)
    state = state.replace(clocks=clocks, stability=stability, heat=heat, ewar=commands.jams * runs)

    # Shots, beams and motion.
    working = alive & (heat <= tables.heat_cap)
    unable = working <= venting if vent_blocks_fire else ~working
    pairs = measure(state, tables)
    bonus = pack_bonus(pairs, tables)
    state, hits, intercepts = fly(state, tables, pairs, working > on[:, rules.AMS], lucky_ams, bonus, places)
    volley = choose(state, commands.triggers, tables, pairs, unable)
    state, harm = strike(state, hits, beams(volley, tables, pairs, lucky_beams, bonus), tables, pairs, stands)
    state = paint(launch(pay(state, volley, tables), volley, tables, pairs), volley, tables)
    fired = None
    if smoke:
        state, fired = launch_smoke(state, commands.smokes > unable, tables, pairs)
    sound, hot = state.legs > 0, state.heat > tables.heat_cap
    legged, alive = (alive & was_sound) > sound, state.alive
    state = move(state, commands, tables, pairs, here, wet, sound, alive, hot, stands)
    overheats = (alive & hot) > was_hot
    deaths = was_alive > alive
    kills, assists, friendly = harm.counted
    counted = (kills, assists, deaths, legged, friendly, falls, overheats, intercepts)
    return state, Tally(harm.credited, torch.stack(counted), volley.fired), fired


PLAIN = SubStepOptions(step, True, True, "flying")
"""Sub-steps without a compiler, for worlds that may have smoke."""
