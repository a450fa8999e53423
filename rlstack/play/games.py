"""Games: who is to meet whom, what came of it, and what everyone's rating is after every game."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from rlstack.evaluation.statistics import wilson_interval

from .ratings import Ratings, Scored

Schedule = list[tuple[str, str]]
"""The players of each game, who drives the first side first."""


class GameResult(NamedTuple):
    """A game that was played to its end.

    Attributes:
        first, second: names of the players; the first drove the first side.
        points_first, points_second: such as goals.
        steps: its length.
        finished: it ended by the world's rules, not by a time limit.
    """

    first: str
    second: str
    points_first: float
    points_second: float
    steps: int
    finished: bool = True

    @property
    def score(self) -> float:
        """The score of the first: 1 won, 0.5 drawn, 0 lost."""
        return 0.5 + 0.5 * ((self.points_first > self.points_second) - (self.points_first < self.points_second))

    @property
    def scored(self) -> Scored:
        """The game as ratings see it."""
        return Scored(self.first, self.second, self.score)

    def seen_by(self, name: str) -> GameResult:
        """The same game with a player who took part in it as the first."""
        if name == self.first:
            return self
        return self._replace(
            first=self.second, second=self.first, points_first=self.points_second, points_second=self.points_first
        )


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
        """The record of a player's games, or of those against one opponent."""
        seen = [
            game.seen_by(name) for game in games if name in game[:2] and opponent in (None, game.first, game.second)
        ]
        wins, draws, losses = (sum(game.score == score for game in seen) for score in (1.0, 0.5, 0.0))
        points = (sum(game.points_first for game in seen), sum(game.points_second for game in seen))
        return cls(wins, draws, losses, *points)

    @property
    def games(self) -> int:
        """The number of games."""
        return self.wins + self.draws + self.losses

    def as_row(self) -> dict[str, Any]:
        """Numbers, rates, and the 95 % Wilson score intervals of the rates; None where there are no games."""
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
    if not games:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = wilson_interval(wins, games)
    return {name: wins / games, f"{name}_low": low, f"{name}_high": high}


# -- schedules -----------------------------------------------------------------------------------------------------


def pairing(first: str, second: str, games: int, played: int = 0) -> Schedule:
    """A schedule of further games between two players, sides swapped in every other one."""
    return [(first, second) if game % 2 == 0 else (second, first) for game in range(played, played + games)]


def round_robin(names: Sequence[str], games: int) -> Schedule:
    """Everyone against everyone, so many games each pair, sides swapped in every other one; pairs take turns.

    Raises:
        ValueError: fewer than two players, or two of one name.
    """
    _check_distinct(names)
    return in_turns([pairing(first, second, games) for first, second in combinations(names, 2)])


def challenger(name: str, opponents: Sequence[str], games: int) -> Schedule:
    """One against each of the others, else as :func:`round_robin`."""
    _check_distinct([name, *opponents])
    return in_turns([pairing(name, opponent, games) for opponent in opponents])


def in_turns(series: Sequence[Schedule]) -> Schedule:
    """A game of each series, then the next one of each that has any left."""
    longest = max(map(len, series), default=0)
    return [games[turn] for turn in range(longest) for games in series if turn < len(games)]


def _check_distinct(names: Sequence[str]) -> None:
    if len(names) < 2:
        raise ValueError(f"players: {', '.join(names) or 'none'}, at least 2 are needed")
    if len(set(names)) < len(names):
        raise ValueError(f"players: {', '.join(names)} are not all different")


# -- ratings over games --------------------------------------------------------------------------------------------


def rated(games: Sequence[GameResult], ratings: Ratings) -> list[dict[str, Any]]:
    """Records games one by one, with Glicko-2 all of them as one period, and tells of each.

    Returns a row a game: ``game`` (from 1), ``player``, ``opponent``, ``player_score`` and ``opponent_score`` (points),
    ``goal_diff``, ``result`` (1, 0.5, 0), ``expected_score``, ``elo_before``, ``elo_after``, ``elo_change``, ``steps``:
    numbers of the player who drove the first side.
    """
    rows: list[dict[str, Any]] = []
    for period in [[game] for game in games] if ratings.kind == "elo" else [games]:
        before = [(ratings.rating(game.first), ratings.expected(game.first, game.second)) for game in period]
        ratings.record([game.scored for game in period])
        for game, (old, expected) in zip(period, before):
            new = ratings.rating(game.first)
            rows.append(
                {
                    "game": len(rows) + 1,
                    "player": game.first,
                    "opponent": game.second,
                    "player_score": game.points_first,
                    "opponent_score": game.points_second,
                    "goal_diff": game.points_first - game.points_second,
                    "result": game.score,
                    "expected_score": expected,
                    "elo_before": old,
                    "elo_after": new,
                    "elo_change": new - old,
                    "steps": game.steps,
                }
            )
    return rows


def rating_curves(games: Sequence[GameResult], ratings: Ratings) -> dict[str, list[float]]:
    """Ratings of both players after each of their games, by name; ``ratings``, of before the games, take them in."""
    curves: dict[str, list[float]] = {}
    for game in games:
        ratings.record([game.scored])
        for name in game[:2]:
            curves.setdefault(name, []).append(ratings.rating(name))
    return curves


def standings(games: Sequence[GameResult], ratings: Ratings) -> list[dict[str, Any]]:
    """A row a player, best first: rank, name, rating, deviation (where there is one), and its record."""
    rows = []
    for place, name in enumerate(ratings.ranking(), start=1):
        row: dict[str, Any] = {"rank": place, "player": name, "rating": ratings.rating(name)}
        if (deviation := ratings.deviation(name)) is not None:
            row |= {"deviation": deviation, "conservative": ratings.conservative(name)}
        rows.append(row | WinLossRecord.of(name, games).as_row())
    return rows


def cross_table(games: Sequence[GameResult], names: Sequence[str]) -> list[dict[str, str]]:
    """A row a player: ``player``, then wins-draws-losses against everyone by name (``-`` against itself), ``total``."""
    rows = []
    for name in names:
        cells = {other: "-" if other == name else str(WinLossRecord.of(name, games, other)) for other in names}
        rows.append({"player": name, **cells, "total": str(WinLossRecord.of(name, games))})
    return rows
