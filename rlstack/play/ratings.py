"""Ratings of players by the games they have played: Elo's, and Glicko-2.

Elo, "The Rating of Chessplayers, Past and Present", 1978: every game moves both ratings by a K-factor times the
surprise, which follows players that change. :func:`fit_elo` finds the ratings that make a set of games most likely
(Bradley and Terry 1952, with draws as half a win each), which is better where players do not change.

Glickman, "Example of the Glicko-2 system", 2022 revision: ratings that know how sure they are. Names of functions and
steps are those of that paper; inside, ratings are on its own scale, around 0 and in units of :data:`GLICKO_SCALE`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
EPSILON = 1e-6


class Scored(NamedTuple):
    """A game as ratings see it.

    Attributes:
        first, second: names of the players, which differ.
        score: of the first: 1 won, 0.5 drawn, 0 lost.
    """

    first: str
    second: str
    score: float


class Rating(NamedTuple):
    """A player's rating.

    Attributes:
        rating: in points.
        deviation: its standard deviation, in points; Elo knows none.
        volatility: how much the player's strength is expected to change in a period; Elo knows none.
    """

    rating: float = CENTRE
    deviation: float = 350.0
    volatility: float = 0.06


class Ratings(ABC):
    """Ratings of players by name; whoever is unknown has the rating of a beginner.

    Args:
        options: of the system, the fields of its ``Options``.

    Raises:
        ConfigError: no such option, or an impossible value.

    Attributes:
        anchors: ratings that stay as they are, by name.
        beginner: the first rating of everybody else.
    """

    kind: ClassVar[str]
    """The name of the system."""
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
        """The score in (0, 1) that the first can expect against the second."""

    @abstractmethod
    def record(self, games: Sequence[Scored]) -> None:
        """Takes in the games of one rating period.

        Raises:
            ValueError: a player against itself, or a score other than 0, 0.5 or 1.
        """

    def add(self, name: str) -> None:
        """Makes a player known; one who is already stays as it is."""
        self._players.setdefault(name, self.whole(name))
        self._games.setdefault(name, 0)

    def names(self) -> list[str]:
        """The players, in the order in which they came."""
        return list(self._players)

    def whole(self, name: str) -> Rating:
        """Rating, deviation and volatility of a player."""
        if name in self.anchors:
            return self.beginner._replace(rating=self.anchors[name])
        return self._players.get(name, self.beginner)

    def rating(self, name: str) -> float:
        """A player's rating, that of a beginner if it is unknown."""
        return self.whole(name).rating

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a player's rating, where the system knows one."""
        return self.whole(name).deviation if "deviation" in self.stored else None

    def conservative(self, name: str) -> float:
        """A player's rating less two deviations, where there are any."""
        return self.rating(name) - 2.0 * (self.deviation(name) or 0.0)

    def games(self, name: str) -> int:
        """The number of games that a player has been rated by."""
        return self._games.get(name, 0)

    def ranking(self) -> list[str]:
        """The players, best first by :meth:`conservative`; equals in the order in which they came."""
        return sorted(self.names(), key=lambda name: -self.conservative(name))

    def state_dict(self) -> dict[str, Any]:
        """Options and players, as JSON holds them; ``system`` is the kind."""
        players = {
            name: {key: getattr(self.whole(name), key) for key in self.stored} | {"games": self._games[name]}
            for name in self._players
        }
        return {"system": self.kind, "parameters": asdict(self.options), "players": players}

    def load_players(self, players: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over the ``players`` of :meth:`state_dict`."""
        for name, entry in players.items():
            numbers = convert(dict[str, Finite], entry, f"ratings.players.{name}")
            self._players[name] = self.beginner._replace(**{key: numbers[key] for key in self.stored})
            self._games[name] = int(numbers["games"])


# -- Elo -----------------------------------------------------------------------------------------------------------


def expected_score(rating: float, opponent: float) -> float:
    """The score that a player can expect against another: ``1 / (1 + 10^((opponent - rating) / 400))``."""
    return 1.0 / (1.0 + 10.0 ** ((opponent - rating) / ELO_SCALE))


@dataclass(frozen=True)
class EloOptions:
    """The K-factor, a beginner's rating, and ratings that stay as they are, by name."""

    k: Positive = 32.0
    start: Finite = CENTRE
    anchors: dict[str, Finite] = field(default_factory=dict)


class Elo(Ratings):
    """Ratings that every game moves by ``k`` times the difference of score and expectation."""

    kind, stored, Options = "elo", ("rating",), EloOptions

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.beginner = Rating(self.options.start)

    def set(self, name: str, rating: float) -> None:
        """Gives a player that is no anchor a rating, such as that of whom it was made from."""
        self.add(name)
        self._players[name] = Rating(rating)

    def expected(self, first: str, second: str) -> float:
        return expected_score(self.rating(first), self.rating(second))

    def record(self, games: Sequence[Scored]) -> None:
        _check_games(games)
        for game in games:
            change = self.options.k * (game.score - self.expected(game.first, game.second))
            for name, gain in ((game.first, change), (game.second, -change)):
                self.set(name, self.rating(name) + gain)
                self._games[name] += 1


def fit_elo(
    games: Sequence[Scored], anchors: Mapping[str, float] | None = None, start: float = CENTRE, prior: float = 1.0
) -> dict[str, float]:
    """Finds the Elo ratings under which a set of games is most likely, in whatever order they were played.

    Every player that is no anchor is given ``prior`` drawn games against a player rated ``start``, so that who won or
    lost all its games has a rating, too. Newton's method on the concave log-likelihood.

    Args:
        games: those of players that are anchors both tell nothing.
        anchors: fixed ratings by name.
        start: where players without games are.
        prior: above 0.

    Raises:
        ValueError: a game that cannot be rated.
    """
    _check_games(games)
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
    """The paper's g: how much a game tells against an opponent with this deviation; 1 is all."""
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


@dataclass(frozen=True)
class Glicko2Options:
    """How much volatilities may change, a beginner's numbers, and ratings that stay, with how sure they are."""

    tau: Positive = 0.5
    rating: Finite = CENTRE
    deviation: Positive = 350.0
    volatility: Positive = 0.06
    anchors: dict[str, Finite] = field(default_factory=dict)
    anchor_deviation: Positive = 30.0


class Glicko2(Ratings):
    """Ratings in periods: all new ones are found from those before the period, then take effect together.

    Who does not play in a period grows less sure, up to a beginner's deviation; anchors stay as they are.
    """

    kind, stored, Options = "glicko2", Rating._fields, Glicko2Options

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.beginner = Rating(self.options.rating, self.options.deviation, self.options.volatility)

    def whole(self, name: str) -> Rating:
        known = super().whole(name)
        return known._replace(deviation=self.options.anchor_deviation) if name in self.anchors else known

    def expected(self, first: str, second: str) -> float:
        """The expected score, with both deviations in one, as the paper's E takes one alone."""
        ours, theirs = self.whole(first), self.whole(second)
        both = math.hypot(ours.deviation, theirs.deviation) / GLICKO_SCALE
        return expectation((ours.rating - CENTRE) / GLICKO_SCALE, (theirs.rating - CENTRE) / GLICKO_SCALE, both)

    def record(self, games: Sequence[Scored]) -> None:
        _check_games(games)
        results: dict[str, list[tuple[Rating, float]]] = {}
        for first, second, score in games:
            for name, other, own in ((first, second, score), (second, first, 1.0 - score)):
                self.add(name)
                results.setdefault(name, []).append((self.whole(other), own))
        new = {name: rate(self.whole(name), results.get(name, []), self.options.tau) for name in self._players}
        for name, rating in new.items():
            self._games[name] += len(results.get(name, []))
            # A beginner is as unsure as one can be.
            self._players[name] = rating._replace(deviation=min(rating.deviation, self.beginner.deviation))


# -- by name -------------------------------------------------------------------------------------------------------

SYSTEMS: dict[str, type[Ratings]] = {system.kind: system for system in (Elo, Glicko2)}


def rating_system(kind: str, **options: Any) -> Ratings:
    """A new rating system by name, with its options.

    Raises:
        ConfigError: no such system or option, or an impossible value.
    """
    if kind not in SYSTEMS:
        raise ConfigError(missing_option("ratings.system", kind, list(SYSTEMS)))
    return SYSTEMS[kind](**options)


def ratings_from(state: Any) -> Ratings:
    """Ratings as :meth:`Ratings.state_dict` gave them.

    Raises:
        ConfigError: not such a state.
    """
    kind = state.get("system") if isinstance(state, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigError("ratings: the state names no rating system")
    try:
        ratings = rating_system(kind, **state["parameters"])
        ratings.load_players(state["players"])
    except ConfigError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"ratings: not a state of {kind} ({error!r})") from None
    return ratings


def _check_games(games: Sequence[Scored]) -> None:
    """Raises a ValueError for a game that no rating system can take."""
    for game in games:
        if game.first == game.second:
            raise ValueError(f"{game.first!r} cannot be rated by games against itself")
        if game.score not in (0.0, 0.5, 1.0):
            raise ValueError(f"a score of {game.score} is unknown, allowed: 0, 0.5, 1")
