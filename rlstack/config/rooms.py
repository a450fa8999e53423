"""Finds what rooms of rlstack, and other packages, add to it: the tables in their modules ``register``.

A room such as ``rlstack/adapters`` can be removed: nothing else names it. A package of another project adds the same by
an entry point ``name = "package.register"`` in the group ``rlstack.rooms``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

ENTRY_POINTS = "rlstack.rooms"


@dataclass(frozen=True)
class Kind:
    """A kind of agents from elsewhere; targets have the form ``package.module:function``.

    Attributes:
        policy: target, called with a path, an env and the options; returns a policy of the env.
        options: names of its options.
        conversion: module that makes native agents of them, by ``converted(path, env, options, agent_options)``, which
            returns the native agent, the original as a policy and the number of frames it was trained for, and by
            ``own_world(path, options)``, which returns a name in ``conf/env`` and overrides. None: none can be made.
        export: target that writes files of this kind, called with a loaded run and a path or None; returns the paths.
    """

    policy: str
    options: tuple[str, ...] = ()
    conversion: str | None = None
    export: str | None = None


@cache
def registered(table: str) -> dict[str, Any]:
    """Returns the entries of a table, such as ``KINDS``, of all rooms and installed packages.

    The tables are ``KINDS`` (:class:`Kind` by name), ``ALGORITHMS`` (classes of agents, ``package.module:Class``),
    ``RECORDINGS`` (a member that only ``.npz`` files of a project have, and the function that reads these),
    ``WORLD_OPTIONS`` (arguments of :func:`rlstack.envs.registry.register_option`), ``HOOKS`` (functions of a training
    that return a hook or None) and ``PLAYERS`` (functions of an env and a name that return a policy or None).
    """
    folder = Path(__file__).parents[1]
    modules = [f"rlstack.{file.parent.name}.register" for file in sorted(folder.glob("*/register.py"))]
    modules += [entry.value for entry in metadata.entry_points(group=ENTRY_POINTS)]
    tables = [getattr(importlib.import_module(module), table, {}) for module in modules]
    return {name: entry for entries in reversed(tables) for name, entry in entries.items()}


def target(name: str) -> Any:
    """Imports what ``package.module:attribute`` names in a table."""
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))


def lazily(package: str, path: Iterable[str]) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a package whose names are those that its files define, imported when asked for."""

    def attribute(name: str) -> Any:
        files = [] if name.startswith("_") else [module.name for module in pkgutil.iter_modules(path)]
        for file in files if name not in files else [name]:
            module = importlib.import_module(f"{package}.{file}")
            defined = module if file == name else getattr(module, name, None)
            if file == name or getattr(defined, "__module__", None) == module.__name__:
                return defined
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
