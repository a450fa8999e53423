"""Names of the teams and of what is known about an episode."""

from __future__ import annotations

from .rewards import TERMS
from .simulation import EVENTS

TEAMS = ("blue", "red")
STATISTICS = (
    *("return", "length", "time", "success", "lost", "draw", "hp_margin"),
    *(f"score_{team}" for team in TEAMS),
    *(f"{name}_{team}" for name in (*EVENTS, "damage") for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""What is known about an episode, ``[W, 1]`` each."""
