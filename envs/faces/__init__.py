"""Our worlds as environments of other libraries: Gymnasium, its vectors, PettingZoo, Stable-Baselines3.

    import envs                                    # or gymnasium.make("envs:rlstack/Arena-v0"), which needs no import

    gymnasium.make("rlstack/Arena-v0", style=2)
    gymnasium.make_vec("rlstack/MarineNav-v0", num_envs=64, num_obstacles=8)
    gymnasium.make("rlstack/Rocket-v0", others="rule")
    envs.parallel_env("rocket", team_size=2)       # PettingZoo

Keyword arguments are the options of the world. A single world takes as long for a step as a batch of hundreds: who can
step batches should use ``make_vec`` or ``envs.make``.
"""

from __future__ import annotations

from typing import Any

import gymnasium

FACES: dict[str, dict[str, Any]] = {
    "rlstack/Arena-v0": {"world": "arena"},
    "rlstack/MarineNav-v0": {"world": "marinenav", "num_robots": 1},
    "rlstack/Rocket-v0": {"world": "rocket"},
    "rlstack/Echelon-v0": {"world": "echelon"},
}
"""Registered environments and the options they begin with."""


def register_faces() -> None:
    """Makes :data:`FACES` known to ``gymnasium.make`` and ``make_vec``; those that are known stay as they are."""
    single, vector = "envs.faces.single:SingleWorld", "envs.faces.vector:VectorWorld"
    for name, options in FACES.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=single, vector_entry_point=vector, kwargs=options)
