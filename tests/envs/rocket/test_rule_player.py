"""The rule-based player scores when it can, drives at the ball, and beats random actions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack import envs
from rlstack.envs.rocket.actions import chosen_for
from rlstack.envs.rocket.players import rule_controls
from tests.envs.rocket.fields import lively
from tests.envs.rocket.test_rocket_env import turned


def play(worlds: int, steps: int, prepare: Any = None, **options: Any) -> dict[str, torch.Tensor]:
    """Plays rules as blue against random actions: the statistics of every world's first match."""
    env: Any = envs.make("rocket", num_worlds=worlds, observation="compact", **options)
    root = env.reset()
    if prepare is not None:
        prepare(env)
    first: dict[str, torch.Tensor] = {}
    over = torch.zeros(worlds, dtype=torch.bool)
    for _ in range(steps):
        action = chosen_for("multi", rule_controls(env.worlds.world))
        action[:, 1:] = env.full_action_spec["agents", "action"].rand()[:, 1:]
        root["agents", "action"] = action
        root, following = env.step_and_maybe_reset(root)
        now = {name: value[:, 0] for name, value in root["next", "episode"].items()}
        first = {name: torch.where(over, first.get(name, value), value) for name, value in now.items()}
        over |= root["next", "done"][:, 0]
        if over.all():
            break
        root = following
    return first


@pytest.mark.slow
def test_it_drives_through_the_ball_to_the_goal() -> None:
    def set_shots(env: Any) -> None:
        world = env.worlds.world
        position = world.cars.position.clone()
        position[:, 0] = torch.tensor([[0.0, 300.0, -300.0], [1500.0, 1500.0, 1500.0], [17.0, 17.0, 17.0]])
        position[1, 1] = -3000.0  # the rival is out of the way
        east = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        rotation = world.cars.rotation.clone()
        rotation[:, :, 0] = east[..., None]
        ball = world.ball.replace(position=torch.tensor([[0.0, 0.0, 0.0], [3000.0] * 3, [93.15] * 3]))
        cars = world.cars.replace(position=position, rotation=rotation)
        env.worlds.world = world.replace(cars=cars, ball=ball)

    result = play(3, 60, set_shots)
    assert result["goals_for"].tolist() == [1, 1, 1]
    assert (result["time"] < 4).all()


@pytest.mark.slow
def test_it_is_first_at_the_ball_after_a_kick_off() -> None:
    result = play(5, 50)
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
    result = play(24, 900, max_seconds=60.0)
    assert result["goals_for"].mean() > 0.9
    assert result["goals_against"].sum() <= 1
