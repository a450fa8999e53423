"""Agents with a memory: PPO, A2C, DQN and IQN behind a recurrent core (``agent.recurrent`` in their yaml)."""

from __future__ import annotations

from functools import cache
from typing import Any

from rlstack.config import ConfigError

from ..base import Agent
from ..dqn import DQN
from ..iqn import IQN
from ..on_policy import OnPolicy
from .off_policy import RecurrentOffPolicy
from .on_policy import RecurrentOnPolicy


@cache
def recurrent_class(cls: type[Agent]) -> type[Agent]:
    """The same algorithm with a memory.

    Raises:
        ConfigError: there is none.
    """
    base: Any
    if issubclass(cls, OnPolicy):
        base = RecurrentOnPolicy
    elif issubclass(cls, DQN | IQN):
        base = RecurrentOffPolicy
    else:
        raise ConfigError(f"agent.recurrent: {cls.__name__} has no memory; ppo, a2c, dqn and iqn do")
    return type(
        f"Recurrent{cls.__name__}", (base, cls), {"__doc__": f"{cls.__name__} with a memory.", "ALGORITHM": cls}
    )
