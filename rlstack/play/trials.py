"""Candidates of a league play their matches against its pool, are rated by them, and become commanders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.working import working
from rlstack.config import ConfigError

from .commanders import PoolConfig, join_fixed, of_kind, pool, promote, weights
from .league import League
from .matches import Arena
from .members import Member
from .players import name_of
from .records import Game, Record
from .tournaments import Schedule

SEED_STEP = 9973
"""Between the seeds of two matches of a candidate."""


@dataclass(frozen=True)
class Verdict:
    """What an evaluation came to.

    Attributes:
        member: as it is afterwards.
        record: of its matches.
        rivals: how many there were to meet.
        before, after: its rating.
        promoted: it has become a commander.
    """

    member: Member
    record: Record
    rivals: int
    before: float
    after: float
    promoted: bool

    def __str__(self) -> str:
        played = f"{self.record} (won-drawn-lost) against a pool of {self.rivals}"
        rated = f"rating {self.before:.0f} -> {self.after:.0f}"
        told = f"{self.member.name}: {f'{played}, {rated}' if self.rivals else 'nobody to meet yet'}"
        return f"{told}; now commander {self.member.commander_name}" if self.promoted else told


def evaluate(
    league: League,
    arena: Arena,
    name: str,
    config: PoolConfig,
    fixed: Sequence[str] = (),
    games: int = 10,
    seed: int = 0,
) -> Verdict | None:
    """Plays a member's matches against the pool, rates them as one period, and promotes it if it is good enough.

    Args:
        fixed: members that are met besides.
        games: how many matches, sides swapped in every other one.
        seed: match i, counted over all evaluations of the member, has the seed ``seed + 9973 i``. It draws the opponent
            and the worlds; of matches that are played at once (as many as the arena has worlds), the first one's does.

    Returns None where another process has evaluated it meanwhile; then these games do not count.

    Raises:
        ConfigError: a player whose file is gone, or a file of the league that became unreadable.
    """
    start = league.members[name].matches
    rivals = list(dict.fromkeys([*pool(league, config, name), *(other for other in fixed if other != name)]))
    schedule = matches(league, config, name, rivals, range(start, start + games), seed) if rivals else []
    played = _play(league, arena, schedule, seed + SEED_STEP * start)
    with league.changing():
        member = league.members[name]
        if member.matches != start:
            return None
        before = league.ratings.rating(name)
        if played:
            league.rate(played)
        league.admit(replace(member, matches=start + len(played)))
        after = promote(league, name, config)
        record, rating = Record.of(name, played), league.ratings.rating(name)
    return Verdict(after, record, len(rivals), before, rating, after.kind != member.kind)


def _play(league: League, arena: Arena, schedule: Schedule, seed: int) -> list[Game]:
    """Plays matches, as many at once as the arena has worlds."""
    for player in dict.fromkeys(player for pair in schedule for player in pair):
        if player not in arena.players:
            arena.add(league.source(player), player)
    played: list[Game] = []
    with working("playing", "games", len(schedule)):
        for first in range(0, len(schedule), arena.num_worlds):
            played += arena.play(schedule[first : first + arena.num_worlds], seed + SEED_STEP * first)
    return played


def to_evaluate(league: League, players: Sequence[Any] | Mapping[str, Any] | None) -> list[str]:
    """Names of members to evaluate; None: the candidates that have not been.

    Raises:
        ConfigError: somebody who is no candidate or commander of the league.
    """
    if players is None:
        return [name for name in of_kind(league, "candidate") if not league.members[name].matches]
    for name in players:
        member = league.members.get(name) if isinstance(name, str) else None
        if member is None:
            known = ", ".join(league.members) or "nobody"
            raise ConfigError(f"players: {name!r} is not in the league in {league.folder}, which has {known}")
        if member.kind == "player":
            raise ConfigError(f"players: {name!r} is no candidate; 'add' makes one of a file")
    return list(dict.fromkeys(players))


def evaluate_all(
    league: League,
    arena: Arena,
    names: Sequence[str],
    config: PoolConfig,
    games: int,
    seed: int,
) -> None:
    """Evaluates one after the other, telling what came of it; whoever is always met becomes a member before.

    Raises:
        ConfigError: see :func:`evaluate`.
    """
    for source in config.players:
        if not (isinstance(source, str) and source in league.members) and name_of(source) not in arena.players:
            arena.add(source)
    with league.changing():
        fixed = join_fixed(league, config)
    for name in names:
        verdict = evaluate(league, arena, name, config, fixed, games, seed)
        print(verdict or f"{name}: was evaluated by another process meanwhile, which counts")


def matches(
    league: League, config: PoolConfig, name: str, rivals: Sequence[str], numbers: Sequence[int], seed: int
) -> Schedule:
    """Who meets a player in its matches of these numbers; in the even ones it drives the first side."""
    chances = weights(league, config, name, rivals).numpy()
    schedule = []
    for number in numbers:
        rival = rivals[int(np.random.default_rng(seed + SEED_STEP * number).choice(len(rivals), p=chances))]
        schedule.append((name, rival) if number % 2 == 0 else (rival, name))
    return schedule
