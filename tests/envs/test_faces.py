"""Single worlds as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import envs
from envs.faces import FACES

ARENA, MARINENAV = FACES


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (ARENA, {}),
        (ARENA, {"style": 2, "observation": "dict", "start_phases": [4]}),
        (ARENA, {"frame_stack": 2, "action_repeat": 4}),
        (MARINENAV, {}),
        (MARINENAV, {"continuous_actions": False, "num_cores": 2}),
    ],
)
def test_gymnasium_finds_nothing_wrong(name: str, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(name, **options)
        check_env(env.unwrapped)
    env.close()


def test_it_plays_what_the_batched_world_plays() -> None:
    face = gymnasium.make(ARENA, style=2, max_steps=40)
    shown, info = face.reset(seed=3)
    batched: Any = envs.make("arena", num_worlds=1, style=2, max_steps=40)
    batched.set_seed(int(np.random.default_rng(3).integers(2**31)))
    root = batched.reset()
    assert np.array_equal(shown, root["observation"][0].numpy()) and info["length"] == 0
    for step in range(40):
        action = step % 6
        shown, reward, terminated, truncated, info = face.step(action)
        following = batched.step(root.set("action", torch.tensor([action])))["next"]
        assert np.array_equal(shown, following["observation"][0].numpy())
        assert reward == pytest.approx(float(following["reward"]))
        assert (terminated, truncated) == (False, step == 39)
        root = following.exclude("reward")
    assert info["length"] == 40 and info["is_success"] is False


def test_seeds_decide_and_without_one_episodes_differ() -> None:
    env = gymnasium.make(ARENA)
    first, _ = env.reset(seed=5)
    second, _ = env.reset()
    again, _ = env.reset(seed=5)
    after, _ = env.reset()
    assert np.array_equal(first, again) and np.array_equal(second, after) and not np.array_equal(first, second)
    other, _ = gymnasium.make(ARENA).reset()
    another, _ = gymnasium.make(ARENA).reset()
    assert not np.array_equal(other, another)


def test_the_world_of_one_robot_ends_with_it() -> None:
    env = gymnasium.make(MARINENAV, num_obstacles=0, min_start_goal_dis=5.0, max_steps=3)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(4)]
    assert ends == [(False, False)] * 3 + [(False, True)]  # the step after three is the time-out


@pytest.mark.parametrize("name", [ARENA, MARINENAV])
def test_pictures_change_as_the_world_moves(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    env.reset(seed=1)
    pictures = []
    for _ in range(3):
        pictures.append(np.asarray(env.render()))
        env.step(env.action_space.sample())
    assert all(picture.dtype == np.uint8 and picture.shape == pictures[0].shape for picture in pictures)
    assert pictures[0].shape[2] == 3 and not np.array_equal(pictures[0], pictures[2])
    without = gymnasium.make(name)
    without.reset()
    assert without.unwrapped.render() is None


@pytest.mark.filterwarnings("ignore:.*possible render_modes:UserWarning")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (MARINENAV, {"num_robots": 3}, "of a single agent, these options make 3"),
        (ARENA, {"style": 3}, "style: 3 is unknown"),
        (ARENA, {"styel": 2}, "did you mean 'style'"),
        (ARENA, {"render_mode": "ansi"}, "render_mode: 'ansi' is unknown"),
    ],
)
def test_what_is_impossible_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make(name, **options)


@pytest.mark.slow
def test_gymnasium_finds_them_by_itself() -> None:
    """As in the worker processes of other libraries, which import nothing of ours first."""
    code = "import gymnasium; print(gymnasium.make('envs:rlstack/Arena-v0').reset(seed=0)[0].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "(32,)"


@pytest.mark.slow
def test_stable_baselines_learns_in_them() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    for name, policy in ((ARENA, "MlpPolicy"), (MARINENAV, "MultiInputPolicy")):
        model = sb3.PPO(policy, name, n_steps=32, batch_size=32, n_epochs=1, seed=0)
        model.learn(64)
        assert model.num_timesteps == 64
