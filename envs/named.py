"""Code that a configuration names. Since configurations travel in runs and checkpoints, only some may be called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin, get_type_hints

_OURS = ("envs", "rlstack")


def found(target: str) -> Any:
    """Imports the object that ``package.module:attribute`` names.

    Raises:
        ValueError: it cannot be imported; the message explains name clashes with modules of this package.
    """
    module, _, attribute = target.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # TypeError: a relative name
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{target} cannot be imported: {reason}{clash(module)}") from error


def clash(module: str) -> str:
    """Explains that a module of the working folder is hidden by one of this project's packages of the same name."""
    name = module.partition(".")[0]
    own = next((path for path in (Path(name), Path(f"{name}.py")) if name in _OURS and path.exists()), None)
    ours = importlib.util.find_spec(name) if own is not None else None
    if own is None or ours is None or ours.origin is None or own.resolve() in Path(ours.origin).resolve().parents:
        return ""
    return f"; {own} in the working folder has the name of rlstack's own package {name!r}: rename it"


def made_by(factory: Any) -> type:
    """Returns the class of a call's result: the callee if it is a class, or a function's annotated return type.

    Returns ``object`` for anything else, such as ``subprocess.run``, which a file must not be able to call.
    """
    if not inspect.isclass(factory):
        try:
            factory = get_type_hints(factory).get("return")
        except (AttributeError, NameError, TypeError):  # not a function, or annotated with unknown names
            return object
        factory = get_origin(factory) or factory
    return factory if inspect.isclass(factory) else object
