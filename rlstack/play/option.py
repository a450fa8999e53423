"""The option ``opponents`` of every two-sided world: importing this module makes it known to :func:`envs.make`.

It imports nothing that is slow; what the option does is in :mod:`rlstack.play.versus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs import registry

OPTION = "opponents"

registry.register_option(OPTION, "rlstack.play.versus:against", dict[str, Any] | None, needs="two_sided_options")


def judged(options: Mapping[str, Any]) -> dict[str, Any]:
    """A world's options for an evaluation: against ``opponents.evaluation``, where there is any, and nobody else.

    Without it the opponents are those of training, but for ``self``: an evaluation knows no learner.
    """
    chosen = dict(options)
    opponents = chosen.get(OPTION)
    if not isinstance(opponents, Mapping):
        return chosen
    if opponents.get("evaluation"):
        chosen[OPTION] = {"players": list(opponents["evaluation"]), "side": opponents.get("side", "first")}
    elif "self" in opponents.get("players", ()):
        chosen[OPTION] = {**opponents, "players": [player for player in opponents["players"] if player != "self"]}
    return chosen


def without(env: Mapping[str, Any]) -> dict[str, Any]:
    """An ``env`` group without opponents: both sides of its world are agents."""
    return {key: value for key, value in env.items() if key != OPTION}
