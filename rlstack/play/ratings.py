"""How strong players are, by games they have played: what every rating system offers, and rating systems by name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option, unknown_key


class Scored(NamedTuple):
    """A game as ratings see it.

    Attributes:
        first, second: names of the players, which differ.
        score: of the first: 1 won, 0.5 drawn, 0 lost.
    """

    first: str
    second: str
    score: float


class Ratings(ABC):
    """Ratings of players by name; whoever is unknown begins with the first rating of the system."""

    kind: ClassVar[str]
    """The name of the system."""

    @abstractmethod
    def add(self, name: str) -> None:
        """Makes a player known; one who is already stays as it is."""

    @abstractmethod
    def names(self) -> list[str]:
        """The players, in the order in which they came."""

    @abstractmethod
    def rating(self, name: str) -> float:
        """A player's rating, that of a beginner if it is unknown."""

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a player's rating, where the system knows one."""
        return None

    def conservative(self, name: str) -> float:
        """What a player is worth at least: two deviations below its rating, where there are any."""
        return self.rating(name) - 2.0 * (self.deviation(name) or 0.0)

    @abstractmethod
    def games(self, name: str) -> int:
        """How many games a player has been rated by."""

    @abstractmethod
    def expected(self, first: str, second: str) -> float:
        """The score in (0, 1) that the first can expect against the second."""

    @abstractmethod
    def record(self, games: Sequence[Scored]) -> None:
        """Takes in the games of one rating period.

        Raises:
            ValueError: a player against itself, or a score other than 0, 0.5 or 1.
        """

    def ranking(self) -> list[str]:
        """The players, best first by :meth:`conservative`; equals in the order in which they came."""
        return sorted(self.names(), key=lambda name: -self.conservative(name))

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Parameters and players, as JSON holds them; ``system`` is the kind."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ratings:
        """The inverse of :meth:`state_dict`."""


def check_games(games: Sequence[Scored]) -> None:
    """Raises a ValueError for a game that no rating system can take."""
    for game in games:
        if game.first == game.second:
            raise ValueError(f"{game.first!r} cannot be rated by games against itself")
        if game.score not in (0.0, 0.5, 1.0):
            raise ValueError(f"a score of {game.score} is unknown, allowed: 0, 0.5, 1")


def rating_system(kind: str, **options: Any) -> Ratings:
    """A new rating system by name, with its constructor's arguments.

    Raises:
        ConfigError: no such system or argument, or an impossible value.
    """
    cls = _system(kind)
    try:
        return cls(**options)
    except TypeError:
        known = list(cls.__init__.__annotations__)
        wrong = next((name for name in options if name not in known), None)
        raise ConfigError(unknown_key(f"ratings.{wrong}", [name for name in known if name != "return"])) from None
    except ValueError as error:
        raise ConfigError(f"ratings: {error}") from None


def ratings_from(state: Any) -> Ratings:
    """Ratings as :meth:`Ratings.state_dict` gave them.

    Raises:
        ConfigError: not such a state.
    """
    kind = state.get("system") if isinstance(state, Mapping) else None
    if not isinstance(kind, str):
        raise ConfigError("ratings: the state names no rating system")
    try:
        return _system(kind).from_state(state)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"ratings: not a state of {kind} ({error!r})") from None


def _system(kind: str) -> type[Any]:
    from .elo import Elo
    from .glicko import Glicko2

    systems: dict[str, type[Ratings]] = {cls.kind: cls for cls in (Elo, Glicko2)}
    if kind not in systems:
        raise ConfigError(missing_option("ratings.system", kind, list(systems)))
    return systems[kind]


def finite(name: str, value: Any, low: float = -math.inf) -> float:
    """A finite number above ``low``.

    Raises:
        ValueError: another value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= low:
        bound = "" if low == -math.inf else f" above {low:g}"
        raise ValueError(f"{name}: {value!r} is not a finite number{bound}")
    return float(value)
