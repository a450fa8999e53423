"""Batched worlds for TorchRL. ``envs.make(name, **options)`` builds one."""

from .registry import constructor, make, names, options_of, register, world_class

__all__ = ["constructor", "make", "names", "options_of", "register", "world_class"]
