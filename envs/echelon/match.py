"""A match: decisions of five sub-steps, scores, ends, rewards and statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..foundation.compilation import Compiled
from ..foundation.tensors import STATE
from ..states import Opening, Record
from . import rules
from .actions import possible
from .observation import observe, visible_enemies
from .players import bot_luck, bot_orders, watch
from .projectiles import Launch, Which, drift
from .rewards import TERMS, Hold, hold, judge
from .rules import DECISION, SUB_STEPS, TEAMS
from .sensors import look
from .simulation import EVENTS, Commands, SubStepOptions, Tally, advance, command, lucky_numbers, step, without_smoke
from .state import State, draws
from .tables import Tables


class EchelonKernels(NamedTuple):
    """The expensive functions, eager or compiled."""

    bot_orders: Callable[..., Any]
    command: Callable[..., Any]
    step: Callable[..., Any]
    drift: Callable[..., Any]
    look: Callable[..., Any]
    conclude: Callable[..., Any]


_CONSTANTS = {"bot_orders": (1,), "command": (2,), "step": (2,), "drift": (3,), "look": (1,), "conclude": (4, 5)}
"""Positions of the tables and options of a world."""


def compiled(plain: EchelonKernels) -> EchelonKernels:
    """Returns the kernels compiled for a world's shapes, with its tables and options as constants."""

    def fast(name: str, function: Callable[..., Any]) -> Compiled:
        return Compiled(function, f"{function.__name__} of echelon", constants=_CONSTANTS[name], dynamic=False)

    return EchelonKernels(*(fast(name, function) for name, function in plain._asdict().items()))


@dataclass(frozen=True)
class EchelonOptions:
    """Options of a decision beyond the simulation.

    Attributes:
        weights: weights of the reward's terms in order, including the scale.
        actions: form of the actions, for the mask.
        teams: number of teams that are agents; with 1 a bot plays red.
        bots: kinds of bots that may play red.
        most_steps: number of decisions of an episode.
        which: shots to process; with ``"all"`` there is no branching on data.
        shows_all: whether ``state`` is shown, too.
    """

    weights: Tensor  # [TERMS, 1, 1, 1]
    actions: str
    teams: int
    partial: bool
    vent_blocks_fire: bool
    bots: tuple[int, ...]
    most_steps: int
    which: Which
    shows_all: bool = False

    @property
    def to_win(self) -> float:
        """Score that wins, in seconds."""
        return self.most_steps * DECISION / 2


@dataclass
class EchelonMatch(Record):
    """State of a batch of matches, world-last, with sums over the episode."""

    records = {"state": State}
    state: State
    terms: Tensor  # [TERMS, 2, n, W] weighted
    events: Tensor  # [EVENTS, 2, n, W]
    damage: Tensor  # [2, n, W]
    winner: Tensor  # [W] 1 blue, -1 red, 0 draw or undecided


Shown = dict[str, Tensor]
"""``observation [W, A, size]`` of all agents; where their actions are choices, ``mask [W, A, choices]`` bool; and, with
``shows_all``, ``state [W, A, size]``: the observation that full visibility would give."""


class EchelonOutcome(NamedTuple):
    """Outcome of a decision."""

    shown: Shown
    reward: Tensor  # [teams, n, W]
    terminated: Tensor  # [W] bool
    truncated: Tensor  # [W] bool


def open_match(state: State, tables: Tables, options: EchelonOptions) -> Opening[EchelonMatch]:
    """Begins episodes."""
    state = look(state, tables, options.partial, False)
    state = state.map(lambda value: value.clone(memory_format=torch.contiguous_format))
    none = torch.zeros_like(state.hp)
    terms, events = (none.new_zeros(len(names), *none.shape) for names in (TERMS, EVENTS))
    match = EchelonMatch(state, terms, events, none, torch.zeros_like(state.steps))
    return Opening(match, _shown(state, tables, hold(state, tables), options))


def play(
    match: EchelonMatch, orders: Tensor, tables: Tables, options: EchelonOptions, kernels: EchelonKernels
) -> tuple[EchelonMatch, EchelonOutcome]:
    """Makes one decision in all matches.

    Args:
        orders: ``[teams, 10, n, W]``.
    """
    started = state = match.state
    orders = with_rival(state, orders, tables, options, kernels).contiguous()
    smoke = (
        options.which != "flying"
        or bool(((orders[:, rules.SPECIAL] > 0) & state.alive).any())
        or bool((state.shells[6] > 0).any())
        or bool((state.clouds[3] > 0).any())
    )
    sub = SubStepOptions(kernels.step, options.vent_blocks_fire, smoke, options.which)
    state, commands, luck = prepared(started, orders, tables, kernels.command)
    tallies: list[Tally] = []
    launches: list[Launch] = []
    for part in luck:
        state, tally, fired = without_smoke(state, commands, tables, part, sub)
        tallies.append(tally)
        launches += [] if fired is None else [fired]
    if launches:
        state = kernels.drift(state, launches, commands.base, tables)
    state = kernels.look(state, tables, options.partial, smoke)
    return kernels.conclude(match, started, state, Tally.summed(tallies), tables, options)


def with_rival(
    state: State, orders: Tensor, tables: Tables, options: EchelonOptions, kernels: EchelonKernels
) -> Tensor:
    """Returns the orders ``[2, 10, n, W]`` of both teams, adding the bots' if red is not an agent."""
    if options.teams == 2:
        return orders
    chance = bot_luck(state, tables, 1)  # outside the compiled code, which cannot handle integers of this size
    rival = kernels.bot_orders(state, tables, 1, state.rival, options.vent_blocks_fire, options.bots, chance)
    return torch.cat((orders, rival[None].to(orders.dtype)))


def prepared(
    state: State, orders: Tensor, tables: Tables, command: Callable[..., Any] = command
) -> tuple[State, Commands, tuple[Tensor, ...]]:
    """Returns the state at the first sub-step of a decision, the commands, and the luck of each sub-step."""
    count = lucky_numbers(tables.packs)
    luck = draws(state.key, state.steps, SUB_STEPS * count, 0).to(state.hp.dtype)
    state = state.replace(focus=orders[:, rules.TARGET].contiguous())
    return state, command(state, orders, tables), luck.split(count)


def sub_steps(state: State, orders: Tensor, tables: Tables, sub: SubStepOptions) -> Iterator[tuple[State, Tally]]:
    """Makes the sub-steps of a decision one by one; returns the state and the tally of each."""
    state, commands, luck = prepared(state, orders, tables)
    for part in luck:
        state, tally = advance(state, commands, tables, part, sub)
        yield state, tally


def conclude(
    match: EchelonMatch, started: State, state: State, tally: Tally, tables: Tables, options: EchelonOptions
) -> tuple[EchelonMatch, EchelonOutcome]:
    """Computes score, ends, rewards, sums and observations after the sub-steps of a decision."""
    now = hold(state, tables)
    before = (state.zone[:2, None, None] - started.position[:2]).square().sum(0).sqrt()
    moved = (state.position - started.position).square().sum(0).sqrt()
    score = state.score + now.tick * DECISION
    # Where the decision's damage came from.
    away = started.position[:2].flip(1)[:, :, None] - started.position[:2, :, :, None]
    pull = -(away * tally.credited).sum(2).flip(1)
    size = pull.square().sum(0).sqrt()
    direction = torch.where(size > 0, pull / size.clamp_min(1.0e-6), state.hit_from)
    under_fire = (state.hp < started.hp).to(state.hp.dtype)
    state = watch(state, moved, now.inside, tables)
    state = state.replace(hit_from=direction, under_fire=under_fire, score=score, steps=state.steps + 1)
    terminated, truncated, winner = ends(state, options)
    terms = judge(tally, before, now, winner, started.alive) * options.weights
    damage = match.damage + tally.credited.sum(2)
    new = EchelonMatch(state, match.terms + terms, match.events + tally.events, damage, winner)
    shown = _shown(state, tables, now, options)
    return new, EchelonOutcome(shown, terms.sum(0)[: options.teams], terminated, truncated)


def ends(state: State, options: EchelonOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the ends of matches, ``[W]``: terminated, truncated, and the winner (1 blue, -1 red, 0 draw).

    The score decides, or an elimination, which the survivors win. At time-out the greater score wins, then the
    remaining hp.
    """
    blue, red = state.alive.any(1)
    lead = state.score[0] - state.score[1]
    by_zone = state.score.amax(0) >= options.to_win
    wiped = ~(blue & red)
    late = state.steps >= options.most_steps
    left = state.hp.clamp_min(0.0).sum(1)
    margin = torch.sign(left[0] - left[1])
    by_score = torch.sign(lead)
    survivors = blue.to(lead.dtype) - red.to(lead.dtype)
    eliminated = torch.where(survivors == 0, by_score, survivors)
    timed = torch.where(by_score == 0, margin, by_score) * late
    winner = torch.where(by_zone, by_score, torch.where(wiped, eliminated, timed))
    terminated = by_zone | wiped
    return terminated, late > terminated, winner


def _shown(state: State, tables: Tables, now: Hold, options: EchelonOptions) -> Shown:
    visible = visible_enemies(state, options.partial)
    limits = (float(options.most_steps), options.to_win)
    observation = observe(state, tables, now, visible, options.teams, limits)
    mask = possible(options.actions, state, tables, visible, options.teams)
    shown = {"observation": observation} if mask is None else {"observation": observation, "mask": mask}
    if options.shows_all:
        known = state.replace(memory=state.memory[:0])
        shown[STATE] = observe(known, tables, now, visible_enemies(known, False), options.teams, limits)
    return shown


STATISTICS = (
    *("return", "length", "time", "success", "lost", "draw", "hp_margin"),
    *(f"score_{team}" for team in TEAMS),
    *(f"{name}_{team}" for name in (*EVENTS, "damage") for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""Statistics of an episode, ``[W, 1]`` each."""


def statistics(match: EchelonMatch, tables: Tables) -> list[Tensor]:
    """Returns rows ``[W]`` in the order of ``STATISTICS``; return and terms are means over blue's mechs."""
    state = match.state
    size = tables.present[0].sum()
    terms = match.terms[:, 0].sum(1) / size
    left = state.hp.clamp_min(0.0).sum(1)
    results = (match.winner == tables.results).to(left.dtype)
    rows = [terms.sum(0), state.steps, state.steps * DECISION, *results, left[0] - left[1]]
    counted = torch.cat((match.events, match.damage[None])).sum(2)
    return [*rows, *state.score, *counted.flatten(0, 1), *terms]


PLAIN = EchelonKernels(bot_orders, command, step, drift, look, conclude)
"""The eager functions."""
