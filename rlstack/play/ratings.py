"""Ratings of players from their games: Elo and Glicko-2.

Elo, "The Rating of Chessplayers, Past and Present", 1978: every game moves both ratings by a K-factor times the
difference of score and expectation, which suits players that change. :func:`fit_elo` finds the ratings that make a set
of games most likely (Bradley and Terry 1952, with draws as half a win each), which suits players that do not change.

Glickman, "Example of the Glicko-2 system", 2022 revision: ratings with a deviation. Names of functions and steps are
those of that paper; internally, ratings are on its scale, around 0 and in units of :data:`GLICKO_SCALE`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit

from rlstack.config import ConfigError, Interval, build, convert
from rlstack.config.errors import missing_option

Finite = Annotated[float, Interval()]
Positive = Annotated[float, Interval(low=0, open_low=True)]
CENTRE = 1500.0
ELO_SCALE = 400.0
GLICKO_SCALE = 173.7178


class Scored(NamedTuple):
    """A game in the form that ratings take.

    Attributes:
        first, second: names of two different players.
        score: score of the first: 1 for a win, 0.5 for a draw, 0 for a loss.
    """

    first: str
    second: str
    score: float


class Rating(NamedTuple):
    """A player's rating.

    Attributes:
        rating: rating in points.
        deviation: standard deviation of the rating in points; Elo has none.
        volatility: expected change of the player's strength in a period; Elo has none.
    """

    rating: float = CENTRE
    deviation: float = 350.0
    volatility: float = 0.06


class Ratings(ABC):
    """Ratings of players by name; an unknown player has the rating of a beginner.

    Args:
        options: fields of the system's ``Options``.

    Raises:
        ConfigError: there is no such option, or a value is impossible.

    Attributes:
        anchors: fixed ratings by name.
        beginner: initial rating of all other players.
    """

    kind: ClassVar[str]
    """Name of the system."""
    stored: ClassVar[tuple[str, ...]]
    """The fields of :class:`Rating` that the system has."""
    Options: ClassVar[type[Any]]
    anchors: dict[str, float]
    beginner: Rating

    def __init__(self, **options: Any) -> None:
        self.options = build(self.Options, options, "ratings")
        self.anchors = self.options.anchors
        self._players: dict[str, Rating] = {}
        self._games: dict[str, int] = {}

    @abstractmethod
    def expected(self, first: str, second: str) -> float:
        """Returns the expected score in (0, 1) of the first player against the second."""

    @abstractmethod
    def record(self, games: Sequence[Scored]) -> None:
        """Updates the ratings with the games of one rating period."""

    def add(self, name: str) -> None:
        """Adds a player; a known one stays unchanged."""
        self._players.setdefault(name, self.whole(name))
        self._games.setdefault(name, 0)

    def whole(self, name: str) -> Rating:
        """Returns rating, deviation and volatility of a player."""
        if name in self.anchors:
            return self.beginner._replace(rating=self.anchors[name])
        return self._players.get(name, self.beginner)

    def rating(self, name: str) -> float:
        """Returns a player's rating, or a beginner's if the player is unknown."""
        return self.whole(name).rating

    def deviation(self, name: str) -> float | None:
        """Returns the standard deviation of a player's rating, or None if the system has none."""
        return self.whole(name).deviation if "deviation" in self.stored else None

    def conservative(self, name: str) -> float:
        """Returns a player's rating minus two deviations, if the system has them."""
        return self.rating(name) - 2.0 * (self.deviation(name) or 0.0)

    def ranking(self) -> list[str]:
        """Returns the players, best first by :meth:`conservative`; ties in the order in which they were added."""
        return sorted(self._players, key=lambda name: -self.conservative(name))

    def state_dict(self) -> dict[str, Any]:
        """Returns options and players in the form of JSON; ``system`` is the kind."""
        players = {
            name: {key: getattr(self.whole(name), key) for key in self.stored} | {"games": self._games[name]}
            for name in self._players
        }
        return {"system": self.kind, "parameters": asdict(self.options), "players": players}

    def load_players(self, players: Mapping[str, Mapping[str, Any]]) -> None:
        """Restores the ``players`` of :meth:`state_dict`."""
        for name, entry in players.items():
            numbers = convert(dict[str, Finite], entry, f"ratings.players.{name}")
            self._players[name] = self.beginner._replace(**{key: numbers[key] for key in self.stored})
            self._games[name] = int(numbers["games"])


# -- Elo -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EloOptions:
    """Options of Elo: the K-factor, a beginner's rating, and fixed ratings by name."""

    k: Positive = 32.0
    start: Finite = CENTRE
    anchors: dict[str, Finite] = field(default_factory=dict)


class Elo(Ratings):
    """Elo ratings: every game moves them by ``k`` times the difference of score and expectation."""

    kind, stored, Options = "elo", ("rating",), EloOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.beginner = Rating(self.options.start)

    def set(self, name: str, rating: float) -> None:
        """Sets the rating of a player that is not an anchor, for example to that of its parent."""
        self.add(name)
        self._players[name] = Rating(rating)

    def expected(self, first: str, second: str) -> float:
        """Returns ``1 / (1 + 10^(difference / 400))`` for the second's rating less the first's."""
        return float(expit(math.log(10.0) * (self.rating(first) - self.rating(second)) / ELO_SCALE))

    def record(self, games: Sequence[Scored]) -> None:
        for game in games:
            change = self.options.k * (game.score - self.expected(game.first, game.second))
            for name, gain in ((game.first, change), (game.second, -change)):
                self.set(name, self.rating(name) + gain)
                self._games[name] += 1


def fit_elo(
    games: Sequence[Scored], anchors: Mapping[str, float] | None = None, start: float = CENTRE, prior: float = 1.0
) -> dict[str, float]:
    """Finds the Elo ratings under which a set of games is most likely, regardless of their order.

    Every player that is not an anchor gets ``prior`` drawn games against a player rated ``start``, so that one who won
    or lost all games has a rating, too. Uses Newton's method on the concave log-likelihood.

    Args:
        games: the games; those between two anchors have no effect.
        anchors: fixed ratings by name.
        start: rating of players without games.
        prior: number of added drawn games, above 0.
    """
    fixed = dict(anchors or {})
    place = {name: index for index, name in enumerate(dict.fromkeys(name for game in games for name in game[:2]))}
    played, won = np.zeros((len(place), len(place))), np.zeros(len(place))
    for game in games:
        first, second = place[game.first], place[game.second]
        played[[first, second], [second, first]] += 1
        won[[first, second]] += game.score, 1 - game.score
    free = np.array([name not in fixed for name in place], dtype=bool)
    # In natural units, relative to `start`: one unit multiplies the odds by e.
    unit = ELO_SCALE / math.log(10.0)
    values = np.array([(fixed.get(name, start) - start) / unit for name in place])
    for _ in range(100):
        expected, drawn = expit(values[:, None] - values), expit(values)
        weight = played * expected * (1 - expected)
        gradient = won - (played * expected).sum(1) + prior * (0.5 - drawn)
        curvature = np.diag(weight.sum(1) + prior * drawn * (1 - drawn)) - weight
        step = np.clip(np.linalg.solve(curvature[np.ix_(free, free)], gradient[free]), -2.0, 2.0)
        values[free] += step
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return {name: fixed[name] if name in fixed else start + unit * float(values[place[name]]) for name in place}


# -- Glicko-2 ------------------------------------------------------------------------------------------------------


def g(phi: float) -> float:
    """Returns the paper's g: the weight in (0, 1] of a game against an opponent with this deviation."""
    return 1.0 / math.sqrt(1.0 + 3.0 * phi**2 / math.pi**2)


def expectation(mu: float, opponent_mu: float, opponent_phi: float) -> float:
    """Returns the paper's E: the expected score of a game, at least 1e-12 from 0 and 1."""
    return min(max(float(expit(g(opponent_phi) * (mu - opponent_mu))), 1e-12), 1.0 - 1e-12)


def rate(player: Rating, games: Sequence[tuple[Rating, float]], tau: float = 0.5) -> Rating:
    """Returns a player's rating after a period.

    Args:
        player: rating before the period.
        games: the opponents' ratings before the period, and the player's scores (1, 0.5, 0); without games the
            deviation grows.
        tau: limit on the change of volatilities, usually 0.3 to 1.2.
    """
    mu, phi, sigma = (player.rating - CENTRE) / GLICKO_SCALE, player.deviation / GLICKO_SCALE, player.volatility
    if not games:
        return player._replace(deviation=GLICKO_SCALE * math.sqrt(phi**2 + sigma**2))
    inverse_v, gain = 0.0, 0.0
    for opponent, score in games:
        their_phi = opponent.deviation / GLICKO_SCALE
        weight, expected = g(their_phi), expectation(mu, (opponent.rating - CENTRE) / GLICKO_SCALE, their_phi)
        inverse_v += weight**2 * expected * (1.0 - expected)
        gain += weight * (score - expected)
    v = 1.0 / inverse_v
    sigma = new_volatility(phi, sigma, v, v * gain, tau)
    new_phi = 1.0 / math.sqrt(1.0 / (phi**2 + sigma**2) + 1.0 / v)
    return Rating(CENTRE + GLICKO_SCALE * (mu + new_phi**2 * gain), GLICKO_SCALE * new_phi, sigma)


def new_volatility(phi: float, sigma: float, v: float, delta: float, tau: float) -> float:
    """Returns the volatility after a period (step 5, with Brent's method in place of regula falsi).

    Args:
        phi, sigma: deviation and volatility before.
        v: estimated variance of the rating from the games alone.
        delta: estimated improvement.
        tau: see :func:`rate`.
    """
    from scipy.optimize import brentq  # takes long to import, and only a period of Glicko-2 needs it

    a = math.log(sigma**2)

    def f(x: float) -> float:
        grown = phi**2 + v + math.exp(x)
        return math.exp(x) * (delta**2 - grown) / (2.0 * grown**2) - (x - a) / tau**2

    if delta**2 > phi**2 + v:
        other = math.log(delta**2 - phi**2 - v)
    else:
        other = next(other for steps in count(1) if not f(other := a - steps * tau) < 0)
    return math.exp(brentq(f, a, other) / 2.0)


@dataclass(frozen=True)
class Glicko2Options:
    """Options of Glicko-2: the limit on volatilities, a beginner's numbers, and fixed ratings with their deviation."""

    tau: Positive = 0.5
    rating: Finite = CENTRE
    deviation: Positive = 350.0
    volatility: Positive = 0.06
    anchors: dict[str, Finite] = field(default_factory=dict)
    anchor_deviation: Positive = 30.0


class Glicko2(Ratings):
    """Glicko-2 ratings, updated in periods: all new ratings are computed from those before the period.

    The deviation of a player without games in a period grows, up to a beginner's; anchors stay unchanged.
    """

    kind, stored, Options = "glicko2", Rating._fields, Glicko2Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.beginner = Rating(self.options.rating, self.options.deviation, self.options.volatility)

    def whole(self, name: str) -> Rating:
        known = super().whole(name)
        return known._replace(deviation=self.options.anchor_deviation) if name in self.anchors else known

    def expected(self, first: str, second: str) -> float:
        """Returns the expected score, with both deviations combined into the one that the paper's E takes."""
        ours, theirs = self.whole(first), self.whole(second)
        both = math.hypot(ours.deviation, theirs.deviation) / GLICKO_SCALE
        return expectation((ours.rating - CENTRE) / GLICKO_SCALE, (theirs.rating - CENTRE) / GLICKO_SCALE, both)

    def record(self, games: Sequence[Scored]) -> None:
        results: dict[str, list[tuple[Rating, float]]] = {}
        for first, second, score in games:
            for name, other, own in ((first, second, score), (second, first, 1.0 - score)):
                self.add(name)
                results.setdefault(name, []).append((self.whole(other), own))
        new = {name: rate(self.whole(name), results.get(name, []), self.options.tau) for name in self._players}
        for name, rating in new.items():
            self._games[name] += len(results.get(name, []))
            # A beginner's deviation is the upper bound.
            self._players[name] = rating._replace(deviation=min(rating.deviation, self.beginner.deviation))


# -- by name -------------------------------------------------------------------------------------------------------

SYSTEMS: dict[str, type[Ratings]] = {system.kind: system for system in (Elo, Glicko2)}


def rating_system(kind: str, **options: Any) -> Ratings:
    """Makes a rating system from its name and options.

    Raises:
        ConfigError: there is no such system or option, or a value is impossible.
    """
    if kind not in SYSTEMS:
        raise ConfigError(missing_option("ratings.system", kind, list(SYSTEMS)))
    return SYSTEMS[kind](**options)


def ratings_from(state: Any) -> Ratings:
    """Restores ratings from :meth:`Ratings.state_dict`.

    Raises:
        ConfigError: the state has another form.
    """
    try:
        ratings = rating_system(state["system"], **state["parameters"])
        ratings.load_players(state["players"])
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"ratings: not a state of a rating system ({error!r})") from None
    return ratings
