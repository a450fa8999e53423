"""Wrappers of worlds: repeated actions, stacked observations, and observations with hidden entries."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl.envs import EnvBase

from ..world import World
from .action_repeat import ActionRepeat
from .base import Wrapper
from .frame_stack import FrameStack
from .keep_observation import KeepObservation

__all__ = ["MOST_REPEATS", "ActionRepeat", "FrameStack", "KeepObservation", "Wrapper", "wrapped"]

MOST_REPEATS, MOST_STACKED = 10_000, 1000
"""Greatest numbers of steps per action, and of observations shown at once."""


def wrapped(
    env: EnvBase, action_repeat: int = 1, frame_stack: int = 1, observation_keep: Sequence[int] | None = None
) -> EnvBase:
    """Wraps an env: selects entries of its observation, repeats actions, and stacks observations.

    Args:
        action_repeat: number of times that every action is taken.
        frame_stack: number of observations shown at once.
        observation_keep: indices of the entries to show; None shows all.

    Raises:
        ValueError: a number is not a positive int, indices are impossible, or the env is not a :class:`World`.
    """
    for name, value, most in (
        ("action_repeat", action_repeat, MOST_REPEATS),
        ("frame_stack", frame_stack, MOST_STACKED),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {value!r} is not a positive whole number")
        if value > 1 and not isinstance(env, World):
            raise ValueError(f"{name}: {type(env).__name__} is not an rlstack.envs.world.World, only 1 is allowed")
        if value > most:
            raise ValueError(f"{name}: {value} is more than {most}")
    if observation_keep is not None:
        if not isinstance(env, World):
            raise ValueError(
                f"observation_keep: {type(env).__name__} is not an rlstack.envs.world.World, only null is allowed"
            )
        env = KeepObservation(env, observation_keep)
    if action_repeat > 1:
        env = ActionRepeat(env, action_repeat)
    return FrameStack(env, frame_stack) if frame_stack > 1 else env
