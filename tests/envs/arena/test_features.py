"""The inputs of networks, compared with the positions that they describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.envs.arena.observation import TargetFeatures

SPAWNER = 2  # place of the nearest one among the targets


def played(style: int, steps: int = 300) -> Any:
    env: Any = envs.make("arena", num_worlds=64, style=style, start_phases=[4], seed=3)
    generator = torch.Generator().manual_seed(0)
    root = env.reset()
    for _ in range(steps):
        action = torch.randint(env.rules.num_actions, (64,), generator=generator)
        _, root = env.step_and_maybe_reset(root.set("action", action))
    return env


def nearest_spawner(env: Any) -> Tensor:
    """Returns its place ``[W, 2]`` as seen from the player, in px."""
    state, first = env.worlds, env.rules.max_enemies
    offsets = state.targets[:, first:] - state.position[:, None]
    distance = offsets.norm(dim=0).masked_fill(state.target_health[first:] <= 0, torch.inf)
    return torch.gather(offsets, 1, distance.argmin(0).expand(2, 1, -1))[:, 0].T


@pytest.mark.slow
@pytest.mark.parametrize("style", [1, 2])
def test_the_nearest_spawner_is_where_it_is(style: int) -> None:
    env = played(style)
    spawner = TargetFeatures()(env._observation)[:, :45].unflatten(1, (9, 5))[..., SPAWNER]
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


def test_networks_take_them_unless_told_otherwise() -> None:
    env = envs.make("arena", num_worlds=2)
    sizes = []
    for inputs in ("features", "raw"):
        agent: Any = rlstack.make_agent("ppo", env, inputs=inputs)
        sizes.append(next(iter(agent.actor.parameters())).shape)
        assert agent.policy(explore=False)(env.reset())["action"].shape == (2,)
    assert [shape[1] for shape in sizes] == [TargetFeatures.size, 32]
    agent = rlstack.make_agent("ppo", envs.make("arena", num_worlds=2, observation="dict"))
    assert agent.policy(explore=False)(envs.make("arena", num_worlds=2, observation="dict").reset())[
        "action"
    ].shape == (2,)


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
