"""The inputs of networks, compared with the positions that they describe."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import rlstack
from rlstack import envs
from rlstack.envs.arena.observation import TargetFeatures
from tests.conftest import REPO

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


# -- Random actions fare as in the original game: lengths of episodes, spawns and shots, with our own random numbers


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
