"""Elo's ratings (Elo, "The Rating of Chessplayers, Past and Present", 1978).

Game by game with a K-factor, which follows players that change; and of a set of games at once, which is better where
they do not: the ratings that make the results most likely (Bradley and Terry 1952, with draws as half a win each).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .ratings import Ratings, Scored, check_games, finite

SCALE = 400.0
START = 1500.0


def expected_score(rating: float, opponent: float) -> float:
    """What a player can expect against another: ``1 / (1 + 10^((opponent - rating) / 400))``."""
    return 1.0 / (1.0 + 10.0 ** ((opponent - rating) / SCALE))


class Elo(Ratings):
    """Ratings that every game moves by ``k`` times the difference of score and expectation.

    Args:
        k: the K-factor.
        start: a beginner's rating.
        anchors: ratings that stay as they are, by name.

    Raises:
        ValueError: a K-factor that is not positive, or a rating that is not finite.
    """

    kind = "elo"

    def __init__(self, k: float = 32.0, start: float = START, anchors: Mapping[str, float] | None = None) -> None:
        self.k, self.start = finite("k", k, 0.0), finite("start", start)
        self.anchors = {name: finite(f"anchors.{name}", value) for name, value in (anchors or {}).items()}
        self._ratings: dict[str, float] = {}
        self._games: dict[str, int] = {}

    def add(self, name: str) -> None:
        self._ratings.setdefault(name, self.anchors.get(name, self.start))
        self._games.setdefault(name, 0)

    def names(self) -> list[str]:
        return list(self._ratings)

    def rating(self, name: str) -> float:
        return self._ratings.get(name, self.anchors.get(name, self.start))

    def set(self, name: str, rating: float) -> None:
        """Gives a player that is no anchor a rating, such as that of whom it was made from."""
        self.add(name)
        if name not in self.anchors:
            self._ratings[name] = finite(name, rating)

    def games(self, name: str) -> int:
        return self._games.get(name, 0)

    def expected(self, first: str, second: str) -> float:
        return expected_score(self.rating(first), self.rating(second))

    def record(self, games: Sequence[Scored]) -> None:
        check_games(games)
        for game in games:
            self.add(game.first)
            self.add(game.second)
            change = self.k * (game.score - self.expected(game.first, game.second))
            for name, gain in ((game.first, change), (game.second, -change)):
                self._games[name] += 1
                if name not in self.anchors:
                    self._ratings[name] += gain

    def state_dict(self) -> dict[str, Any]:
        players = {name: {"rating": value, "games": self._games[name]} for name, value in self._ratings.items()}
        parameters = {"k": self.k, "start": self.start, "anchors": dict(self.anchors)}
        return {"system": self.kind, "parameters": parameters, "players": players}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Elo:
        ratings = cls(**state["parameters"])
        for name, entry in state["players"].items():
            ratings._ratings[name] = finite(f"players.{name}", entry["rating"])
            ratings._games[name] = int(entry["games"])
        return ratings


def fit_elo(
    games: Sequence[Scored], anchors: Mapping[str, float] | None = None, start: float = START, prior: float = 1.0
) -> dict[str, float]:
    """The Elo ratings under which a set of games is most likely, in whatever order they were played.

    Every player that is no anchor is given ``prior`` drawn games against a player rated ``start``, so that who won or
    lost all its games has a rating, too. Newton's method on the concave log-likelihood.

    Args:
        games: those of players that are anchors both tell nothing.
        anchors: fixed ratings by name.
        start: where players without games are.
        prior: above 0.

    Raises:
        ValueError: a game that cannot be rated, or a prior that is not positive.
    """
    check_games(games)
    finite("prior", prior, 0.0)
    fixed = dict(anchors or {})
    names = list(dict.fromkeys(name for game in games for name in (game.first, game.second)))
    free = [name for name in names if name not in fixed]
    index = {name: place for place, name in enumerate(free)}
    # In natural units, relative to `start`: one unit multiplies the odds by e.
    unit = SCALE / math.log(10.0)
    strength = {name: (fixed[name] - start) / unit for name in names if name in fixed}
    first, second, score = _columns(games, index, len(free))
    offsets = np.array([strength.get(g.first, 0.0) - strength.get(g.second, 0.0) for g in games])
    values = np.zeros(len(free))
    for _ in range(100):
        padded = np.append(values, 0.0)  # who is no free player is in the last place
        expected = 1.0 / (1.0 + np.exp(-(padded[first] - padded[second] + offsets)))
        step = _newton_step(values, first, second, score - expected, expected * (1 - expected), prior)
        values = values + step
        if not len(step) or np.abs(step).max() < 1e-10:
            break
    return {name: fixed[name] if name in fixed else start + unit * float(values[index[name]]) for name in names}


def _columns(games: Sequence[Scored], index: Mapping[str, int], last: int) -> tuple[Any, Any, Any]:
    """Places of first and second player, and scores, ``[games]`` each."""
    first = np.array([index.get(game.first, last) for game in games], dtype=np.int64)
    second = np.array([index.get(game.second, last) for game in games], dtype=np.int64)
    return first, second, np.array([game.score for game in games], dtype=np.float64)


def _newton_step(values: Any, first: Any, second: Any, surprise: Any, weight: Any, prior: float) -> Any:
    """From the gradient and Hessian of the log-likelihood, the prior's draws included; at most 2 units a player."""
    size = len(values) + 1
    gradient, curvature = np.zeros(size), np.zeros((size, size))
    np.add.at(gradient, first, surprise)
    np.add.at(gradient, second, -surprise)
    for a, b, sign in ((first, first, 1), (second, second, 1), (first, second, -1), (second, first, -1)):
        np.add.at(curvature, (a, b), sign * weight)
    own = 1.0 / (1.0 + np.exp(-values))
    gradient = gradient[:-1] + prior * (0.5 - own)
    curvature = curvature[:-1, :-1] + np.diag(prior * own * (1 - own))
    return np.clip(np.linalg.solve(curvature, gradient), -2.0, 2.0)
