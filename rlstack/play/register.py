"""What this room adds to rlstack, such as the option ``opponents`` of two-sided worlds; see ``config/rooms.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPTION = "opponents"


def in_evaluations(opponents: Any) -> Any:
    """Returns the opponents of an evaluation: those of ``opponents.evaluation`` if it is given, all at once.

    Otherwise they are those of training without ``self``, since an evaluation has no learner.
    """
    if not isinstance(opponents, Mapping):
        return opponents
    if opponents.get("evaluation"):
        named = list(opponents["evaluation"])
        return {"players": named, "side": opponents.get("side", "first"), "at_once": len(named)}
    if "self" in opponents.get("players", ()):
        return {**opponents, "players": [player for player in opponents["players"] if player != "self"]}
    return opponents


WORLD_OPTIONS = {
    OPTION: {
        "target": "rlstack.play.versus:against",
        "annotation": dict[str, Any] | None,
        "two_sided": True,
        "evaluated": in_evaluations,
    }
}
HOOKS = {"self_play": "rlstack.play.versus:SelfPlay.of"}
PLAYERS = {"scripted": "rlstack.play.versus:own_policy"}


def without_opponents(env: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an ``env`` group without opponents, in whose world both sides are agents."""
    return {key: value for key, value in env.items() if key != OPTION}
