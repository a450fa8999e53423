"""Copies of a simulator, of which few may be able to live at once: made together, and closed together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from .processes import EnvironmentFailed

LIMIT = "env.max_instances to the number that can live at once"


def check_instances(count: int, most: int | None) -> None:
    """Compares a number of copies with the option ``max_instances``.

    Raises:
        ValueError: it is larger, or the option is not positive.
    """
    if most is not None and most < 1:
        raise ValueError(f"max_instances: {most} is not a positive number")
    if most is not None and count > most:
        raise ValueError(f"num_envs: max_instances={most} allows no more than {most}")


def completed(made: list[Any], make: Callable[[], Any], count: int) -> list[Any]:
    """Makes further copies until there are ``count``; if one fails, all are closed.

    Raises:
        EnvironmentFailed: one of the further copies cannot be made.
    """
    try:
        while len(made) < count:
            made.append(make())
    except BaseException as error:
        told = f"{error}; {len(made)} of {count} environments were made"
        close_all(made)
        if not isinstance(error, Exception):
            raise
        raise EnvironmentFailed(f"{told}: if there can be no more, lower env.num_envs, or set {LIMIT}") from error
    return made


def close_all(environments: list[Any]) -> None:
    """Closes each of them and empties the list, also if the ``close`` of one raises an error, which is raised then."""
    with ExitStack() as stack:
        while environments:
            stack.callback(environments.pop().close)
