"""The deep sea: only the diver who never turns left finds the treasure."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from experiments.reference_scores.deep_sea import DeepSea


def test_it_keeps_gymnasiums_rules() -> None:
    check_env(gymnasium.make("experiments.reference_scores.deep_sea:DeepSea-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("actions", "expected"), [([1] * 4, 0.99), ([0] * 4, 0.0), ([1, 1, 1, 0], -0.0075), ([0, 1, 1, 1], -0.0075)]
)
def test_a_step_to_the_right_costs_and_the_last_corner_pays(actions: list[int], expected: float) -> None:
    sea = DeepSea(size=4)
    sea.reset()
    steps = [sea.step(np.int64(action)) for action in actions]
    assert sum(step[1] for step in steps) == pytest.approx(expected)
    assert [step[2] for step in steps] == [False, False, False, True]
    assert all(step[0].sum() == 1 for step in steps[:-1])
