"""Which opponent to meet next: weights of those that there are, by what is known of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rlstack.config import ConfigError
from rlstack.config.errors import missing_option, unknown_key


@dataclass(frozen=True)
class Standings:
    """What is known of n opponents.

    Attributes:
        ratings: ``[n]`` on Elo's scale.
        own: the learner's rating.
        frames: ``[n]``, of the learner when an opponent joined.
        wins: ``[n]``, the share of games that the learner wins against each, a draw counting half.
    """

    ratings: Tensor
    own: float
    frames: Tensor
    wins: Tensor


Sampler = Callable[[Standings], Tensor]
"""Weights ``[n]``, not negative, of which one at least is positive."""


def uniform() -> Sampler:
    """Everyone as often."""
    return lambda standings: torch.ones_like(standings.ratings)


def elo_weighted(scale: float = 200.0) -> Sampler:
    """Rather those of a similar rating: ``exp(-|difference| / scale)``."""
    _positive("scale", scale)
    return lambda standings: torch.exp(-(standings.ratings - standings.own).abs() / scale)


def recency_weighted(temperature: float = 1.0) -> Sampler:
    """Rather those that joined late: ``exp(temperature * (frames - latest) / 1e6)``."""
    _positive("temperature", temperature)
    return lambda standings: torch.exp(temperature * (standings.frames - standings.frames.amax()) / 1e6)


def difficulty_adjusted(scale: float = 0.5) -> Sampler:
    """Rather those against whom the outcome is open: ``exp(-|expected score - 0.5| / scale)``, by the ratings."""
    _positive("scale", scale)

    def weigh(standings: Standings) -> Tensor:
        expected = 1.0 / (1.0 + 10.0 ** ((standings.ratings - standings.own) / 400.0))
        return torch.exp(-(expected - 0.5).abs() / scale)

    return weigh


def pfsp(weighting: Literal["hard", "variance"] = "hard", exponent: float = 2.0, least: float = 0.01) -> Sampler:
    """Prioritised fictitious self-play (Vinyals et al. 2019): by the share x of games that the learner wins.

    Args:
        weighting: ``hard``: ``(1 - x)^exponent``, those who beat the learner; ``variance``: ``x (1 - x)``, those of its
            own strength.
        exponent: of ``hard``.
        least: no weight is below it, so that nobody is forgotten.
    """
    if weighting not in ("hard", "variance"):
        raise ConfigError(missing_option("sampler.weighting", str(weighting), ["hard", "variance"]))
    _positive("exponent", exponent)
    _positive("least", least)

    def weigh(standings: Standings) -> Tensor:
        x = standings.wins
        return ((1 - x) ** exponent if weighting == "hard" else x * (1 - x)).clamp_min(least)

    return weigh


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "uniform": uniform,
    "elo": elo_weighted,
    "recency": recency_weighted,
    "difficulty": difficulty_adjusted,
    "pfsp": pfsp,
}


def make_sampler(config: str | Mapping[str, Any]) -> Sampler:
    """A sampler by name, or by a mapping of ``name`` and its options.

    Raises:
        ConfigError: no such sampler or option, or an impossible value.
    """
    options = {"name": config} if isinstance(config, str) else dict(config)
    name = options.pop("name", None)
    if name not in SAMPLERS:
        raise ConfigError(missing_option("sampler", str(name), list(SAMPLERS)))
    known = inspect.signature(SAMPLERS[name]).parameters
    for key in options:
        if key not in known:
            raise ConfigError(unknown_key(f"sampler.{key}", known))
    return SAMPLERS[name](**options)


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"sampler.{name}: {value!r} is not a finite number above 0")
