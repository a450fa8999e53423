"""What environments answer to ``reset`` and ``step``: what does not fit, and errors of their own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import numpy as np

from .named import place_in_users_code
from .processes import EnvironmentRaised, place_of

_FLAGS = (bool, np.bool_)


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
    if misfit is not None and (told := misfit(observation)):
        return f"the observation does not fit its space: {told}"
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
