"""Environments of other libraries: found by a path, copies of which few may live, and what is wrong with answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import NoneType
from typing import Any

import numpy as np

from .foundation.packages import belongs_to, found, made_by, place_in_users_code
from .foundation.processes import EnvironmentFailed, EnvironmentRaised, place_of

LIMIT = "env.max_instances to the number that can live at once"
_FLAGS = (bool, np.bool_)


def factory_at(id: str, library: str, kind: str, is_kind: Callable[[type], bool]) -> Callable[..., Any]:
    """Returns the class of environments, or the function annotated to return one, at ``package.module:attribute``.

    Args:
        library: the library of the environments, such as ``gymnasium``.
        kind: what they are, for messages.
        is_kind: whether a class is one of such environments.

    Raises:
        ValueError: there is no such attribute, or it is something else.
    """
    try:
        factory = found(id)
    except ValueError as error:
        raise ValueError(f"id: {error}") from error
    made = made_by(factory)
    if not is_kind(made):
        hint = belongs_to(made, library, id)
        raise ValueError(f"id: {id} is neither a {kind} class nor a function annotated to return one{hint}")
    return factory


def check_positive(**options: float | None) -> None:
    """Checks the numbers of some options.

    Raises:
        ValueError: one of them is neither None nor positive.
    """
    for name, value in options.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name}: {value} is not a positive number")


def check_instances(count: int, most: int | None) -> None:
    """Compares a number of copies with the option ``max_instances``.

    Raises:
        ValueError: it is larger, or the option is not positive.
    """
    check_positive(max_instances=most)
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
        so_far = f"{error}; {len(made)} of {count} environments were made"
        close_all(made)
        if not isinstance(error, Exception):
            raise
        raise EnvironmentFailed(f"{so_far}: if there can be no more, lower env.num_envs, or set {LIMIT}") from error
    return made


def close_all(environments: list[Any]) -> None:
    """Closes each of them and empties the list, also if the ``close`` of one raises an error, which is raised then."""
    with ExitStack() as stack:
        while environments:
            stack.callback(environments.pop().close)


def fault(
    misfit: Callable[[Any], str] | None,
    observation: Any,
    reward: Any = 0.0,
    terminated: Any = False,
    truncated: Any = False,
    info: Any = None,
) -> str:
    """Returns what of an answer does not fit, ``""`` if everything does.

    Args:
        misfit: says what of an observation does not fit its space, see :func:`rlstack.envs.spaces.misfit_of`; None
            leaves out the observation.
    """
    if misfit is not None and (why := misfit(observation)):
        return f"the observation does not fit its space: {why}"
    if type(reward) is float and type(terminated) is type(truncated) is bool and type(info) in (dict, NoneType):
        return ""  # in a third of the time
    if not _is_number(reward):
        return f"the reward is {reward!r:.40}, it must be a number"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) not in _FLAGS and not _is_number(np.squeeze(flag)):
            return f"{name} is {flag!r:.40}, it must be True or False"
    return "" if info is None or isinstance(info, Mapping) else f"info is {info!r:.40}, it must be a dict"


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.dtype.kind in "biuf" and array.ndim == 0


def raised(call: str, error: Exception) -> EnvironmentRaised:
    """Returns the error of an environment whose own code raised one.

    Args:
        call: the environment and the call, for the message.
    """
    text = " ".join(str(error).split())
    place = place_in_users_code(error) or f" ({place_of(error)})"
    return EnvironmentRaised(f"{call} raised {type(error).__name__}{': ' if text else ''}{text}{place}")
