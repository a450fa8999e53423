"""Batched worlds for TorchRL; ``rlstack.envs.make(name, **options)`` builds one.

The worlds are also environments of other libraries: Gymnasium, its vector API, PettingZoo, Stable-Baselines3.

    import envs                                    # or gymnasium.make("envs:rlstack/Arena-v0"), which needs no import

    gymnasium.make("rlstack/Arena-v0", style=2)
    gymnasium.make_vec("rlstack/MarineNav-v0", num_envs=64, num_obstacles=8)
    gymnasium.make("rlstack/Rocket-v0", others="rule")
    envs.parallel_env("rocket", team_size=2)       # PettingZoo

Keyword arguments are the options of the world. A step of a single world takes as long as that of a batch of hundreds,
so use ``make_vec`` or ``envs.make`` if you can step batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

__all__ = ["World", "constructor", "make", "names", "options_of", "register", "world_class", "world_hooks"]

if TYPE_CHECKING:
    from .registry import World, constructor, make, names, options_of, register, world_class, world_hooks


def __getattr__(name: str) -> Any:
    """Imports TorchRL only when a world is built: processes that step simulators start without it."""
    if name not in __all__:
        raise AttributeError(f"module 'rlstack.envs' has no attribute {name!r}")
    from . import registry

    return getattr(registry, name)


def parallel_env(world: str, **options: Any) -> Any:
    """Returns a world with several agents as a PettingZoo ``ParallelEnv`` (extra ``pettingzoo``).

    Args:
        world: a name or path for :func:`make`, such as ``rocket``.
        options: options of the world.
    """
    from .faces.parallel import ParallelWorld

    return ParallelWorld(world, **options)


FACES: dict[str, dict[str, Any]] = {
    "rlstack/Arena-v0": {"world": "arena"},
    "rlstack/MarineNav-v0": {"world": "marinenav", "num_robots": 1},
    "rlstack/Rocket-v0": {"world": "rocket"},
    "rlstack/Echelon-v0": {"world": "echelon"},
}
"""Registered environments with their default options."""

for _name, _options in FACES.items():
    if _name not in gymnasium.registry:  # registered ones stay unchanged
        _single, _vector = "rlstack.envs.faces.gymnasium:SingleWorld", "rlstack.envs.faces.gymnasium:VectorWorld"
        gymnasium.register(_name, entry_point=_single, vector_entry_point=_vector, kwargs=_options)
