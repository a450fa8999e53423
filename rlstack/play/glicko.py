"""Glicko-2 (Glickman, "Example of the Glicko-2 system", 2022 revision): ratings that know how sure they are.

Names of functions and steps are those of that paper; inside, ratings are on its own scale, around 0 and in units of
:data:`SCALE` points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .ratings import Ratings, Scored, check_games, finite

SCALE = 173.7178
CENTRE = 1500.0
EPSILON = 1e-6


class Rating(NamedTuple):
    """A player's rating.

    Attributes:
        rating: in points.
        deviation: its standard deviation, in points.
        volatility: how much the player's strength is expected to change in a period.
    """

    rating: float = CENTRE
    deviation: float = 350.0
    volatility: float = 0.06


def g(phi: float) -> float:
    """How little a game tells against an opponent with this deviation: 1 is all."""
    return 1.0 / math.sqrt(1.0 + 3.0 * phi**2 / math.pi**2)


def expectation(mu: float, opponent_mu: float, opponent_phi: float) -> float:
    """The paper's E: the score to expect of a game."""
    return 1.0 / (1.0 + math.exp(-g(opponent_phi) * (mu - opponent_mu)))


def rate(player: Rating, games: Sequence[tuple[Rating, float]], tau: float = 0.5) -> Rating:
    """A player's rating after a period.

    Args:
        player: before the period.
        games: the opponents as they were before the period, and the player's scores (1, 0.5, 0); without any the
            deviation grows.
        tau: how much volatilities may change, usually 0.3 to 1.2.
    """
    mu, phi, sigma = (player.rating - CENTRE) / SCALE, player.deviation / SCALE, player.volatility
    if not games:
        return player._replace(deviation=SCALE * math.sqrt(phi**2 + sigma**2))
    inverse_v, gain = 0.0, 0.0
    for opponent, score in games:
        their_mu, their_phi = (opponent.rating - CENTRE) / SCALE, opponent.deviation / SCALE
        weight, expected = g(their_phi), expectation(mu, their_mu, their_phi)
        inverse_v += weight**2 * expected * (1.0 - expected)
        gain += weight * (score - expected)
    v = 1.0 / inverse_v
    sigma = new_volatility(phi, sigma, v, v * gain, tau)
    new_phi = 1.0 / math.sqrt(1.0 / (phi**2 + sigma**2) + 1.0 / v)
    return Rating(CENTRE + SCALE * (mu + new_phi**2 * gain), SCALE * new_phi, sigma)


def new_volatility(phi: float, sigma: float, v: float, delta: float, tau: float) -> float:
    """Step 5: the volatility after a period, found by the Illinois variant of regula falsi.

    Args:
        phi, sigma: deviation and volatility before.
        v: estimated variance of the rating by the games alone.
        delta: estimated improvement.
        tau: see :func:`rate`.
    """
    a = math.log(sigma**2)

    def f(x: float) -> float:
        grown = phi**2 + v + math.exp(x)
        return math.exp(x) * (delta**2 - grown) / (2.0 * grown**2) - (x - a) / tau**2

    low = a
    if delta**2 > phi**2 + v:
        high = math.log(delta**2 - phi**2 - v)
    else:
        steps = 1
        while f(a - steps * tau) < 0:
            steps += 1
        high = a - steps * tau
    f_low, f_high = f(low), f(high)
    while abs(high - low) > EPSILON:
        middle = low + (low - high) * f_low / (f_high - f_low)
        f_middle = f(middle)
        if f_middle * f_high <= 0:
            low, f_low = high, f_high
        else:
            f_low /= 2.0
        high, f_high = middle, f_middle
    return math.exp(low / 2.0)


class Glicko2(Ratings):
    """Ratings in periods: all new ones are found from those before the period, then take effect together.

    Who does not play in a period grows less sure, up to a beginner's deviation; anchors stay as they are.

    Args:
        tau: how much volatilities may change.
        rating, deviation, volatility: a beginner's.
        anchors: ratings that stay as they are, by name, with a deviation of ``anchor_deviation``.

    Raises:
        ValueError: a number that is not finite, or not positive where it must be.
    """

    kind = "glicko2"

    def __init__(
        self,
        tau: float = 0.5,
        rating: float = CENTRE,
        deviation: float = 350.0,
        volatility: float = 0.06,
        anchors: Mapping[str, float] | None = None,
        anchor_deviation: float = 30.0,
    ) -> None:
        self.tau = finite("tau", tau, 0.0)
        self.first = Rating(
            finite("rating", rating), finite("deviation", deviation, 0.0), finite("volatility", volatility, 0.0)
        )
        self.anchor_deviation = finite("anchor_deviation", anchor_deviation, 0.0)
        self.anchors = {name: finite(f"anchors.{name}", value) for name, value in (anchors or {}).items()}
        self._players: dict[str, Rating] = {}
        self._games: dict[str, int] = {}

    def add(self, name: str) -> None:
        self._players.setdefault(name, self.whole(name))
        self._games.setdefault(name, 0)

    def names(self) -> list[str]:
        return list(self._players)

    def whole(self, name: str) -> Rating:
        """Rating, deviation and volatility of a player."""
        if name in self.anchors:
            return self.first._replace(rating=self.anchors[name], deviation=self.anchor_deviation)
        return self._players.get(name, self.first)

    def rating(self, name: str) -> float:
        return self.whole(name).rating

    def deviation(self, name: str) -> float:
        return self.whole(name).deviation

    def games(self, name: str) -> int:
        return self._games.get(name, 0)

    def expected(self, first: str, second: str) -> float:
        """With both deviations in one, as the paper's E takes one alone."""
        ours, theirs = self.whole(first), self.whole(second)
        both = math.hypot(ours.deviation, theirs.deviation) / SCALE
        return expectation((ours.rating - CENTRE) / SCALE, (theirs.rating - CENTRE) / SCALE, both)

    def record(self, games: Sequence[Scored]) -> None:
        check_games(games)
        results: dict[str, list[tuple[Rating, float]]] = {}
        for game in games:
            for name, other, score in (
                (game.first, game.second, game.score),
                (game.second, game.first, 1.0 - game.score),
            ):
                self.add(name)
                results.setdefault(name, []).append((self.whole(other), score))
        new = {name: rate(self.whole(name), results.get(name, []), self.tau) for name in self._players}
        for name, rating in new.items():
            self._games[name] += len(results.get(name, []))
            if name not in self.anchors:
                # A beginner is as unsure as one can be.
                self._players[name] = rating._replace(deviation=min(rating.deviation, self.first.deviation))

    def state_dict(self) -> dict[str, Any]:
        parameters = {"tau": self.tau, **self.first._asdict(), "anchors": dict(self.anchors)}
        parameters["anchor_deviation"] = self.anchor_deviation
        players = {name: {**self.whole(name)._asdict(), "games": self._games[name]} for name in self._players}
        return {"system": self.kind, "parameters": parameters, "players": players}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Glicko2:
        ratings = cls(**state["parameters"])
        for name, entry in state["players"].items():
            numbers = {key: finite(f"players.{name}.{key}", entry[key]) for key in Rating._fields}
            ratings._players[name] = Rating(**numbers)
            ratings._games[name] = int(entry["games"])
        return ratings
