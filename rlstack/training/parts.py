"""The hooks that every run has, and those of the rooms that are there, beside the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlstack.config.rooms import registered, target

from .curriculum import Curriculum
from .evaluations import Evaluations
from .guard import Guard
from .hooks import Hook
from .imitation import Imitation
from .interrupt import Interrupts
from .monitor import Hardware, Monitor
from .preflight import BatchChecks

if TYPE_CHECKING:
    from .loop import Training

OWN_STATE = (
    *("frames", "time", "best_rank", "agent", "replay", "env", "other_ranks", "other_ranks_env", "rng", "config"),
    *(hook.name for hook in (Monitor, Curriculum, Imitation, Guard)),
)
"""Entries of a checkpoint that a user's hook must not take as its name."""


def hooks_of_run(training: Training, own: Sequence[Hook]) -> list[Hook]:
    """Returns all hooks of a run, in the order in which they are called.

    Args:
        own: the user's hooks.

    Raises:
        ValueError: two hooks have the same name.
    """
    names = [*OWN_STATE, *(hook.name for hook in own if hook.name)]
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"hooks: the name {twice[0]!r} is taken")
    c = training.config
    curriculum = None if c.curriculum is None else Curriculum(c.curriculum, training.env)
    hooks = [
        Interrupts(training.ranks),
        Hardware(training.device),
        Imitation(c),
        BatchChecks() if c.debug else None,
        Guard(c.guard, training.agent, training.run.path, training.ranks.seed(c.seed), c.collector.count),
        Monitor(c.cudagraphs is not False),
        curriculum,
        *(target(name)(training) for name in registered("HOOKS").values()),
        *own,
        Evaluations(),
    ]
    return [hook for hook in hooks if hook is not None]
