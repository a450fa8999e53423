"""The distance to the nearest reported object, on which the caution of agents may depend."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from rlstack import envs

HALF_DIAGONAL = 0.5 * math.hypot(5.0, 2.5)


def seen(*objects: tuple[float, float, float], slots: int = 5) -> TensorDict:
    """Returns an observation of objects given as x, y and radius."""
    rows = torch.zeros(slots, 5)
    for slot, (x, y, radius) in enumerate(objects):
        rows[slot] = torch.tensor([x, y, 9.0, -9.0, radius])
    mask = torch.arange(slots) < len(objects)
    return TensorDict({"self": torch.full((7,), 3.0), "objects": rows, "mask": mask})


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32])
def test_distance_is_from_hull_to_hull(mask_dtype: torch.dtype) -> None:
    nearest = envs.make("marinenav", num_worlds=1).nearest_obstacle
    cases = [
        (seen((3.0, 4.0, 1.0), (0.0, 20.0, 0.5)), 5 - 1 - HALF_DIAGONAL),
        (seen((30.0, 40.0, 45.0), (0.0, 9.0, 0.5)), 5 - HALF_DIAGONAL),  # a large one further away
        (seen((1.0, 0.0, 1.0)), -HALF_DIAGONAL),  # overlapping
        (seen(), math.inf),  # empty slots are zeros, not near objects
    ]
    together = torch.stack([observation for observation, _ in cases])
    together["mask"] = together["mask"].to(mask_dtype)
    expected = torch.tensor([value for _, value in cases])
    torch.testing.assert_close(nearest(together), expected)
    torch.testing.assert_close(nearest(together.expand(3, 4)), expected.expand(3, 4))


def test_it_takes_the_worlds_own_observations() -> None:
    env = envs.make("marinenav", num_worlds=6, num_robots=3, perception_noise=False)
    td = env.reset()
    distance = env.nearest_obstacle(td["agents", "observation"])
    assert distance.shape == (6, 3) and (distance.isinf() == ~td["agents", "observation", "mask"].any(-1)).all()
    assert (distance[distance.isfinite()] > 0).all(), "nobody starts inside of something"
