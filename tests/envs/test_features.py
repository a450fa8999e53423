"""The inputs of networks, compared with the positions that they describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.envs.arena.observation import TargetFeatures
from rlstack.envs.rocket.observation import DriverFeatures

SPAWNER = 2  # place of the nearest one among the targets


def played(name: str, worlds: int, steps: int, **options: Any) -> tuple[Any, Tensor]:
    """Returns a world after some random actions, and the observation that it shows."""
    env: Any = envs.make(name, num_worlds=worlds, seed=3, **options)
    root = env.reset()
    for _ in range(steps):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
    return env, (root if name == "arena" else root["agents"])["observation"]


def nearest_spawner(env: Any) -> Tensor:
    """Returns its place ``[W, 2]`` as seen from the player, in px."""
    state, first = env.worlds, env.rules.max_enemies
    offsets = state.targets[:, first:] - state.position[:, None]
    distance = offsets.norm(dim=0).masked_fill(state.target_health[first:] <= 0, torch.inf)
    return torch.gather(offsets, 1, distance.argmin(0).expand(2, 1, -1))[:, 0].T


@pytest.mark.slow
@pytest.mark.parametrize("style", [1, 2])
def test_the_nearest_spawner_is_where_it_is(style: int) -> None:
    env, seen = played("arena", 64, 300, style=style, start_phases=[4])
    spawner = TargetFeatures()(seen)[:, :45].unflatten(1, (9, 5))[..., SPAWNER]
    place, heading = nearest_spawner(env), env.worlds.rotation.float()
    assert torch.allclose(spawner[:, 5:7] * 1000, place, atol=0.1)
    aside = place[:, 1] * heading.cos() - place[:, 0] * heading.sin()
    assert torch.allclose(spawner[:, 4], (aside / 30).tanh(), atol=5e-3)
    assert torch.allclose(spawner[:, 7:], (place / 30).tanh(), atol=5e-3)
    assert torch.allclose(spawner[:, 1], 1 / (1 + place.norm(dim=1) / 100), atol=1e-4)


def test_who_is_not_there_leaves_zeros() -> None:
    observation = envs.make("arena", num_worlds=2).reset()["observation"]  # one spawner, nobody else
    features = TargetFeatures()(observation)
    assert features.shape == (2, TargetFeatures.size)
    targets = features[:, :45].unflatten(1, (9, 5))
    assert targets[..., [0, 1, 3, 4]].abs().max() == 0 and bool((targets[:, 0, SPAWNER] == 1).all())


@pytest.mark.parametrize(
    ("name", "size", "raw", "shape"),
    [("arena", TargetFeatures.size, 32, (2,)), ("rocket", DriverFeatures("rlbot180", 2).size, 180, (2, 2, 8))],
)
def test_networks_take_them_unless_told_otherwise(name: str, size: int, raw: int, shape: tuple[int, ...]) -> None:
    env = envs.make(name, num_worlds=2)
    for inputs, taken in (({}, size), ({"inputs": "raw"}, raw)):
        agent: Any = rlstack.make_agent("ppo", env, **inputs)
        assert next(iter(agent.actor.parameters())).shape[1] == taken
        acted = agent.policy(explore=False)(env.reset())
        assert (acted if name == "arena" else acted["agents"])["action"].shape == shape


def test_a_structured_observation_is_taken_as_it_is() -> None:
    env = envs.make("arena", num_worlds=2, observation="dict")
    assert rlstack.make_agent("ppo", env).policy(explore=False)(env.reset())["action"].shape == (2,)


def test_stacked_observations_tell_what_has_changed() -> None:
    env: Any = envs.make("arena", num_worlds=8, style=2, start_phases=[4], seed=3)
    stacked: Any = envs.make("arena", num_worlds=8, style=2, start_phases=[4], seed=3, frame_stack=3)
    single, features = TargetFeatures(), stacked.input_features()
    seen, roots = [], [env.reset(), stacked.reset()]
    for step in range(40):
        seen.append(single(roots[0]["observation"]))
        roots = [
            world.step_and_maybe_reset(root.set("action", torch.full((8,), 1 + step // 10)))[1]
            for world, root in zip((env, stacked), roots, strict=True)
        ]
    newest, older, recent = features(roots[1]["observation"]).chunk(3, -1)
    now = single(roots[0]["observation"])
    assert features.size == 3 * TargetFeatures.size and torch.equal(newest, now)
    assert torch.allclose(older, (10 * (now - seen[-2])).tanh(), atol=1e-5)
    assert torch.allclose(recent, (10 * (now - seen[-1])).tanh(), atol=1e-5) and recent.abs().max() > 0.1


# -- Rocket's ----------------------------------------------------------------------------------------------------------


BALL = 18  # where the ball's nine numbers begin


def driven(kind: str, blue: int = 1, orange: int = 1) -> tuple[Any, Tensor]:
    return played("rocket", 32, 20, blue=blue, orange=orange, observation=kind, kick_offs=0.0, random_states=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rlbot180", "compact"])
def test_the_ball_is_where_it_is_in_the_axes_of_the_car(kind: str) -> None:
    env, seen = driven(kind)
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
    env, seen = driven(kind)
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
    env, seen = driven(kind, blue, orange)
    features = env.input_features()
    out = features(seen)
    assert out.shape == (*seen.shape[:2], features.size) and bool(out.isfinite().all())
    assert out.abs().max() < 10


@pytest.mark.slow
def test_absent_cars_leave_zeros() -> None:
    _, seen = driven("rlbot180", 2, 1)
    features = DriverFeatures("rlbot180", 4)
    rivals = features(seen)[:, :2, features.size - 50 - 14 - 22 : features.size - 50 - 14]  # of blue's two cars
    assert rivals[..., 11:].abs().max() == 0 and bool((rivals[..., 0] == 1).all())
