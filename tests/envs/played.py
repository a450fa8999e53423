"""Plays what is recorded."""

from __future__ import annotations

from typing import Any

import torch


def played(env: Any, recorder: Any, steps: int) -> list[Any]:
    """Takes random actions after a reset and returns the steps; ended worlds begin again."""
    torch.manual_seed(0)
    root, taken = env.reset(), []
    recorder.add()
    for _ in range(steps):
        taken.append(env.step(env.rand_action(root)))
        recorder.add()
        root = env.maybe_reset(env.step_mdp(taken[-1]))
    return taken
