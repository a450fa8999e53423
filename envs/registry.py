"""Names of worlds: the shipped ones and a user's own."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torchrl.envs import EnvBase

_WORLDS: dict[str, str] = {"marinenav": "envs.marinenav.env:MarineNav"}


def register(name: str, target: str) -> None:
    """Makes ``envs.make(name)`` build ``target``, a dotted path ``package.module:ClassOrFunction``."""
    if ":" not in target:
        raise ValueError(f"target {target!r} of world {name!r} is not of the form 'package.module:Class'")
    _WORLDS[name] = target


def names() -> list[str]:
    """Registered world names."""
    return sorted(_WORLDS)


def world_class(name: str) -> Callable[..., EnvBase]:
    """The class or factory behind a world's name, or behind a dotted path ``package.module:Class``.

    Raises:
        ValueError: unknown name; it lists the known ones.
    """
    target = _WORLDS.get(name, name if ":" in name else None)
    if target is None:
        close = difflib.get_close_matches(name, _WORLDS, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown world {name!r}{hint}; known: {', '.join(names())}, or 'package.module:Class'")
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"world {name!r}: {target} cannot be imported: {error}") from error


def constructor(name: str) -> Callable[..., Any]:
    """What carries a world's signature: TorchRL's metaclass hides that of a class behind ``(*args, **kwargs)``."""
    factory = world_class(name)
    return factory.__init__ if inspect.isclass(factory) else factory


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """The constructor arguments of a world by name; one that takes any option has an entry ``"**"``."""
    parameters = inspect.signature(constructor(name)).parameters
    names = {key: "**" if entry.kind is entry.VAR_KEYWORD else key for key, entry in parameters.items()}
    return {names[key]: entry for key, entry in parameters.items() if key != "self"}


def make(name: str, **options: Any) -> EnvBase:
    """Builds a world.

    Args:
        name: a registered name, or ``package.module:Class`` of your own ``EnvBase``.
        options: its constructor arguments.

    Raises:
        ValueError: unknown name or option (it says which are allowed), or an impossible value.
    """
    allowed = options_of(name)
    unknown = [key for key in options if key not in allowed]
    if unknown and "**" not in allowed:
        close = difflib.get_close_matches(unknown[0], allowed, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: unknown option {unknown[0]!r}{hint} (allowed: {', '.join(allowed)})")
    return world_class(name)(**options)
