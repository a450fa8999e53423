"""Candidates and commanders of a league: who is met, who is promoted, and what commanders are called."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch

from rlstack.config import ConfigError, Interval
from rlstack.config.agents import Count

from .league import League
from .members import Member
from .players import name_of
from .records import Record
from .samplers import Standings, make_sampler

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
    """Whom candidates meet, and learners in training.

    Attributes:
        commanders: so many of the best by conservative rating; a candidate that ranks within them is promoted.
        candidates: and so many of the newest candidates.
        sampler: who of them, a name of :data:`~rlstack.play.samplers.SAMPLERS`, or a mapping of it and its options.
        players: and these, always: the world's own, or any source.
    """

    commanders: Count = 20
    candidates: Annotated[int, Interval(low=0)] = 5
    sampler: str | dict[str, Any] = "uniform"
    players: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_sampler(self.sampler)


def of_kind(league: League, kind: str) -> list[str]:
    """Names of the members of a kind, in the order in which they joined."""
    return [name for name, member in league.members.items() if member.kind == kind]


def pool(league: League, config: PoolConfig, but: str | None = None) -> list[str]:
    """Names of the members that can be met: the best commanders, best first, and the newest candidates, newest first.

    Args:
        but: who is not among them.
    """
    worth = league.ratings.conservative
    commanders = sorted(of_kind(league, "commander"), key=lambda name: -worth(name))
    newest = of_kind(league, "candidate")[::-1]
    chosen = [name for name in commanders if name != but][: config.commanders]
    return chosen + [name for name in newest if name != but][: config.candidates]


def join_fixed(league: League, config: PoolConfig) -> list[str]:
    """Makes the players that are always met members, unless they are; returns their names."""
    names = []
    for source in config.players:
        name = source if isinstance(source, str) and source in league.members else name_of(source)
        if name not in league.members:
            league.join(name, source)
        names.append(name)
    return list(dict.fromkeys(names))


def weights(league: League, config: PoolConfig, name: str, rivals: Sequence[str]) -> torch.Tensor:
    """How often a player is to meet each of these, ``[n]``, adding up to 1.

    A share of games won is that of the games that were played and one more, which ended as the ratings let expect.
    """
    ratings = league.ratings
    rows = []
    for rival in rivals:
        record = Record.of(name, league.games, rival)
        won = record.wins + 0.5 * record.draws + ratings.expected(name, rival)
        frames = league.members[rival].meta.get("frames") or 0
        rows.append((ratings.rating(rival), frames, won / (record.games + 1)))
    columns = torch.tensor(rows, dtype=torch.float64)
    found = make_sampler(config.sampler)(Standings(columns[:, 0], ratings.rating(name), columns[:, 1], columns[:, 2]))
    return found / found.sum()


def promote(league: League, name: str, config: PoolConfig) -> Member:
    """Makes a candidate a commander if it ranks within the best; returns the member as it is then.

    It ranks behind commanders of the same conservative rating; without commanders any candidate becomes one.
    """
    member, worth = league.members[name], league.ratings.conservative
    commanders = of_kind(league, "commander")
    ahead = sum(worth(other) >= worth(name) for other in commanders)
    if member.kind != "candidate" or ahead >= config.commanders:
        return member
    taken = {league.members[other].commander_name for other in commanders}
    called = commander_name(member.id or name, taken)
    league.admit(replace(member, kind="commander", commander_name=called))
    return league.members[name]


def commander_name(of: str, taken: Collection[str | None] = ()) -> str:
    """``adjective noun #hex``, by a hash of a text; where it is taken, with more hex digits."""
    digest = hashlib.sha256(of.encode()).hexdigest()
    adjective = _ADJECTIVES[int(digest[:8], 16) % len(_ADJECTIVES)]
    noun = _NOUNS[int(digest[8:16], 16) % len(_NOUNS)]
    for digits in range(_DIGITS, 49):
        name = f"{adjective} {noun} #{digest[16 : 16 + digits]}"
        if name not in taken:
            return name
    raise ConfigError(f"players: {of!r} is a commander already")
