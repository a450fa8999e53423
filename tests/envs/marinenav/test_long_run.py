"""Many random steps: all numbers stay finite, and no robot is lost."""

from __future__ import annotations

import math

import pytest
import torch

from rlstack import envs
from tests.exhaustive import exhaustive

LEVELS = {
    "timesteps": None,
    "num_robots": [1, 3, 5],
    "num_cores": [0, 8, 2],
    "num_obstacles": [0, 6, 8],
    "min_start_goal_dis": [30.0, 30.0, 40.0],
}


@pytest.mark.parametrize(
    ("worlds", "steps"), [(512, 120), pytest.param(4096, 245, marks=pytest.mark.slow, id="a-million")]
)
@exhaustive("continuous", [True, False])
def test_random_steps_stay_finite(worlds: int, steps: int, continuous: bool) -> None:
    env = envs.make(
        "marinenav", num_worlds=worlds, curriculum=LEVELS, continuous_actions=continuous, max_steps=100, seed=5
    )
    td = env.reset()
    generator = torch.Generator().manual_seed(0)
    lead = (worlds, env.num_robots)
    ended = 0
    for step in range(steps):
        if step % 8 == 0:  # held, so that robots make progress
            rates = 4 * torch.rand(*lead, 2, generator=generator) - 1.5
            action = rates if continuous else torch.randint(25, lead, generator=generator)
        done_td, td = env.step_and_maybe_reset(td.set(("agents", "action"), action))
        following = done_td["next"]
        for name, value in env.worlds.items():
            assert value.isfinite().all(), name
        for key, value in following.items(True, True):
            assert not value.dtype.is_floating_point or value.isfinite().all(), key
        ended += int(following["done"].sum())
        lost = following["agents", "done"][..., 0] & following["agents", "active"]
        assert not (lost & (following["agents", "info"] != 1)).any()
    assert ended >= worlds  # by time-out at the latest
    theta = env.worlds.pose[2]
    assert (theta >= 0).all() and (theta < 2 * math.pi).all()
    assert env.worlds.thrust.min() >= -500 and env.worlds.thrust.max() <= 1000
    assert env.total_steps == worlds * steps
