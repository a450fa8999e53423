"""The registry of worlds: the shipped ones, those of installed packages, and a user's own."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from torchrl.envs import EnvBase

from .foundation.packages import belongs_to, found, made_by
from .world import World as World
from .world import WorldHooks
from .wrappers import wrapped

_REGISTERED: dict[str, str] = {}

ENTRY_POINTS = "rlstack.envs"
"""Group of entry points, ``name = "package.module:Class"``, by which an installed package provides worlds."""

_WRAPPING = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
    for name, default, kind in (
        ("action_repeat", 1, int),
        ("frame_stack", 1, int),
        ("observation_keep", None, list[int] | None),
    )
}
"""Options of every world: those of :func:`wrappers.wrapped`, and registered ones (:func:`register_option`)."""
_BROUGHT: dict[str, str] = {}
_TWO_SIDED: set[str] = set()
_EVALUATED: dict[str, Callable[[Any], Any]] = {}


def register(name: str, target: str) -> None:
    """Registers ``target``, a dotted path ``package.module:ClassOrFunction``, for ``envs.make(name)``."""
    if ":" not in target:
        raise ValueError(f"target {target!r} of world {name!r} is not of the form 'package.module:Class'")
    _REGISTERED[name] = target


def register_option(
    name: str,
    target: str,
    annotation: Any = Any,
    two_sided: bool = False,
    evaluated: Callable[[Any], Any] | None = None,
) -> None:
    """Adds the option ``name`` to every world, with default None.

    Args:
        name: name of the option.
        target: a dotted path ``package.module:function``, called with the world in all its wrappers and the option's
            value; it returns the world to use.
        annotation: type of the option.
        two_sided: whether it needs both sides as agents; a world then also gets its ``two_sided_options``.
        evaluated: function from the option's value in training to that in an evaluation; None: they are equal.
    """
    if ":" not in target:
        raise ValueError(f"target {target!r} of option {name!r} is not of the form 'package.module:function'")
    _WRAPPING[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    _BROUGHT[name] = target
    if two_sided:
        _TWO_SIDED.add(name)
    if evaluated is not None:
        _EVALUATED[name] = evaluated


def evaluation_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of a world with the registered ones (:func:`register_option`) set for evaluations."""
    return {name: _EVALUATED[name](value) if name in _EVALUATED else value for name, value in options.items()}


def _installed() -> dict[str, str]:
    """Returns names and targets from the entry points of installed packages."""
    return {entry.name: entry.value.partition("[")[0].strip() for entry in metadata.entry_points(group=ENTRY_POINTS)}


@cache
def _shipped() -> frozenset[str]:
    """Returns the worlds in this package: the folders with a file ``env.py``, in which stands a class of that name."""
    return frozenset(file.parent.name for file in Path(__file__).parent.glob("*/env.py"))


def _target(name: str) -> str | None:
    if name in _REGISTERED or ":" in name:
        return _REGISTERED.get(name, name)
    if name not in _shipped():
        return _installed().get(name)
    module = f"{__package__}.{name}.env"
    known = vars(importlib.import_module(module)).items()
    return next(f"{module}:{key}" for key, value in known if key.lower() == name and inspect.isclass(value))


def names() -> list[str]:
    """Returns the names of all worlds, including those of installed packages."""
    return sorted({*_installed(), *_shipped(), *_REGISTERED})


def world_class(name: str) -> Callable[..., EnvBase]:
    """Returns the class or factory of a world's name, or of a dotted path ``package.module:Class``.

    A dotted path must name a class of envs, or a function annotated to return one.

    Raises:
        ValueError: the name is unknown (the message lists the known ones), or the path names something else.
    """
    target = _target(name)
    if target is None:
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown world {name!r}{hint}; known: {', '.join(names())}, or 'package.module:Class'")
    try:
        factory: Callable[..., EnvBase] = found(target)
    except ValueError as error:
        raise ValueError(str(error) if target == name else f"world {name!r}: {error}") from error
    if target == name and not issubclass(made_by(factory), EnvBase):
        hint = belongs_to(made_by(factory), "", name)
        raise ValueError(f"world {name!r}: neither an EnvBase class nor a function annotated to return one{hint}")
    return factory


def world_hooks(name: str) -> type[WorldHooks]:
    """Returns the hooks of a world before it is built: its class, or the defaults for other envs."""
    made = made_by(world_class(name))
    return made if issubclass(made, WorldHooks) else WorldHooks


def constructor(name: str) -> Callable[..., Any]:
    """Returns the callable with a world's signature, which TorchRL's metaclass hides for a class."""
    factory = world_class(name)
    return factory.__init__ if inspect.isclass(factory) else factory


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """Returns the options of a world: the arguments of its constructor, and those of every world.

    A constructor that accepts any option has an entry ``"**"``.
    """
    own = _own_options(name)
    return own | {key: entry for key, entry in _WRAPPING.items() if key not in own}


def _own_options(name: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(constructor(name)).parameters
    names = {key: "**" if entry.kind is entry.VAR_KEYWORD else key for key, entry in parameters.items()}
    return {names[key]: entry for key, entry in parameters.items() if key != "self"}


def make(name: str, **options: Any) -> EnvBase:
    """Builds a world.

    Args:
        name: a registered name, or ``package.module:Class`` of your own ``EnvBase``.
        options: arguments of its constructor, and for every ``rlstack.envs.world.World`` also ``action_repeat`` (steps
            per action), ``frame_stack`` (number of observations shown at once) and ``observation_keep`` (indices of the
            entries of an observation to show); see ``rlstack.envs.wrappers``.

    Raises:
        ValueError: a name or option is unknown (the message lists the allowed ones), or a value is impossible.
    """
    allowed = options_of(name)
    unknown = [key for key in options if key not in allowed]
    if unknown and "**" not in allowed:
        close = difflib.get_close_matches(unknown[0], allowed, n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{name}: unknown option {unknown[0]!r}{hint} (allowed: {', '.join(allowed)})")
    if any(options.get(key) is not None for key in _TWO_SIDED):
        options |= world_hooks(name).two_sided_options
    own = _own_options(name)
    around = {key: value for key, value in options.items() if key in _WRAPPING and key not in own}
    world = world_class(name)(**{key: options[key] for key in options if key not in around})
    brought = {key: around.pop(key) for key in _BROUGHT if key in around}
    world = wrapped(world, **around)
    for name, value in brought.items():
        if value is not None:
            module, _, attribute = _BROUGHT[name].partition(":")
            world = getattr(importlib.import_module(module), attribute)(world, value)
    return world
