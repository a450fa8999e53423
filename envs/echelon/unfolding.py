"""What happened within recorded decisions: the same sub-steps again, from the states before and what was ordered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .luck import draws
from .match import Match, MatchOptions, conclude
from .players import bot_luck, bot_orders
from .rewards import TERMS
from .rules import SUB_STEPS, TARGET
from .sensors import look
from .simulation import EVENTS, PLAIN, Tally, advance, lucky_numbers
from .state import State
from .tables import Tables

Array = NDArray[Any]


class Steps(NamedTuple):
    """N sub-steps of one match in their order; ``was_`` is before the sub-step, the rest after it or of it."""

    tick: Array  # [N] sub-steps since the start, 1 for the first
    was_position: Array  # [N, 3, 2, n]
    was_hp: Array  # [N, 2, n]
    was_shots: Array  # [N, 8, 2, S]
    hp: Array  # [N, 2, n]
    shots: Array  # [N, 8, 2, S]
    clocks: Array  # [N, 2, CLOCKS, n]
    painter: Array  # [N, 2, n]
    shells: Array  # [N, 7, 2, n]
    was_shells: Array
    credited: Array  # [N, 2, n, n], see Tally
    counted: Array  # [N, 8, 2, n]
    fired: Array  # [N, 2, P, 13]


def unfold(states: State, orders: Tensor, tables: Tables, options: MatchOptions) -> Steps:
    """All sub-steps between the states of a match.

    Decisions do not depend on each other once the states before them are known: they run side by side, as worlds.

    Args:
        states: of one match at T times, as a batch of T worlds.
        orders: ``[teams, 10, n, T]``, those of column t led to state t.
    """
    steps = states.steps.round().long()
    length = steps.diff()  # decisions between two states, more than one where actions are repeated
    found: list[tuple[Array, Steps]] = []
    here, given = states.map(lambda value: value[..., :-1]), orders[..., 1:]
    for done in range(int(length.max()) if len(length) else 0):
        left = (length > done).nonzero()[:, 0]
        now = here.map(lambda value, left=left: value.index_select(-1, left))  # type: ignore[misc]
        told = given.index_select(-1, left)
        total: Tally | None = None
        started = now
        for sub, (before, now, tally) in enumerate(_sub_steps(started, told, tables, options), 1):
            ticks = started.steps.round().long() * SUB_STEPS + sub
            found.append((ticks.cpu().numpy(), _arrays(ticks, before, now, tally)))
            total = tally if total is None else total.plus(tally)
        if total is not None and int(length.max()) > done + 1:
            after = _concluded(started, now, total, tables, options)
            here = State(**{name: value.index_copy(-1, left, new)
                            for (name, value), (_, new) in zip(here.items(), after.items())})  # fmt: skip
    return _in_order(found, states, tables)


def _sub_steps(
    state: State, orders: Tensor, tables: Tables, options: MatchOptions
) -> Iterator[tuple[State, State, Tally]]:
    """As :func:`envs.echelon.match.play` takes them."""
    if options.teams == 1:
        chance = bot_luck(state, tables, 1)
        rival = bot_orders(state, tables, 1, state.rival, options.vent_blocks_fire, options.bots, chance)
        orders = torch.cat((orders, rival[None].to(orders.dtype)))
    count = lucky_numbers(tables.packs)
    luck = draws(state.key, state.steps, SUB_STEPS * count, 0).to(state.hp.dtype)
    state = state.replace(focus=orders[:, TARGET].contiguous())
    sub = PLAIN._replace(vent_blocks_fire=options.vent_blocks_fire)
    for part in luck.split(count):
        before = state
        state, tally = advance(state, orders, tables, part, sub)
        yield before, state, tally


def _concluded(started: State, state: State, total: Tally, tables: Tables, options: MatchOptions) -> State:
    """The state from which the next decision begins."""
    none = torch.zeros_like(state.hp)
    terms, events = (none.new_zeros(len(names), *none.shape) for names in (TERMS, EVENTS))
    match = Match(started, terms, events, none, torch.zeros_like(state.steps))
    seen = look(state, tables, False)
    return conclude(match, started, seen, total, tables, replace(options, partial=False, actions="box"))[0].state


def _arrays(ticks: Tensor, before: State, after: State, tally: Tally) -> Steps:
    rows = (
        *(ticks, before.position, before.hp, before.shots, after.hp, after.shots, after.clocks, after.painter),
        *(after.shells, before.shells, tally.credited, tally.counted, tally.fired),
    )
    return Steps(*(row.movedim(-1, 0).cpu().numpy() for row in rows))


def _in_order(found: list[tuple[Array, Steps]], states: State, tables: Tables) -> Steps:
    if not found:
        shapes = (states.position, states.hp, states.shots, states.hp, states.shots, states.clocks, states.painter)
        inner = [value.shape[:-1] for value in (*shapes, states.shells, states.shells)]
        mechs = tables.mechs
        inner += [torch.Size([2, mechs, mechs]), torch.Size([8, 2, mechs]), torch.Size([2, tables.packs, 13])]
        return Steps(np.zeros(0, np.int64), *(np.zeros((0, *shape), np.float32) for shape in inner))
    order = np.argsort(np.concatenate([ticks for ticks, _ in found]), kind="stable")
    return Steps(*(np.concatenate(rows)[order] for rows in zip(*(steps for _, steps in found))))
