"""Successive episodes: automatic resets, repeated given episodes, and a restored env."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import make_episode
from tests.envs.marinenav.recorded import build, robot
from tests.envs.marinenav.test_env import ahead, stay
from tests.exhaustive import exhaustive


def pair_of_envs(**options: Any) -> tuple[MarineNav, MarineNav]:
    """Returns two equal envs in which worlds end often."""
    defaults: dict[str, Any] = {"min_start_goal_dis": 10.0, "end_on_collision": True, "max_steps": 12}
    defaults |= {"num_worlds": 24, "seed": 7}
    first, second = (envs.make("marinenav", **(defaults | options)) for _ in range(2))
    return first, second  # type: ignore[return-value]


def assert_equal(a: TensorDict, b: TensorDict) -> None:
    ours, theirs = a.flatten_keys("."), b.flatten_keys(".")
    assert set(ours.keys()) == set(theirs.keys())
    for key in ours.keys():  # noqa: SIM118
        assert torch.equal(ours[key], theirs[key]), key


@exhaustive("max_steps", [12, 1000])
def test_the_fast_path_does_what_torchrl_does(max_steps: int) -> None:
    env, plain = pair_of_envs(max_steps=max_steps, end_on_collision=max_steps < 1000, min_start_goal_dis=30.0)
    td, other = env.reset(), plain.reset()
    resets = 0
    for _ in range(40):
        action = env.action_spec.rand()
        td, other = td.update(action), other.update(action.clone())
        done_td, td = env.step_and_maybe_reset(td)
        done_other, other = EnvBase.step_and_maybe_reset(plain, other)
        assert_equal(done_td, done_other)
        assert_equal(td, other.exclude(("agents", "action")))
        done = done_td["next", "done"][:, 0]
        resets += int(done.sum())
        assert not td["done"].any() and not td["terminated"].any() and not td["truncated"].any()
        assert not td["agents", "done"][done].any()
        assert torch.equal(td["agents", "done"][~done], done_td["next", "agents", "done"][~done])
        assert (td["episode", "length"][done] == 0).all()
        assert (td["episode", "length"][~done] == done_td["next", "episode", "length"][~done]).all()
    assert (resets > 24) == (max_steps == 12)


def test_the_last_observation_is_that_of_the_world_that_ended() -> None:
    env, untouched = pair_of_envs(perception_noise=False)
    td, other = env.reset(), untouched.reset()
    ended = torch.zeros(24, dtype=torch.bool)
    for _ in range(13):
        action = env.action_spec.rand()
        step, td = env.step_and_maybe_reset(td.update(action))
        other = untouched.step(other.copy().update(action))["next"]
        here = ~ended
        assert_equal(step["next"][here], other[here])
        fresh = here & step["next", "done"][:, 0]
        if fresh.any():
            assert not torch.equal(
                td["agents", "observation", "self"][fresh], step["next", "agents", "observation", "self"][fresh]
            )
        ended |= step["next", "done"][:, 0]
        other = other.exclude("done", "terminated", "truncated")
    assert ended.all()


@pytest.mark.parametrize(("worlds", "robots"), [(24, 5), (1, 5), (24, 1), (1, 1)])
def test_what_was_handed_out_never_changes(worlds: int, robots: int) -> None:
    """This also holds for one world or one robot, where a transposed tensor may share the state's memory."""
    env, _ = pair_of_envs(num_worlds=worlds, num_robots=robots)
    td = env.reset()
    kept: list[tuple[TensorDict, TensorDict]] = []
    for _ in range(15):
        step, td = env.step_and_maybe_reset(td.update(env.action_spec.rand()))
        kept += [(step, copy.deepcopy(step)), (td, copy.deepcopy(td))]
        td = td.copy()
    assert any(step["next", "done"].any() for step, _ in kept[::2])
    for handed_out, then in kept:
        assert_equal(handed_out, then)


@pytest.mark.parametrize(("worlds", "robots"), [(3, 2), (1, 2), (3, 1), (1, 1)])
def test_the_end_of_an_episode_is_not_overwritten_by_the_next(worlds: int, robots: int) -> None:
    arrived = [robot((15.0 + 15 * k, 20.0), (16.0 + 15 * k, 20.0)) for k in range(robots)]
    env = build(worlds, robots)
    td = env.reset_to([make_episode(arrived)] * worlds)
    step, td = env.step_and_maybe_reset(td.set(("agents", "action"), stay(td)))
    assert step["next", "done"].all() and (step["next", "agents", "info"] == 3).all()
    assert not step["next", "agents", "active"].any() and td["agents", "active"].all()


def test_a_partial_reset_leaves_the_other_worlds_alone() -> None:
    env, _ = pair_of_envs()
    td = env.rollout(3, auto_reset=True)[:, -1]["next"]
    before = env.worlds.map(torch.clone)
    mask = torch.zeros(24, 1, dtype=torch.bool)
    mask[[2, 5]] = True
    env.reset(td.copy().set("_reset", mask))
    kept = ~mask[:, 0]
    for name, value in env.worlds.items():
        assert torch.equal(value[..., kept], getattr(before, name)[..., kept]), name
    assert env.worlds.steps[[2, 5]].tolist() == [0, 0]


def test_no_random_world_is_used_twice() -> None:
    env, _ = pair_of_envs(max_steps=2)
    td = env.reset()
    starts = [env.worlds.start[:, 0].T.clone()]
    for _ in range(30):
        step, td = env.step_and_maybe_reset(td.update(env.action_spec.zero()))
        starts.append(env.worlds.start[:, 0, step["next", "done"][:, 0]].T.clone())
    found = torch.cat(starts)
    assert len(found) > 200 and len(found.unique(dim=0)) == len(found)


def test_given_episodes_begin_again_and_a_full_reset_leaves_them() -> None:
    env = build(2, 2, max_steps=3)
    episode = make_episode([robot((20.0, 20.0), theta=0.5)])
    td = env.reset_to([episode, episode])
    first = td["agents", "observation", "self"].clone()
    for _ in range(4):
        _, td = env.step_and_maybe_reset(td.set(("agents", "action"), ahead(td)))
    assert torch.equal(td["agents", "observation", "self"], first)
    with pytest.raises(RuntimeError, match="given episodes"):
        env.state_dict()
    td = env.reset()
    assert td["agents", "active"].all() and (env.worlds.pose[0, 0] != 20).all()
    env.state_dict()


# --- checkpoint


def test_loading_does_not_tie_two_envs_together() -> None:
    env, other = pair_of_envs()
    env.reset()
    other.load_state_dict(env.state_dict())
    other.reset()
    before = env.worlds.pose.clone()
    other.rollout(5, auto_reset=False, tensordict=other.reset())
    assert torch.equal(env.worlds.pose, before)
