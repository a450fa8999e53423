"""The worlds as environments of other libraries: Gymnasium, its vector API, PettingZoo, Stable-Baselines3.

    import envs                                    # or gymnasium.make("envs:rlstack/Arena-v0"), which needs no import

    gymnasium.make("rlstack/Arena-v0", style=2)
    gymnasium.make_vec("rlstack/MarineNav-v0", num_envs=64, num_obstacles=8)
    gymnasium.make("rlstack/Rocket-v0", others="rule")
    envs.parallel_env("rocket", team_size=2)       # PettingZoo

Keyword arguments are the options of the world. A step of a single world takes as long as that of a batch of hundreds,
so use ``make_vec`` or ``envs.make`` if you can step batches.
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
"""Registered environments with their default options."""


def register_faces() -> None:
    """Registers :data:`FACES` for ``gymnasium.make`` and ``make_vec``; registered ones stay unchanged."""
    single, vector = "rlstack.envs.faces.single:SingleWorld", "rlstack.envs.faces.vector:VectorWorld"
    for name, options in FACES.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=single, vector_entry_point=vector, kwargs=options)
