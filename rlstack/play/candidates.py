"""Candidates and commanders of a league: their opponents, evaluation, promotion and names."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch

from rlstack.config import ConfigError, Interval
from rlstack.config.options import Count
from rlstack.envs.foundation.work import working

from .games import GameResult, Schedule, WinLossRecord
from .league import League, LeagueMember
from .matches import GameRunner
from .players import RANDOM, name_of
from .pool import Standings, make_sampler

SEED_STEP = 9973
"""Difference between the seeds of two consecutive matches of a candidate."""
_ADJECTIVES = (
    *("Amber", "Ashen", "Bold", "Brazen", "Bright", "Calm", "Cobalt", "Crimson", "Daring", "Deft", "Fierce", "Frosty"),
    *("Gallant", "Gilded", "Grim", "Hidden", "Iron", "Ivory", "Keen", "Lone", "Lucid", "Noble", "Patient", "Quick"),
    *("Quiet", "Rapid", "Restless", "Scarlet", "Silent", "Steady", "Stern", "Sudden", "Tireless", "Velvet", "Wary"),
    "Wily",
)
_NOUNS = (
    *("Anchor", "Anvil", "Badger", "Bastion", "Beacon", "Bison", "Comet", "Condor", "Cougar", "Crane", "Falcon"),
    *("Glacier", "Hammer", "Harrier", "Heron", "Kestrel", "Lantern", "Lynx", "Mantis", "Marten", "Meteor", "Osprey"),
    *("Otter", "Panther", "Pike", "Raven", "Sabre", "Sentinel", "Spire", "Stag", "Sturgeon", "Tempest", "Tiger"),
    *("Viper", "Wolf", "Wren"),
)
_DIGITS = 4


@dataclass
class PoolConfig:
    """The members of a league that candidates, and learners in training, play against.

    Attributes:
        commanders: number of best commanders by conservative rating; a candidate that ranks within them is promoted.
        candidates: number of newest candidates.
        sampler: how opponents are drawn: a name of :data:`~rlstack.play.pool.SAMPLERS`, or a mapping with its options.
        players: opponents that are always included: the world's players, or any source.
    """

    commanders: Count = 20
    candidates: Annotated[int, Interval(low=0)] = 5
    sampler: str | dict[str, Any] = "uniform"
    players: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_sampler(self.sampler)


def pool(league: League, config: PoolConfig, but: str | None = None) -> list[str]:
    """Returns the names of the pool's members except ``but``: the best commanders, then the newest candidates."""
    best = sorted(league.of_kind("commander"), key=lambda name: -league.ratings.conservative(name))
    newest = league.of_kind("candidate")[::-1]
    chosen = [name for name in best if name != but][: config.commanders]
    return chosen + [name for name in newest if name != but][: config.candidates]


def join_fixed(league: League, config: PoolConfig) -> list[str]:
    """Adds the players that are always included to the league, if they are not members; returns their names."""
    names = []
    for source in config.players:
        name = source if isinstance(source, str) and source in league.members else name_of(source)
        if name not in league.members:
            league.join(name, source)
        names.append(name)
    return list(dict.fromkeys(names))


def weights(league: League, config: PoolConfig, name: str, rivals: Sequence[str]) -> torch.Tensor:
    """Returns the probabilities of a player to meet each rival in a match, ``[n]``, which sum to 1.

    The share of games won counts one game more than were played, with the score that the ratings predict.
    """
    ratings = league.ratings
    rows = []
    for rival in rivals:
        record = WinLossRecord.of(name, league.games, rival)
        won = record.wins + 0.5 * record.draws + ratings.expected(name, rival)
        frames = league.members[rival].meta.get("frames") or 0
        rows.append((ratings.rating(rival), frames, won / (record.games + 1)))
    columns = torch.tensor(rows, dtype=torch.float64)
    chances = make_sampler(config.sampler)(Standings(columns[:, 0], ratings.rating(name), columns[:, 1], columns[:, 2]))
    return chances / chances.sum()


def matches(
    league: League, config: PoolConfig, name: str, rivals: Sequence[str], numbers: Sequence[int], seed: int
) -> Schedule:
    """Draws a player's opponents in the matches ``numbers``; in those with even numbers it drives the first side."""
    chances = weights(league, config, name, rivals).numpy()
    schedule = []
    for number in numbers:
        rival = rivals[int(np.random.default_rng(seed + SEED_STEP * number).choice(len(rivals), p=chances))]
        schedule.append((name, rival) if number % 2 == 0 else (rival, name))
    return schedule


# -- evaluation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CandidateEvaluation:
    """The matches of a league's member against the pool, and their result.

    Attributes:
        member: the member after its matches.
        record: wins, draws and losses in the matches.
        rivals: number of possible opponents.
        before, after: the member's rating.
        promoted: whether it has become a commander.
    """

    member: LeagueMember
    record: WinLossRecord
    rivals: int
    before: float
    after: float
    promoted: bool

    def __str__(self) -> str:
        played = f"{self.record} (won-drawn-lost) against a pool of {self.rivals}"
        line = f"{self.member.name}: {played}, rating {self.before:.0f} -> {self.after:.0f}"
        return f"{line}; now commander {self.member.commander_name}" if self.promoted else line


def evaluate(
    league: League,
    runner: GameRunner,
    name: str,
    config: PoolConfig,
    fixed: Sequence[str] = (),
    games: int = 10,
    seed: int = 0,
) -> CandidateEvaluation | None:
    """Plays a member's matches against the pool, rates them as one period, and promotes it if it is good enough.

    If the pool is empty it meets the player ``random``, so that nobody is rated without games.

    Args:
        fixed: further members to play against.
        games: number of matches; sides are swapped in every other one.
        seed: match i, counted over all evaluations of the member, has the seed ``seed + 9973 i``, which draws the
            opponent and the worlds. Matches that are played at once use the seed of the first for their worlds.

    Returns None if another process has evaluated the member in the meantime; then these games do not count.

    Raises:
        ConfigError: a player's file has disappeared, or the league's file has become unreadable.
    """
    start = league.members[name].matches
    rivals = list(dict.fromkeys([*pool(league, config, name), *(other for other in fixed if other != name)]))
    if not rivals:
        with league.changing():
            league.join(RANDOM, RANDOM)
        rivals = [RANDOM]
    schedule = matches(league, config, name, rivals, range(start, start + games), seed)
    played = _play(league, runner, schedule, seed + SEED_STEP * start)
    with league.changing():
        member = league.members[name]
        if member.matches != start:
            return None
        before = league.ratings.rating(name)
        league.rate(played)
        league.admit(replace(member, matches=start + len(played)))
        after = promote(league, name, config)
        record, rating = WinLossRecord.of(name, played), league.ratings.rating(name)
    return CandidateEvaluation(after, record, len(rivals), before, rating, after.kind != member.kind)


def _play(league: League, runner: GameRunner, schedule: Schedule, seed: int) -> list[GameResult]:
    """Plays matches, at most as many at once as the runner has worlds."""
    for player in dict.fromkeys(player for pair in schedule for player in pair):
        if player not in runner.players:
            runner.add(league.source(player), player)
    played: list[GameResult] = []
    with working("playing", "games", len(schedule)):
        for first in range(0, len(schedule), runner.num_worlds):
            played += runner.play(schedule[first : first + runner.num_worlds], seed + SEED_STEP * first)
    return played


def to_evaluate(league: League, players: Sequence[Any] | Mapping[str, Any] | None) -> list[str]:
    """Returns the names of members to evaluate; None means the candidates that have not been evaluated.

    Raises:
        ConfigError: a name is not that of a candidate or commander of the league.
    """
    if players is None:
        return [name for name in league.of_kind("candidate") if not league.members[name].matches]
    for name in players:
        member = league.members.get(name) if isinstance(name, str) else None
        if member is None:
            known = ", ".join(league.members) or "nobody"
            raise ConfigError(f"players: {name!r} is not in the league in {league.folder}, which has {known}")
        if member.kind == "player":
            raise ConfigError(f"players: {name!r} is not a candidate; 'league add' makes a file a candidate")
    return list(dict.fromkeys(players))


def evaluate_all(
    league: League, runner: GameRunner, names: Sequence[str], config: PoolConfig, games: int, seed: int
) -> None:
    """Evaluates members one after the other and prints the results; first adds the players that are always included."""
    for source in config.players:
        if not (isinstance(source, str) and source in league.members) and name_of(source) not in runner.players:
            runner.add(source)
    with league.changing():
        fixed = join_fixed(league, config)
    for name in names:
        evaluation = evaluate(league, runner, name, config, fixed, games, seed)
        print(evaluation or f"{name}: another process has evaluated it meanwhile, and that result counts")


# -- promotion -----------------------------------------------------------------------------------------------------


def promote(league: League, name: str, config: PoolConfig) -> LeagueMember:
    """Promotes a candidate to commander if it ranks within the best; returns the updated member.

    It ranks behind commanders of the same conservative rating; without commanders any candidate is promoted.
    """
    member, worth = league.members[name], league.ratings.conservative
    commanders = league.of_kind("commander")
    ahead = sum(worth(other) >= worth(name) for other in commanders)
    if member.kind != "candidate" or ahead >= config.commanders:
        return member
    taken = {league.members[other].commander_name for other in commanders}
    called = commander_name(member.id or name, taken)
    league.admit(replace(member, kind="commander", commander_name=called))
    return league.members[name]


def commander_name(of: str, taken: Collection[str | None] = ()) -> str:
    """Returns ``adjective noun #hex`` from a hash of a text, with more hex digits if the name is taken."""
    digest = hashlib.sha256(of.encode()).hexdigest()
    adjective = _ADJECTIVES[int(digest[:8], 16) % len(_ADJECTIVES)]
    noun = _NOUNS[int(digest[8:16], 16) % len(_NOUNS)]
    for digits in range(_DIGITS, 49):
        name = f"{adjective} {noun} #{digest[16 : 16 + digits]}"
        if name not in taken:
            return name
    raise ConfigError(f"players: {of!r} is a commander already")
