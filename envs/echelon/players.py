"""Echelon's two teams, and its bots: heuristic, veteran, rush, random.

Bots control one team of all worlds at once, with masks instead of branches. They read the true state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn import functional

from ..world import Sides, Told, check_known
from . import rules
from .actions import chosen_for
from .maps import cell, look_up
from .rules import SLOTS, TEAMS
from .sensors import by_mech, painted_by_own
from .simulation import EVENTS
from .state import State, draws
from .tables import Tables

BOTS = ("heuristic", "veteran", "rush", "random")
HEURISTIC, VETERAN, RUSH, RANDOM = range(len(BOTS))

_STRAIGHT = 6.0  # distance to the zone within which bots leave the flow
_CLOSE, _LONELY, _QUIET = 5.5, 15.0, 20.0
_WAIT_BEHIND, _WAITING = 3.0, 0.15
_VENT_AT = 0.75
_ECM_BELOW = 0.7
_SALT = 7


class BotView(NamedTuple):
    """The view of the bots of one team, ``[n, W]``."""

    bearing: Tensor  # rad, of the nearest living enemy relative to the facing, -pi to pi
    distance: Tensor  # to it
    target: Tensor  # its slot, whole
    there: Tensor  # bool: there is one
    sight: Tensor  # bool: in line of sight
    marked: Tensor  # bool: painted by the own pack
    to_target: Tensor  # [2, n, W] unit vector
    to_zone: Tensor  # [2, n, W]
    zone: Tensor  # distance
    inside: Tensor  # bool
    alive: Tensor  # bool
    hot: Tensor  # share of the heat cap


def bot_orders(
    state: State,
    tables: Tables,
    team: int,
    kinds: Tensor,
    vent_blocks_fire: bool = True,
    possible: Sequence[int] = (HEURISTIC, VETERAN, RUSH, RANDOM),
    luck: Tensor | None = None,
) -> Tensor:
    """Returns the orders of a team's bots, ``[10, n, W]``, with the rows of :mod:`rlstack.envs.echelon.rules`.

    Args:
        team: 0 blue, 1 red.
        kinds: ``[W]``, indices into :data:`BOTS`.
        possible: kinds that occur; others are not computed.
        luck: result of :func:`bot_luck`; None calls it.
    """
    view = _view(state, tables, team)
    luck = bot_luck(state, tables, team) if luck is None else luck
    orders = _heuristic(state, tables, team, view, luck)
    if VETERAN in possible:  # waits for its heavy before entering the zone
        heavies = slice(0, None, SLOTS)
        lives = view.alive[heavies].repeat_interleave(SLOTS, 0)
        behind = view.zone[heavies].repeat_interleave(SLOTS, 0)
        waits = lives & (view.zone < behind - _WAIT_BEHIND)
        steps = torch.where(waits, orders[:2] * _WAITING, orders[:2])
        vent = orders[rules.VENT] if vent_blocks_fire else torch.ones_like(orders[rules.VENT])
        veteran = torch.cat((steps, orders[2 : rules.VENT], vent[None], orders[rules.VENT + 1 :]))
        orders = torch.where(kinds == VETERAN, veteran, orders)
    if RUSH in possible:  # runs to the zone until it sees an enemy, then to the nearest one, and never retreats
        charge = view.sight & view.there
        way = _way(state, tables, team, view.to_zone, view.zone < _STRAIGHT)
        steps = torch.stack(_steering(state, team, torch.where(charge, view.to_target, way)))
        free = (state.escape[team] > 0) & view.alive
        rush = torch.cat((torch.where(free, orders[:2], steps), orders[2:]))
        orders = torch.where(kinds == RUSH, rush, orders)
    # Removes fire according to the random draw; jammers stay on.
    orders = torch.where((luck[-1] < state.fire_prob) | tables.bot_free, orders, tables.none)
    if RANDOM in possible:  # axes uniform in [-1, 1], buttons with probability one half
        axes = 2 * luck[: rules.PRIMARY] - 1
        buttons = (luck[rules.PRIMARY : rules.TARGET] < 0.5).to(luck.dtype)
        target = (luck[rules.TARGET :][:1] * (tables.mechs + 1)).floor() - 1
        orders = torch.where(kinds == RANDOM, torch.cat((axes, buttons, target)), orders)
    return orders


def bot_luck(state: State, tables: Tables, team: int) -> Tensor:
    """Returns the random numbers of a team's bots in a decision, ``[12, n, W]``."""
    numbers = draws(state.key, state.steps, (rules.ORDERS + 2) * tables.mechs, _SALT + team)
    return numbers.view(rules.ORDERS + 2, tables.mechs, -1).to(state.hp.dtype)


def _view(state: State, tables: Tables, team: int) -> BotView:
    other = 1 - team
    own, foe = state.position[:, team], state.position[:, other]
    away = foe[:, None] - own[:, :, None]
    lift = tables.lift[2, 0]
    away[2].add_(lift - lift[:, None])
    apart = torch.where(state.hp[other] > 0, away.square().sum(0).sqrt(), tables.never)
    distance, target = apart.min(1)
    target = target.to(apart.dtype)
    mine = target[:, None] == tables.slots
    to = (away[:2] * mine).sum(2)
    error = torch.atan2(to[1], to[0]) - state.yaw[team]
    marked = by_mech(painted_by_own(state, tables, team))[0]
    zone = state.zone[:2, None] - own[:2]
    reach = zone.square().sum(0).sqrt()
    return BotView(
        torch.remainder(error + math.pi, 2 * math.pi) - math.pi,
        distance,
        target,
        distance < tables.never,
        (state.sight[team] * mine).sum(1) > 0,
        (marked & mine).any(1),
        to / to.square().sum(0).sqrt().clamp_min(1.0e-6),
        zone,
        reach,
        (reach <= state.zone[2]) & (own[2] <= rules.ZONE_HEIGHT),
        state.hp[team] > 0,
        state.heat[team] / tables.heat_cap,
    )


def _way(state: State, tables: Tables, team: int, goal: Tensor, straight: Tensor) -> Tensor:
    """Returns the unit vector towards the bot's goal, along the flow or ``straight``, ``[2, n, W]``."""
    own = state.position[:, team]
    flow = look_up(tables.maps.flow, cell(own[:2].int(), state.base, tables.side)).int()
    steps = tables.directions.index_select(1, flow.flatten()).view(2, *flow.shape)
    direct = goal / goal.square().sum(0).sqrt().clamp_min(1.0e-6)
    return torch.where(straight | (flow == 0), direct, steps)


def _steering(state: State, team: int, way: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = state.yaw[team].cos(), state.yaw[team].sin()
    return way[0] * cos + way[1] * sin, way[1] * cos - way[0] * sin


def _heuristic(state: State, tables: Tables, team: int, view: BotView, luck: Tensor) -> Tensor:
    """Goes to the zone, or to the team if alone near it; turns to the nearest enemy, and fires if it may hit."""
    own = state.position[:2, team]
    count = view.alive.sum(0).clamp_min(1)
    home = (own * view.alive).sum(1) / count
    lonely = (view.zone < 2 * state.zone[2]) & (view.distance > _QUIET)
    lonely = lonely & ((home[:, None] - own).square().sum(0).sqrt() > _LONELY)
    goal = torch.where(lonely, (home[:, None] - own) / 2 + view.to_zone / 2, view.to_zone)
    forward, strafe = _steering(state, team, _way(state, tables, team, goal, lonely | (view.zone < _STRAIGHT)))
    close = view.distance < _CLOSE
    holds = view.inside & (tables.heavy > 0)
    forward = forward.masked_fill(close > holds, -0.3)
    strafe = torch.where(close, strafe, 0.25 * strafe)
    slow = torch.add(tables.one, view.inside, alpha=-0.5)
    forward, strafe = forward * slow, strafe * slow
    turn = (view.bearing / (math.pi / 3)).clamp(-1.0, 1.0) * view.there

    near = (view.distance <= tables.bot_reach) & (view.sight | tables.bot_blind)
    guided = view.marked & (view.distance <= rules.GUIDED_RANGE)
    hits = (near | (guided & tables.bot_guided)) & (view.bearing.abs() <= tables.bot_arc)
    vents = view.hot > _VENT_AT
    primary, secondary, tertiary = (hits & tables.bot_weapons).any(1) > vents
    eccm = (view.hot >= _ECM_BELOW) | (state.quality[team] < rules.GUIDED_QUALITY)
    secondary = torch.where(tables.scout > 0, tables.one + eccm, secondary)

    backs, free = state.escape[team] > 4, (state.escape[team] > 0) & view.alive
    side = torch.sign(luck[-2] - 0.5)
    forward = torch.where(free, torch.where(backs, tables.nobody, tables.none), forward)
    strafe = torch.where(free, side.masked_fill(backs, 0.0), strafe)
    nothing = tables.none.expand_as(forward)
    rows = [forward, strafe, nothing, turn, primary, vents, secondary, tertiary, nothing]
    return torch.stack([*rows, torch.where(view.there, view.target, tables.nobody)])


def watch(state: State, moved: Tensor, inside: Tensor, tables: Tables) -> State:
    """Detects bots that have not moved for ten decisions, and lets them back off.

    Args:
        moved: ``[2, n, W]`` distance of the last decision.
        inside: ``[2, n, W]`` bool: in the zone.
    """
    idle = ((moved < 0.2) & state.alive) > (inside | state.fallen | (state.heat > tables.heat_cap))
    still = (state.still + 1) * idle
    begins = (still > 10) > state.escape  # which is a whole number
    escape = functional.softshrink(state.escape, 1.0).masked_fill(begins, 8.0)
    return state.replace(still=still.masked_fill(begins, 0.0), escape=escape)


# -- options of the bots ----------------------------------------------------------------------------------------------


def bot_weights(opponent: str, mix: Mapping[str, float] | None) -> tuple[float, ...]:
    """Returns the weights with which each bot plays red.

    Raises:
        ValueError: a bot is unknown, or a weight is impossible.
    """
    check_known("opponent", [opponent], (*BOTS, "policy"))
    if mix and opponent == "policy":
        raise ValueError("opponent_mix: bots play red only where opponent is one of them, not 'policy'")
    # If agents play both sides, the kind of bot has no effect.
    weights = dict(mix) if mix else {BOTS[0] if opponent == "policy" else opponent: 1.0}
    check_known("opponent_mix", weights, BOTS if mix else weights)
    for name, weight in weights.items():
        if weight < 0:
            raise ValueError(f"opponent_mix: the weight of {name}, {weight}, is negative")
    if sum(weights.values()) <= 0:
        raise ValueError("opponent_mix: all weights are 0")
    return tuple(float(weights.get(name, 0.0)) for name in BOTS)


def fire_range(given: float | Sequence[float], option: str = "fire_probability") -> tuple[float, float]:
    """Returns the least and greatest probability of firing that an option gives.

    Raises:
        ValueError: the value is not one or two ascending numbers in [0, 1].
    """
    values = [float(given)] if isinstance(given, int | float) else [float(value) for value in given]
    if len(values) not in (1, 2) or not 0 <= values[0] <= values[-1] <= 1:
        raise ValueError(f"{option}: {given} is neither a number within [0, 1] nor two of them in order")
    return values[0], values[-1]


# -- the two sides -------------------------------------------------------------------------------------------------


def _wins(following: TensorDictBase) -> Tensor:
    """Returns 1 for the winner by the world's rules and 0 for the loser; a draw is 0 to 0."""
    episode = following.get("episode")
    return torch.cat((episode.get("success"), episode.get("lost")), -1)


def _by_bot(kind: int, env: Any, worlds: Tensor) -> Told:
    state, options = env.worlds.state, env.match_options
    if len(worlds) < state.steps.shape[-1]:
        state = state.map(lambda value: value.index_select(-1, worlds))
    kinds = torch.full_like(state.rival, kind)
    teams = [bot_orders(state, env.tables, team, kinds, options.vent_blocks_fire, (kind,)) for team in range(2)]
    orders = torch.stack(teams)  # [2, 10, n, W]
    action = chosen_for(options.actions, orders)
    if not isinstance(action, Tensor):
        raise ValueError(f"actions {options.actions!r} cannot be written as one tensor, use multi")
    return Told(action, orders.permute(3, 0, 1, 2).flatten(0, 1))


SIDES = Sides(
    names=TEAMS,
    score=_wins,
    scripted={BOTS[kind]: partial(_by_bot, kind) for kind in (HEURISTIC, VETERAN, RUSH)},
    anchors={"random": 800.0, "heuristic": 1200.0},
    mirrored=(
        ("success", "lost"),
        *((f"{name}_{TEAMS[0]}", f"{name}_{TEAMS[1]}") for name in ("score", *EVENTS, "damage")),
    ),
    one_sided=("reward_", "hp_margin"),
)
