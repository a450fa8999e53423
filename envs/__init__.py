"""Batched worlds for TorchRL. ``envs.make(name, **options)`` builds one."""

from .registry import make, names, register, world_class

__all__ = ["make", "names", "register", "world_class"]
