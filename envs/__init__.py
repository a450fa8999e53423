"""Batched worlds for TorchRL. ``envs.make(name, **options)`` builds one."""

from .registry import make, names, options_of, register, world_class

__all__ = ["make", "names", "options_of", "register", "world_class"]
