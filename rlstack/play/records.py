"""What came of games: single ones, the record of a player, and of everyone against everyone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlstack.evaluation.statistics import wilson_interval

from .ratings import Scored


class Game(NamedTuple):
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
        """Of the first: 1 won, 0.5 drawn, 0 lost."""
        return 0.5 + 0.5 * ((self.points_first > self.points_second) - (self.points_first < self.points_second))

    @property
    def scored(self) -> Scored:
        """As ratings see it."""
        return Scored(self.first, self.second, self.score)

    def seen_by(self, name: str) -> tuple[float, float, float]:
        """Score, own and other's points of a player who took part."""
        if name == self.first:
            return self.score, self.points_first, self.points_second
        return 1.0 - self.score, self.points_second, self.points_first


@dataclass(frozen=True)
class Record:
    """Wins, draws and losses of a player, and the points of both sides."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    points_for: float = 0.0
    points_against: float = 0.0

    @classmethod
    def of(cls, name: str, games: Iterable[Game], opponent: str | None = None) -> Record:
        """Of a player's games, or of those against one opponent."""
        seen = [
            game.seen_by(name)
            for game in games
            if name in (game.first, game.second) and opponent in (None, game.first, game.second)
        ]
        scores = [score for score, _, _ in seen]
        return cls(
            scores.count(1.0),
            scores.count(0.5),
            scores.count(0.0),
            sum(ours for _, ours, _ in seen),
            sum(theirs for _, _, theirs in seen),
        )

    @property
    def games(self) -> int:
        """How many there were."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float | None:
        """Mean score, draws half; None without games."""
        return (self.wins + 0.5 * self.draws) / self.games if self.games else None

    @property
    def win_rate(self) -> float | None:
        """Wins of all games; None without games."""
        return self.wins / self.games if self.games else None

    @property
    def decided_rate(self) -> float | None:
        """Wins of the games that were not drawn; None without any."""
        decided = self.wins + self.losses
        return self.wins / decided if decided else None

    @property
    def difference(self) -> float:
        """Points for less points against."""
        return self.points_for - self.points_against

    def as_row(self) -> dict[str, Any]:
        """Numbers, rates, and the 95 % Wilson score intervals of the rates; None where there are no games."""
        return {
            "games": self.games,
            "wins": self.wins,
            "draws": self.draws,
            "losses": self.losses,
            "win_rate": self.win_rate,
            **_interval("win_rate", self.wins, self.games),
            "decided_win_rate": self.decided_rate,
            **_interval("decided_win_rate", self.wins, self.wins + self.losses),
            "score": self.score,
            "goals_for": self.points_for,
            "goals_against": self.points_against,
            "goal_diff": self.difference,
        }

    def __str__(self) -> str:
        return f"{self.wins}-{self.draws}-{self.losses}"


def _interval(name: str, wins: int, games: int) -> dict[str, float | None]:
    low, high = wilson_interval(wins, games) if games else (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def cross_table(games: Sequence[Game], names: Sequence[str]) -> list[dict[str, str]]:
    """A row a player: ``player``, then wins-draws-losses against everyone by name (``-`` against itself), ``total``."""
    rows = []
    for name in names:
        cells = {other: "-" if other == name else str(Record.of(name, games, other)) for other in names}
        rows.append({"player": name, **cells, "total": str(Record.of(name, games))})
    return rows
