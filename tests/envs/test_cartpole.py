"""CartPole has Gymnasium's rules, and the common behaviour of worlds."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import ImageColor
from torch.testing import assert_close

import rlstack
from rlstack import envs
from rlstack.config import load_group
from rlstack.envs.cartpole.env import POLE, step
from rlstack.evaluation.evaluator import evaluate
from tests.exhaustive import exhaustive

WORLDS = 4
BALANCE = torch.tensor([0.1, 0.2, 1.0, 0.3], dtype=torch.float64)


@exhaustive(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_every_step_is_gymnasiums(dtype: torch.dtype, tolerance: float) -> None:
    """Half of the poles are pushed at random and fall; the others are balanced until the time limit.

    Each step starts from the same states: rounding errors would double every nine steps, as a pole is unstable.
    """
    assert envs.options_of("cartpole")["max_steps"].default == gymnasium.spec("CartPole-v1").max_episode_steps
    world = envs.make("cartpole", num_worlds=WORLDS, dtype=dtype, seed=3, max_steps=60)
    theirs: list[Any] = [gymnasium.make("CartPole-v1", max_episode_steps=60) for _ in range(WORLDS)]
    for environment in theirs:
        environment.reset()
    root, generator, falls, time_outs = world.reset(), torch.Generator().manual_seed(0), 0, 0
    lengths = [0] * WORLDS
    for _ in range(66):
        states = root["observation"].double()
        action = (states @ BALANCE > 0).long()
        action[::2] = torch.randint(2, (WORLDS // 2,), generator=generator)
        stepped, root = world.step_and_maybe_reset(root.set("action", action))
        for k, environment in enumerate(theirs):
            environment.unwrapped.state = states[k].numpy()
            _, reward, terminated, truncated, _ = environment.step(int(action[k]))
            ours = stepped["next"][k]
            np.testing.assert_allclose(ours["observation"], environment.unwrapped.state, rtol=0, atol=tolerance)
            flags = [bool(ours[flag]) for flag in ("terminated", "truncated", "done")]
            assert flags == [terminated, truncated, terminated or truncated] and float(ours["reward"]) == reward
            if flags[2]:
                assert root["observation"][k].abs().max() <= 0.05
                environment.reset()
            lengths[k] = 0 if flags[2] else lengths[k] + 1
            assert float(root["episode", "return"][k]) == float(root["episode", "length"][k]) == lengths[k]
            falls, time_outs = falls + terminated, time_outs + truncated
    assert falls > 3 and time_outs == WORLDS // 2


def test_a_step_with_its_restarts_compiles_as_a_whole() -> None:
    env = envs.make("cartpole", num_worlds=5, max_steps=3)
    env.reset()
    fast: Any = torch.compile(step, backend="aot_eager", fullgraph=True)
    starts = env._starts(5)
    for length in (1.0, 2.0):
        given = env.state, torch.full((5, 1), length), torch.tensor([0, 1, 0, 1, 1]), starts, env._constants
        wanted = step(*given)
        assert wanted[3].all() == (length == 2) and all(map(torch.equal, fast(*given), wanted))
        assert wanted[6] is not wanted[7] and wanted[6].equal(starts if length == 2 else wanted[0])
        assert wanted[8].tolist() == [[0.0 if length == 2 else length + 1]] * 5 and not torch.stack(wanted[9:]).any()


@pytest.mark.slow
def test_compiled_worlds_step_as_others_do() -> None:
    fast, plain = (envs.make("cartpole", num_worlds=64, max_steps=30, compiled=compiled) for compiled in (True, False))
    root, _ = fast.reset(), plain.reset()
    fast, ended = copy.deepcopy(fast), 0
    for _ in range(60):
        root.set("action", torch.randint(2, (64,)))
        before = plain.state, plain.length = fast.state, fast.length
        wanted = plain.step(root.clone())["next"]
        assert_close(fast.step(root.clone())["next"], wanted)
        fast.state, fast.length = before
        stepped, root = fast.step_and_maybe_reset(root)
        assert_close(stepped["next"], wanted)
        done = wanted["done"].squeeze(-1)
        assert root["observation"][~done].equal(stepped["next", "observation"][~done])
        assert root["observation"][done].abs().le(0.05).all() and not root["done"].any()
        assert root["episode", "length"].eq(0).squeeze(-1).equal(done)
        ended += int(done.sum())
    assert ended > 100 and not fast._whole_step.failed


def test_the_picture_of_a_mirrored_state_is_mirrored() -> None:
    world = envs.make("cartpole", num_worlds=2)
    world.state = torch.tensor([[1.2, 0.0, 0.1, 0.0], [0.0] * 4])
    picture = world.render()
    assert picture.shape == (320, 640, 3) and picture.dtype == np.uint8
    pole = np.argwhere((abs(picture.astype(int) - ImageColor.getrgb(POLE)).sum(-1) < 30).any(0))
    assert 320 + 120 * 1.2 < pole.mean() < 320 + 120 * 1.4  # the cart is 1.2 m to the right, and the pole leans there
    world.state = -world.state
    flipped = world.render()[:, ::-1]
    assert (abs(picture.astype(int) - flipped).max(-1) > 60).mean() < 0.005  # edges fall a pixel to either side


@pytest.mark.slow
def test_the_recipe_solves_it() -> None:
    recipe = load_group("recipe", "cartpole_ppo")
    env, total = envs.make("cartpole", **recipe["env"]), recipe["total_frames"]
    agent = rlstack.make_agent("ppo", env, total, **recipe["agent"])
    frames = 0
    for batch in rlstack.make_collector(env, agent.policy(explore=True), agent.config.steps_per_batch):
        frames += batch.numel()
        agent.learn(rlstack.flatten_agents(batch, None), frames)
        if frames >= total:
            break
    result = evaluate(agent.policy(explore=False), "cartpole", {}, episodes=20, seed=7)
    assert result.summary()["eval/return"] >= 475
