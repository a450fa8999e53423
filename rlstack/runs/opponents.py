"""The option ``opponents`` of every two-sided world: importing this module makes it known to :func:`envs.make`.

It imports nothing that is slow; what the option does is in :mod:`rlstack.play.versus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs import registry

OPTION = "opponents"


def in_evaluations(opponents: Any) -> Any:
    """The opponents of an evaluation: those of ``opponents.evaluation``, where there are any, and nobody else.

    Without it they are those of training, but for ``self``: an evaluation knows no learner.
    """
    if not isinstance(opponents, Mapping):
        return opponents
    if opponents.get("evaluation"):
        return {"players": list(opponents["evaluation"]), "side": opponents.get("side", "first")}
    if "self" in opponents.get("players", ()):
        return {**opponents, "players": [player for player in opponents["players"] if player != "self"]}
    return opponents


registry.register_option(
    OPTION, "rlstack.play.versus:against", dict[str, Any] | None, two_sided=True, evaluated=in_evaluations
)


def without_opponents(env: Mapping[str, Any]) -> dict[str, Any]:
    """An ``env`` group without opponents: both sides of its world are agents."""
    return {key: value for key, value in env.items() if key != OPTION}
