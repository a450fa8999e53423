"""A match: steps of several ticks, rewards, ends of episodes and statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..states import Opening, Record
from . import rules
from .field import Field
from .observation import observe
from .prediction import forecast
from .rewards import TERMS, Before, begin, judge
from .simulation import PLAIN, Events, RocketKernels, advance
from .state import RocketState
from .vectors import constant

TEAMS = ("blue", "orange")
COUNTED = ("touches", "demos", "boost_collected")
STATISTICS = (
    *("return", "length", "time", "success", "goals_for", "goals_against"),
    *(f"{name}_{team}" for name in COUNTED for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""Statistics of an episode, ``[W, 1]`` each."""


@dataclass(frozen=True)
class RocketMatchOptions:
    """The options of a match beyond the physics.

    Attributes:
        observation: kind of observations.
        weights: weights of the reward's terms in order.
        tick_skip: ticks of 1/120 s per step.
        most_ticks, idle_ticks: number of ticks, in all and without a touch, after which an episode is truncated.
        dense: whether to compute all contacts of all worlds, without branching on data.
    """

    observation: str
    weights: tuple[float, ...]
    tick_skip: int
    most_ticks: int
    idle_ticks: int
    field: Field
    dense: bool


@dataclass
class RocketMatch(Record):
    """State of a batch of matches, world-last, with sums over the episode."""

    records = {"world": RocketState}
    world: RocketState
    distance: Tensor  # [C, W] of Before
    threat: Tensor  # [W]
    opening: Tensor  # [W]
    last_touch: Tensor  # [W]
    quiet: Tensor  # [W] ticks since the last touch
    steps: Tensor  # [W]
    returns: Tensor  # [C, W]
    terms: Tensor  # [terms, C, W] weighted
    touches: Tensor  # [C, W] steps with a touch
    demos: Tensor  # [C, W]
    collected: Tensor  # [C, W] boost


class RocketOutcome(NamedTuple):
    """The outcome of a step."""

    observation: Tensor  # [W, C, size]
    reward: Tensor  # [C, W]
    terminated: Tensor  # [W] bool
    truncated: Tensor  # [W] bool


def open_match(world: RocketState, options: RocketMatchOptions) -> Opening[RocketMatch]:
    """Begins episodes."""
    ahead = forecast(world.ball)
    none = torch.zeros_like(world.cars.boost)
    terms = torch.zeros(len(TERMS), *none.shape, dtype=none.dtype, device=none.device)
    clock = world.clock
    match = RocketMatch(
        world, *begin(world, ahead), torch.zeros_like(clock), torch.zeros_like(clock), none, terms, none, none, none
    )
    # Entries must not share memory, since restarts write in place.
    layout = torch.contiguous_format  # another layout would be compiled again
    match = match.map(lambda value: value.clone(memory_format=layout))
    return Opening(match, observe(options.observation, world, ahead))


def play(
    match: RocketMatch, controls: Tensor, options: RocketMatchOptions, kernels: RocketKernels
) -> tuple[RocketMatch, RocketOutcome]:
    """Makes one step of all matches.

    Args:
        controls: ``[8, C, W]``, held for all ticks of the step.
    """
    world: RocketState = match.world
    happened: list[Tensor] = []
    for _ in range(options.tick_skip):
        if options.dense:
            world, events = kernels.dense(world, controls, options.field)
        else:
            world, events = advance(world, controls, options.field, kernels)
        happened += events
    total = Events(*torch.stack(happened).unflatten(0, (options.tick_skip, -1)).sum(0).unbind(0))
    return conclude(match, world, total, options, kernels)


def conclude(
    match: RocketMatch, world: RocketState, events: Events, options: RocketMatchOptions, kernels: RocketKernels = PLAIN
) -> tuple[RocketMatch, RocketOutcome]:
    """Computes rewards, ends, sums and observations after the ticks of a step."""
    ahead = forecast(world.ball, kernels.flights)
    terms, before = judge(world, events, Before(match.distance, match.threat, match.opening, match.last_touch), ahead)
    present = (~world.cars.gone.isinf()).to(terms.dtype)
    terms = terms * constant(options.weights, present) * present
    reward = terms.sum(0)
    touched = (events.touches > 0).to(terms.dtype)
    quiet = torch.where(touched.amax(0) > 0, 0.0, match.quiet + options.tick_skip)
    terminated = world.goal != 0
    late = (world.clock >= options.most_ticks) | (quiet >= options.idle_ticks)
    new = RocketMatch(
        world,
        *before,
        quiet,
        match.steps + 1,
        match.returns + reward,
        match.terms + terms,
        match.touches + touched,
        match.demos + events.demolishes,
        match.collected + events.boost_gained,
    )
    seen = observe(options.observation, world, ahead)
    return new, RocketOutcome(seen, reward, terminated, late & ~terminated)


def statistics(match: RocketMatch) -> list[Tensor]:
    """Returns rows ``[W]`` in the order of ``STATISTICS``; return and terms are means over blue's active cars."""
    half = match.returns.shape[0] // 2
    blue = (~match.world.cars.gone[:half].isinf()).sum(0).to(match.returns.dtype)
    goal = match.world.goal
    scored, conceded = ((sign * goal > 0).to(goal.dtype) for sign in (1, -1))
    rows = [match.returns[:half].sum(0) / blue, match.steps, match.world.clock / rules.TICKS_PER_SECOND]
    rows += [scored, scored, conceded]
    counted = torch.stack((match.touches, match.demos, match.collected)).unflatten(1, (2, half)).sum(2)
    rows += counted.flatten(0, 1).unbind(0)
    return [*rows, *(match.terms[:, :half].sum(1) / blue).unbind(0)]
