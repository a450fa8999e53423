"""The inputs of networks, compared with the world that they describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.envs.rocket.observation import DriverFeatures

BALL = 18  # where the ball's nine numbers begin


def played(kind: str, blue: int = 1, orange: int = 1) -> tuple[Any, Tensor]:
    env: Any = envs.make(
        "rocket", num_worlds=32, blue=blue, orange=orange, observation=kind, kick_offs=0.0, random_states=1.0, seed=3
    )
    root = env.reset()
    for _ in range(20):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    return env, root["agents", "observation"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
def test_the_ball_is_where_it_is_in_the_axes_of_the_car(kind: str) -> None:
    env, seen = played(kind)
    state = env.worlds.world
    away = state.ball.position[:, None] - state.cars.position  # [3, C, W], uu
    local = (state.cars.rotation * away).sum(1)  # rows of the rotation are forward, right, up
    features = env.input_features()(seen).permute(2, 1, 0)
    distance = away.norm(dim=0)
    assert torch.allclose(features[BALL : BALL + 3], local / distance, atol=2e-3)
    assert torch.allclose(features[BALL + 5 : BALL + 8] * 4096, local, atol=0.5)
    assert torch.allclose(features[BALL + 8] * 4096, distance, rtol=1e-3, atol=8.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
def test_a_turned_world_looks_the_same(kind: str) -> None:
    """A turn by pi about the vertical changes only the axes of the pitch."""
    env, seen = played(kind)
    features = env.input_features()(seen)
    turned = seen.clone()
    turn = [axis for first in (0, 3, 6, 9, 12, 15, 22, 25, 28, 31, 34) for axis in (first, first + 1)]
    turned[..., turn] *= -1
    if kind == "rlbot180":
        turned[..., [37, 38]] *= -1
    other = env.input_features()(turned)
    assert torch.allclose(other[..., :9], features[..., :9], atol=1e-5)  # own motion, tilt
    assert torch.allclose(other[..., BALL : BALL + 27], features[..., BALL : BALL + 27], atol=1e-4)
    goals = features[..., BALL + 27 : BALL + 45].unflatten(-1, (2, 9))
    assert torch.allclose(other[..., BALL + 27 : BALL + 45].unflatten(-1, (2, 9)), goals.flip(-2), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
@pytest.mark.parametrize(("blue", "orange"), [(1, 1), (2, 1), (3, 3)])
def test_they_are_of_order_one_and_as_many_as_said(kind: str, blue: int, orange: int) -> None:
    env, seen = played(kind, blue, orange)
    features = env.input_features()
    out = features(seen)
    assert out.shape == (*seen.shape[:2], features.size) and bool(out.isfinite().all())
    assert out.abs().max() < 10


@pytest.mark.slow
def test_absent_cars_leave_zeros() -> None:
    _, seen = played("rlbot180", 2, 1)
    features = DriverFeatures("rlbot180", 4)
    rivals = features(seen)[:, :2, features.size - 50 - 14 - 22 : features.size - 50 - 14]  # of blue's two cars
    assert rivals[..., 11:].abs().max() == 0 and bool((rivals[..., 0] == 1).all())


def test_networks_take_them_unless_told_otherwise() -> None:
    env = envs.make("rocket", num_worlds=2)
    sizes = []
    for inputs in ("features", "raw"):
        agent: Any = rlstack.make_agent("ppo", env, inputs=inputs)
        sizes.append(next(iter(agent.actor.parameters())).shape[1])
        assert agent.policy(explore=False)(env.reset())["agents", "action"].shape == (2, 2, 8)
    assert sizes == [DriverFeatures("rlbot180", 2).size, 180]
