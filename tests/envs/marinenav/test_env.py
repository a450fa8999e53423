"""The TorchRL interface: specs, end flags, statistics, curriculum, options and their errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.envs.marinenav.episodes import make_episode
from tests.envs.marinenav.recorded import act, build, robot
from tests.refusals import refused

CURRICULUM: dict[str, Any] = {
    "timesteps": [0, 300, 600],
    "num_robots": [2, 3, 5],
    "num_cores": [0, 1, 0],
    "num_obstacles": [0, 2, 4],
    "min_start_goal_dis": [20.0, 30.0, 40.0],
}


def stay(td: TensorDict) -> Tensor:
    return torch.zeros(*td["agents", "active"].shape, 2, dtype=torch.float64)


# --- ends


def test_time_out_is_truncation_or_by_choice_termination() -> None:
    """The step after ``max_steps`` steps is the last one."""
    vessels = [robot((20.0, 20.0)), robot((40.0, 40.0), (41.0, 41.0))]  # the second has arrived before it starts
    for terminal in (False, True):
        env = build(1, 2, max_steps=3, timeout_is_terminal=terminal)
        td = env.reset_to([make_episode(vessels)])
        for step in range(4):
            following = act(env, td, stay(td))
            assert bool(following["done"]) == (step == 3)
            assert following["agents", "info"].tolist() == [[int(step == 3), 3 if step == 0 else 5]]
            assert following["agents", "done"][0, :, 0].tolist() == [step == 3, True]
            assert following["agents", "truncated"][0, :, 0].tolist() == [step == 3 and not terminal, False]
            assert following["agents", "terminated"][0, :, 0].tolist() == [step == 3 and terminal, True]
            td = following
        assert bool(td["truncated"]) is not terminal and bool(td["terminated"]) is terminal
        assert td["agents", "reward"][0, 0, 0] == pytest.approx(-0.1)


def test_a_collision_ends_the_world_only_when_asked_to() -> None:
    vessels = [robot((20.0, 20.0)), robot((20.0, 22.0)), robot((40.0, 40.0))]  # two touch
    for ends in (False, True):
        env = build(1, 3, end_on_collision=ends)
        td = env.reset_to([make_episode(vessels)])
        following = act(env, td, stay(td))
        assert following["agents", "info"].tolist() == [[2, 2, 0]]
        assert following["agents", "terminated"][0, :, 0].tolist() == [True, True, False]
        assert following["agents", "truncated"][0, :, 0].tolist() == [False, False, ends]  # truncated with its world
        assert following["agents", "done"][0, :, 0].tolist() == [True, True, ends]
        assert bool(following["done"]) is bool(following["terminated"]) is ends
        assert not following["truncated"]
        assert following["agents", "reward"][0, :, 0].tolist() == pytest.approx([-5.1, -5.1, -0.1])
        following = act(env, following, stay(td))
        assert following["agents", "info"].tolist() == [[4, 4, 0]]
        assert following["agents", "reward"][0, :2, 0].tolist() == [0, 0]


# --- curriculum


def test_levels_follow_the_schedule() -> None:
    """Levels change at resets only, and the steps of all parallel worlds count."""
    env = build(40, 1, curriculum=CURRICULUM, max_steps=4)
    td = env.reset()
    assert env.num_robots == 5
    seen = []
    for _ in range(20):
        step, td = env.step_and_maybe_reset(td.set(("agents", "action"), stay(td)))
        level = td["episode", "level"][:, 0].long()
        reset = step["next", "done"][:, 0]
        if reset.any():
            assert (level[reset] == sum(s <= env.total_steps for s in CURRICULUM["timesteps"]) - 1).all()
        assert torch.equal(level[~reset], step["next", "episode", "level"][~reset, 0].long())
        seen.append(level.unique().tolist())
        present = (td["agents", "info"] != -1).sum(-1)
        assert torch.equal(present, torch.tensor(CURRICULUM["num_robots"])[level])
        assert torch.equal(env.worlds.obstacle_present.sum(0), torch.tensor(CURRICULUM["num_obstacles"])[level])
    assert env.total_steps == 800
    assert seen[0] == [0] and seen[-1] == [2] and [1] in seen


def test_without_schedule_all_levels_are_equally_likely() -> None:
    env = envs.make("marinenav", num_worlds=3000, curriculum=CURRICULUM | {"timesteps": None})
    level = env.reset()["episode", "level"].long().flatten()
    assert ((torch.bincount(level, minlength=3) - 1000).abs() < 4 * (3000 * 2 / 9) ** 0.5).all()
    distance = (env.worlds.goal - env.worlds.start).norm(dim=0)
    asked = torch.tensor(CURRICULUM["min_start_goal_dis"])[level]
    assert ((distance >= asked - 1e-4) | ~env.worlds.present).all()


# --- errors


def test_bad_episodes_are_named() -> None:
    env = build(2, 2)
    good = make_episode([robot((20.0, 20.0))])
    crowd = make_episode([robot((20.0, 20.0)), robot((30.0, 30.0)), robot((40.0, 40.0))])
    wrong = copy.deepcopy(good)
    wrong["robots"]["m"] = []
    dull = copy.deepcopy(good)
    dull["robots"]["perception"]["r_kappa"] = [-1.0]
    for episodes, message in (
        ([good], "1 episodes for num_worlds=2: give one per world"),
        ([good, crowd], "an episode has 3 robots, the world was built for num_robots=2"),
        ([good, wrong], "robots.m must be a list of length 1"),
        ([good, dull], "r_kappa.* -1.0"),
    ):
        refused(ValueError, message, env.reset_to, episodes)
    assert env.reset_to([good, good])["agents", "active"].sum() == 2


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_full_reset_after_given_episodes_begins_random_ones(repeats: int) -> None:
    env: Any = envs.make("marinenav", num_worlds=2, num_robots=1, action_repeat=repeats)
    env.reset()
    env.load_state_dict(env.state_dict())  # whose worlds the given episodes replace
    given = env.reset_to([make_episode([robot((20.0, 20.0))])] * 2)["agents", "observation", "self"]
    assert not torch.equal(env.reset()["agents", "observation", "self"], given)
