"""Random actions fare as in the original game: lengths of episodes, spawns and shots, with our own random numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlstack import envs
from tests.conftest import REPO

EPISODES = 3000
STATISTICS = ("return", "length", "success", "phase", "spawners", "enemies", "health")
ORIGINAL: dict[str, Any] = json.loads((REPO / "tests/fixtures/arena/random_policy.json").read_text())


def play(style: int, stage: int | None) -> dict[str, Tensor]:
    """Returns the statistics of the first episode of every world."""
    env: Any = envs.make("arena", num_worlds=EPISODES, style=style, stage=stage, seed=11)
    generator = torch.Generator().manual_seed(7)
    root = env.reset()
    running = torch.ones(EPISODES, dtype=torch.bool)
    final = {name: torch.zeros(EPISODES, dtype=torch.float64) for name in (*STATISTICS, "timeout")}
    while running.any():
        action = torch.randint(env.rules.num_actions, (EPISODES,), generator=generator)
        step, root = env.step_and_maybe_reset(root.set("action", action))
        following = step["next"]
        ends = following["done"][:, 0] & running
        for name in STATISTICS:
            final[name][ends] = following["episode", name][ends, 0].double()
        final["timeout"][ends] = following["truncated"][ends, 0].double()
        running &= ~ends
    assert env.worlds.overflow.sum() == 0
    return final


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, 0, 3])
@pytest.mark.parametrize("style", [1, 2])
def test_within_three_standard_errors(style: int, stage: int | None) -> None:
    original = ORIGINAL[f"style {style}, stage {'none' if stage is None else stage}"]
    for name, ours in play(style, stage).items():
        error = math.sqrt(original["std"][name] ** 2 / original["n"] + float(ours.var()) / EPISODES)
        off = abs(float(ours.mean()) - original["mean"][name])
        # Where nothing ever happened in a few hundred episodes, it may happen once in a hundred.
        assert off <= max(3 * error, 3 / original["n"]), f"{name}: {float(ours.mean())}, {original['mean'][name]}"
