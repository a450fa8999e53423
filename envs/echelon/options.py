"""Reading the options of the bots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .players import BOTS


def bot_weights(opponent: str, mix: Mapping[str, float] | None) -> tuple[float, ...]:
    """How often each of the bots plays red, as weights.

    Raises:
        ValueError: an unknown bot, or weights that are not possible.
    """
    if opponent not in (*BOTS, "policy"):
        raise ValueError(f"opponent: {opponent!r} is unknown, allowed: {', '.join((*BOTS, 'policy'))}")
    weights = {opponent: 1.0} if not mix else dict(mix)
    if mix and opponent == "policy":
        raise ValueError("opponent_mix: bots play red only where opponent is one of them, not 'policy'")
    for name, weight in weights.items():
        if name not in BOTS and (mix or name != "policy"):
            raise ValueError(f"opponent_mix: {name!r} is unknown, allowed: {', '.join(BOTS)}")
        if weight < 0:
            raise ValueError(f"opponent_mix: the weight of {name}, {weight}, is negative")
    if sum(weights.values()) <= 0:
        raise ValueError("opponent_mix: all weights are 0")
    # Where agents play both sides the bots' kind has no effect.
    found = tuple(float(weights.get(name, 0.0)) for name in BOTS)
    return found if any(found) else (1.0, *[0.0] * (len(BOTS) - 1))


def fire_range(given: float | Sequence[float]) -> tuple[float, float]:
    """Least and greatest probability of firing.

    Raises:
        ValueError: not one or two numbers within [0, 1] in order.
    """
    values = [float(given)] if isinstance(given, int | float) else [float(value) for value in given]
    if len(values) not in (1, 2) or not 0 <= values[0] <= values[-1] <= 1:
        raise ValueError(f"fire_probability: {given} is neither a number within [0, 1] nor two of them in order")
    return values[0], values[-1]


def stages_of(given: Sequence[float] | None) -> tuple[float, ...]:
    """Probabilities of firing of the stages of a curriculum.

    Raises:
        ValueError: one is not within [0, 1].
    """
    stages = tuple(float(value) for value in given or ())
    wrong = [value for value in stages if not 0 <= value <= 1]
    if wrong:
        raise ValueError(f"fire_stages: {wrong[0]} is not within [0, 1]")
    return stages
