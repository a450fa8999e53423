"""Batched worlds for TorchRL; ``rlstack.envs.make(name, **options)`` builds one.

Importing the package registers ``rlstack/Arena-v0`` and others with Gymnasium; see ``rlstack.envs.faces``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .faces import register_faces

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


register_faces()
