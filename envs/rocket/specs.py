"""Names of the teams and of what is known about an episode."""

from __future__ import annotations

from .rewards import TERMS

TEAMS = ("blue", "orange")
COUNTED = ("touches", "demos", "boost_collected")
STATISTICS = (
    *("return", "length", "time", "success", "goals_for", "goals_against"),
    *(f"{name}_{team}" for name in COUNTED for team in TEAMS),
    *(f"reward_{name}" for name in TERMS),
)
"""What is known about an episode, ``[W, 1]`` each."""
