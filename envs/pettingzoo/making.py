"""From an id to parallel environments, and what their agents must have in common."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ..named import made_by

_METHODS = ("observation_space", "action_space", "reset", "step")


def parallel_factory(id: str) -> Callable[..., Any]:
    """What builds the parallel environment of an id, see :class:`envs.pettingzoo.PettingZoo`.

    Anything but a module's ``parallel_env`` must be a class of environments, or a function annotated to return one.

    Raises:
        ValueError: nothing there to import, or a module without parallel environment.
    """
    family, _, short = id.partition("/")
    path, _, attribute = (f"pettingzoo.{family}.{short}" if short else id).partition(":")
    try:
        module = importlib.import_module(path)
    except (ImportError, ValueError) as error:
        raise ValueError(f"id: {id!r} cannot be imported: {error}{_advice(path, error)}") from error
    try:
        factory = attrgetter(attribute or "parallel_env")(module)
    except AttributeError:
        raise ValueError(f"id: {id!r}: {path} has no {attribute or 'parallel_env'!r}") from None
    made = made_by(factory)
    if attribute not in ("", "parallel_env") and not all(callable(getattr(made, name, None)) for name in _METHODS):
        raise ValueError(
            f"id: {id!r} is neither a class of parallel environments nor a function annotated to return one"
        )
    return factory


def _advice(module: str, error: ImportError | ValueError) -> str:
    lacking = str(getattr(error, "name", None))
    if module.startswith("pettingzoo.") and (lacking == "pettingzoo" or not lacking.startswith("pettingzoo")):
        return " (pip install 'rlstack[pettingzoo]')"
    family, _, name = module.rpartition(".")
    try:
        siblings = [entry.name for entry in pkgutil.iter_modules(importlib.import_module(family).__path__)]
    except (ImportError, AttributeError, ValueError):
        return ""
    close = difflib.get_close_matches(name, siblings, n=1)
    return f", did you mean {family + '.' + close[0]!r}?" if close else ""


def build(factory: Callable[..., Any], id: str, kwargs: dict[str, Any]) -> Any:
    """One environment.

    Raises:
        ValueError: constructor arguments it does not take, or something else than a parallel environment.
    """
    try:
        env = factory(**kwargs)
    except TypeError as error:
        raise ValueError(f"id: {id!r} with kwargs {kwargs}: {error}") from error
    needed = ("possible_agents", *_METHODS)
    if missing := [name for name in needed if not hasattr(env, name)]:
        raise ValueError(f"id: {id!r} is no parallel environment, it lacks {', '.join(missing)}")
    return env


def common_space(env: Any, agents: Sequence[Any], kind: str, id: str) -> Any:
    """The ``observation_space`` or ``action_space`` (``kind``) of all agents.

    Raises:
        ValueError: they differ; it lists whose.
    """
    spaces = {agent: getattr(env, kind)(agent) for agent in agents}
    common = spaces[agents[0]]
    if others := [f"{agent} {space}" for agent, space in spaces.items() if space != common]:
        which = f"{agents[0]} has {common}, but {', '.join(others)}"
        raise ValueError(f"id: {id!r}: all agents must share one {kind.replace('_', ' ')}; {which}")
    return common
