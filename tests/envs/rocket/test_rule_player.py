"""The rule-based player scores when it can, drives at the ball, and beats random actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack.envs.rocket.env import Rocket
from rlstack.envs.rocket.players import rule_controls
from tests.envs.rocket.fields import build, first_matches, lively, put, turned


def begun(worlds: int, **options: Any) -> Rocket:
    env = build(worlds, observation="compact", **options)
    env.reset()
    return env


@pytest.mark.slow
def test_it_drives_through_the_ball_to_the_goal() -> None:
    env = begun(3)
    # The car faces the goal behind the ball; the rival is out of the way.
    north = [[[0.0] * 2, [1.0] * 2, [0.0] * 2], [[-1.0] * 2, [0.0] * 2, [0.0] * 2], [[0.0] * 2, [0.0] * 2, [1.0] * 2]]
    for world, x in enumerate((0.0, 300.0, -300.0)):
        cars = {"position": [[x, 0.0], [1500.0, -3000.0], [17.0, 17.0]], "rotation": north}
        put(env, world, cars, position=[0.0, 3000.0, 93.15])
    result = first_matches(env, [1], 60)
    assert result["goals_for"].tolist() == [1, 1, 1]
    assert (result["time"] < 4).all()


@pytest.mark.slow
def test_it_is_first_at_the_ball_after_a_kick_off() -> None:
    result = first_matches(begun(5), [1], 50)
    assert (result["touches_blue"] >= 1).all() and not result["touches_orange"].any()


def test_it_treats_both_teams_alike() -> None:
    state = lively(32, 4, dtype=torch.float32)
    ours, theirs = rule_controls(state), rule_controls(turned(state))
    torch.testing.assert_close(ours.flip(1), theirs, rtol=0, atol=2e-3)
    assert (ours.abs() <= 1).all() and len(ours[1].unique()) > 5
    assert set(ours[5:].unique().tolist()) == {0.0, 1.0}


@pytest.mark.slow
def test_it_nearly_always_beats_random_actions() -> None:
    torch.manual_seed(0)
    result = first_matches(begun(24, max_seconds=60.0), [1], 900)
    assert result["goals_for"].mean() > 0.9
    assert result["goals_against"].sum() <= 1
