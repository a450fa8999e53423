"""Code that a configuration names. Configurations travel in runs and checkpoints, so not everything may be called."""

from __future__ import annotations

import inspect
from typing import Any, get_origin, get_type_hints


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
