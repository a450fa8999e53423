"""Schedules of games, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple

from rlstack.config import ConfigError
from rlstack.evaluation.statistics import wilson_interval

from .ratings import Scored

Schedule = list[tuple[str, str]]
"""The two players of each game; the first drives the first side."""


class GameResult(NamedTuple):
    """A finished game.

    Attributes:
        first, second: names of the players; the first drove the first side.
        points_first, points_second: points of each player, such as goals.
        steps: length of the game in steps.
        finished: whether it ended by the world's rules rather than by a time limit.
    """

    first: str
    second: str
    points_first: float
    points_second: float
    steps: int
    finished: bool = True

    @property
    def score(self) -> float:
        """Returns the first player's score: 1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 + 0.5 * ((self.points_first > self.points_second) - (self.points_first < self.points_second))

    @property
    def scored(self) -> Scored:
        """Returns the game in the form that ratings take."""
        return Scored(self.first, self.second, self.score)

    def seen_by(self, name: str) -> GameResult:
        """Returns the same game with this player as the first."""
        if name == self.first:
            return self
        return GameResult(self.second, self.first, self.points_second, self.points_first, *self[4:])


@dataclass(frozen=True)
class WinLossRecord:
    """Wins, draws and losses of a player, and the points of both sides."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    points_for: float = 0.0
    points_against: float = 0.0

    @classmethod
    def of(cls, name: str, games: Iterable[GameResult], opponent: str | None = None) -> WinLossRecord:
        """Returns the record of a player's games, or only of those against one opponent."""
        played = (game for game in games if name in game[:2] and opponent in (None, game.first, game.second))
        seen = [game.seen_by(name) for game in played]
        wins, draws, losses = (sum(game.score == score for game in seen) for score in (1.0, 0.5, 0.0))
        points = (sum(game.points_first for game in seen), sum(game.points_second for game in seen))
        return cls(wins, draws, losses, *points)

    @property
    def games(self) -> int:
        """Returns the number of games."""
        return self.wins + self.draws + self.losses

    def as_row(self) -> dict[str, Any]:
        """Returns counts, rates, and 95 % Wilson score intervals of the rates, which are None without games."""
        return {
            "games": self.games,
            "wins": self.wins,
            "draws": self.draws,
            "losses": self.losses,
            **_rate("win_rate", self.wins, self.games),
            **_rate("decided_win_rate", self.wins, self.wins + self.losses),
            "score": (self.wins + 0.5 * self.draws) / self.games if self.games else None,
            "goals_for": self.points_for,
            "goals_against": self.points_against,
            "goal_diff": self.points_for - self.points_against,
        }

    def __str__(self) -> str:
        return f"{self.wins}-{self.draws}-{self.losses}"


def _rate(name: str, wins: int, games: int) -> dict[str, float | None]:
    low, high = wilson_interval(wins, games) if games else (None, None)
    return {name: wins / games if games else None, f"{name}_low": low, f"{name}_high": high}


# -- schedules -----------------------------------------------------------------------------------------------------


def pairs(names: Sequence[str], mode: Literal["round_robin", "challenger"] = "round_robin") -> Schedule:
    """Returns the pairs of players: every pair, or the first player with each of the others.

    Raises:
        ConfigError: there are fewer than two players, or two have the same name.
    """
    if len(names) < 2:
        raise ConfigError(f"players: {', '.join(names) or 'none'}, at least two are needed")
    if len(set(names)) < len(names):
        raise ConfigError(f"players: {', '.join(names)} are not all different")
    return list(combinations(names, 2)) if mode == "round_robin" else [(names[0], other) for other in names[1:]]


def pairing(first: str, second: str, games: int, ahead: int = 0) -> Schedule:
    """Returns a schedule of games between two players, with sides swapped in every other game.

    Args:
        ahead: how many games more the first player has already begun on the first side than the second; these are made
            up for at the start.
    """
    schedule = []
    for _ in range(games):
        schedule.append((second, first) if ahead > 0 else (first, second))
        ahead += -1 if ahead > 0 else 1
    return schedule


def in_turns(series: Sequence[Schedule]) -> Schedule:
    """Interleaves series: one game of each, then the next of each that has any left."""
    longest = max(map(len, series), default=0)
    return [games[turn] for turn in range(longest) for games in series if turn < len(games)]
