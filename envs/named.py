"""Code that a configuration names. Configurations travel in runs and checkpoints, so not everything may be called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin, get_type_hints

_OURS = ("envs", "rlstack")


def found(target: str) -> Any:
    """The object that ``package.module:attribute`` names.

    Raises:
        ValueError: it cannot be imported, in one line; of a module that has the name of one of ours, the way out.
    """
    module, _, attribute = target.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a relative name
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{target} cannot be imported: {reason}{clash(module)}") from error


def clash(module: str) -> str:
    """Words for a module of the working folder that can not be reached, because a package of ours has its name."""
    name = module.partition(".")[0]
    own = next((path for path in (Path(name), Path(f"{name}.py")) if name in _OURS and path.exists()), None)
    ours = importlib.util.find_spec(name) if own is not None else None
    if own is None or ours is None or ours.origin is None or own.resolve() in Path(ours.origin).resolve().parents:
        return ""
    return f"; {own} in the working folder has the name of rlstack's own package {name!r}: rename it"


def made_by(factory: Any) -> type:
    """The class of what a call gives, by the callee's own account: itself, or what a function is annotated to return.

    ``object`` for anything else, such as ``subprocess.run``, which is not to be called because a file says so.
    """
    if not inspect.isclass(factory):
        try:
            factory = get_type_hints(factory).get("return")
        except (AttributeError, NameError, TypeError):  # no function, or annotated with names that are not there
            return object
        factory = get_origin(factory) or factory
    return factory if inspect.isclass(factory) else object
