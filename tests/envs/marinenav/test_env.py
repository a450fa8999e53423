"""The TorchRL face: specs, end flags, automatic resets, statistics, options and their errors."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

import envs
from envs.marinenav.env import MarineNav
from envs.marinenav.episodes import make_episode
from envs.marinenav.generator import PUBLISHED_LEVELS
from tests.envs.marinenav.recorded import act, build, robot

CURRICULUM: dict[str, Any] = {
    "timesteps": [0, 300, 600],
    "num_robots": [2, 3, 5],
    "num_cores": [0, 1, 0],
    "num_obstacles": [0, 2, 4],
    "min_start_goal_dis": [20.0, 30.0, 40.0],
}


def ahead(td: TensorDict, rate: float = 1.0) -> Tensor:
    """Continuous action of robots that go straight."""
    return torch.full((*td["agents", "active"].shape, 2), rate, dtype=torch.float64)


def stay(td: TensorDict) -> Tensor:
    return ahead(td, 0.0)


def push(td: TensorDict) -> tuple[tuple[str, str], Tensor]:
    """Key and value of a random continuous action that tends forward."""
    return ("agents", "action"), torch.rand(*td["agents", "active"].shape, 2) * 1.2 - 0.2


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"continuous_actions": False},
        {"curriculum": CURRICULUM, "perception_noise": False},
        {"curriculum": CURRICULUM | {"timesteps": None}},
        {"dtype": torch.float64, "num_cores": 2, "num_robots": 1, "num_obstacles": 0},
    ],
)
def test_specs_hold(options: dict[str, Any]) -> None:
    env = envs.make("marinenav", num_worlds=6, **options)
    check_env_specs(env, seed=3)
    rollout = env.rollout(40, break_when_any_done=False)
    for t in range(40):
        assert env.observation_spec.is_in(rollout[:, t]["next"].select(*env.observation_spec.keys()))


def test_layout_is_as_documented() -> None:
    env = envs.make("marinenav", num_worlds=7, num_robots=4)
    td = env.rollout(2)
    assert td.batch_size == (7, 2)
    shapes = {"self": (7,), "objects": (5, 5), "mask": (5,)}
    for key, shape in shapes.items():
        assert td["agents", "observation", key].shape == (7, 2, 4, *shape)
    assert td["agents", "observation", "mask"].dtype == td["next", "agents", "active"].dtype == torch.bool
    for key in ("reward", "done", "terminated", "truncated"):
        assert td["next", "agents", key].shape == (7, 2, 4, 1)
        assert key == "reward" or td["next", key].shape == (7, 2, 1)
    for key in ("info", "colregs", "phi", "energy", "active"):
        assert td["next", "agents", key].shape == (7, 2, 4)
    assert env.state.pose.shape == env.state.velocity.shape == env.state.velocity_r.shape == (7, 4, 3)
    assert env.state.thrust.shape == (7, 4, 2)


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
        assert following["agents", "done"][0, :, 0].tolist() == [True, True, False]
        assert bool(following["done"]) is bool(following["terminated"]) is ends
        assert not following["truncated"]
        assert following["agents", "reward"][0, :, 0].tolist() == pytest.approx([-5.1, -5.1, -0.1])
        following = act(env, following, stay(td))
        assert following["agents", "info"].tolist() == [[4, 4, 0]]
        assert following["agents", "reward"][0, :2, 0].tolist() == [0, 0]


def test_who_has_arrived_is_seen_once_more_then_gone() -> None:
    vessels = [robot((20.0, 20.0)), robot((20.0, 30.0), (21.0, 31.0)), robot((30.0, 20.0))]
    env = build(1, 3)
    td = env.reset_to([make_episode(vessels)])
    assert td["agents", "observation", "mask"].sum(-1).tolist() == [[2, 2, 2]]
    td = act(env, td, ahead(td))
    assert td["agents", "info"].tolist() == [[0, 3, 0]]
    assert td["agents", "observation", "mask"].sum(-1).tolist() == [[2, 2, 2]]  # also its own last observation
    assert td["agents", "active"].tolist() == [[True, False, True]]
    where = env.state.pose[0, 1].clone()
    td = act(env, td, ahead(td))
    assert td["agents", "observation", "mask"].sum(-1).tolist() == [[1, 0, 1]]
    assert (env.state.pose[0, 1] == where).all() and (env.state.pose[0, 0, 0] > 20).all()
    for key in ("self", "objects"):
        assert (td["agents", "observation", key][0, 1] == 0).all()
    assert not td["done"]


def test_statistics_are_sums_over_the_episode() -> None:
    env = envs.make("marinenav", num_worlds=16, num_robots=3, min_start_goal_dis=10.0, max_steps=45, seed=4)
    # A bias forward, so that robots get somewhere.
    rollout = env.rollout(60, lambda td: td.set(*push(td)), break_when_any_done=False)
    reward, info = rollout["next", "agents", "reward"][..., 0], rollout["next", "agents", "info"]
    for world in range(16):
        done = rollout["next", "done"][world, :, 0].nonzero()[:, 0].tolist()
        last = done[0] if done else 59
        episode = rollout["next", "episode"][world, last]
        rewards, infos = reward[world, : last + 1], info[world, : last + 1]
        discount = 0.99 ** torch.arange(last + 1.0)[:, None]
        assert float(episode["return"]) == pytest.approx(float(rewards.sum(0).mean()), abs=1e-3)
        assert float(episode["discounted_return"]) == pytest.approx(float((discount * rewards).sum(0).mean()), abs=1e-3)
        assert int(episode["length"]) == last + 1
        acted = infos <= 3
        assert float(episode["time"]) == pytest.approx(0.5 * float(acted.sum(0).float().mean()), abs=1e-4)
        energy = rollout["next", "agents", "energy"][world, : last + 1].sum(0).mean()
        assert float(episode["energy"]) == pytest.approx(float(energy), rel=1e-5)
        assert bool(episode["collision"]) == bool((infos == 2).any())
        assert bool(episode["success"]) == bool((infos == 3).any(0).all())
    assert {1, 2, 3} <= set(info.unique().tolist())


# --- automatic resets


def pair_of_envs(**options: Any) -> tuple[MarineNav, MarineNav]:
    """Two equal envs in which worlds end often."""
    defaults: dict[str, Any] = {"min_start_goal_dis": 10.0, "end_on_collision": True, "max_steps": 12}
    defaults |= {"num_worlds": 24, "seed": 7}
    first, second = (envs.make("marinenav", **(defaults | options)) for _ in range(2))
    return first, second  # type: ignore[return-value]


def assert_equal(a: TensorDict, b: TensorDict) -> None:
    ours, theirs = a.flatten_keys("."), b.flatten_keys(".")
    assert set(ours.keys()) == set(theirs.keys())
    for key in ours.keys():  # noqa: SIM118
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("max_steps", [12, 1000])
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
    """Not even where one world or one robot makes a transposed tensor share the memory of the state."""
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


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    runs = []
    for seed in (1, 1, 2):
        env = envs.make("marinenav", num_worlds=8, seed=seed)
        torch.manual_seed(0)
        runs.append(env.rollout(20, break_when_any_done=False))
    assert_equal(runs[0], runs[1])
    assert not torch.equal(runs[0]["agents", "observation", "self"], runs[2]["agents", "observation", "self"])
    env.set_seed(1)
    torch.manual_seed(0)
    assert_equal(env.rollout(20, break_when_any_done=False), runs[0])


# --- curriculum


def test_levels_follow_the_schedule() -> None:
    """Levels change at resets only, and the steps of all parallel worlds count."""
    env = build(10, 1, curriculum=CURRICULUM, max_steps=4)
    td = env.reset()
    assert env.num_robots == 5
    seen = []
    for _ in range(80):
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


def test_the_published_levels_can_be_trained_on() -> None:
    lists = {name: [level[name] for level in PUBLISHED_LEVELS] for name in PUBLISHED_LEVELS[0]}
    env = envs.make("marinenav", num_worlds=12, curriculum=lists | {"timesteps": [k * 10**6 for k in range(6)]})
    env.reset()
    assert (env.worlds.present.sum(0) == 3).all() and env.num_robots == 5


# --- checkpoint


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("curriculum", [None, CURRICULUM])
def test_a_restored_env_continues_exactly(curriculum: dict[str, Any] | None, in_memory: bool, tmp_path: Path) -> None:
    def make(seed: int) -> EnvBase:
        options = {"curriculum": curriculum, "max_steps": 15, "end_on_collision": True}
        return envs.make("marinenav", num_worlds=12, seed=seed, **options)

    def run(env: EnvBase, td: TensorDict, seed: int) -> tuple[list[TensorDict], TensorDict]:
        generator = torch.Generator().manual_seed(seed)
        steps = []
        for _ in range(40):
            action = 2 * torch.rand(12, env.num_robots, 2, generator=generator) - 1
            step, td = env.step_and_maybe_reset(td.set(("agents", "action"), action))
            steps.append(step["next"])
        return steps, td

    env = make(seed=1)
    _, td = run(env, env.reset(), 0)
    saved = env.state_dict()
    torch.save(saved, tmp_path / "env.pt")
    uninterrupted, _ = run(env, td, 1)
    other = make(seed=2)
    run(other, other.reset(), 3)
    other.load_state_dict(saved if in_memory else torch.load(tmp_path / "env.pt", weights_only=True))
    resumed, _ = run(other, other.reset(), 1)
    for ours, theirs in zip(uninterrupted, resumed, strict=True):
        assert_equal(ours, theirs)
    other.reset()  # only the first reset after loading continues
    assert (other.worlds.steps == 0).all()


def test_loading_does_not_tie_two_envs_together() -> None:
    env, other = pair_of_envs()
    env.reset()
    other.load_state_dict(env.state_dict())
    other.reset()
    before = env.worlds.pose.clone()
    other.rollout(5, auto_reset=False, tensordict=other.reset())
    assert torch.equal(env.worlds.pose, before)


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_worlds": 0}, "num_worlds: 0"),
        ({"num_robots": 0}, "num_robots=0.*at least one robot"),
        ({"num_obstacles": -1}, "num_obstacles=-1.*no negative counts"),
        ({"min_start_goal_dis": 90}, "min_start_goal_dis: 90.* allowed 0 to 70 m"),
        ({"max_steps": -1}, "max_steps"),
        ({"discount": 1.5}, "discount"),
        ({"curriculum": CURRICULUM | {"robots": [1, 2, 3]}}, r"curriculum: unknown \['robots'\]; it takes"),
        ({"curriculum": {"num_robots": [1]}}, r"curriculum: missing \['min_start_goal_dis', "),
        ({"curriculum": CURRICULUM | {"num_robots": [1, 2]}}, "one entry per level, got lengths .*'num_robots': 2"),
        ({"curriculum": CURRICULUM | {"timesteps": [0, 5]}}, "one entry per level"),
        ({"curriculum": CURRICULUM | {"timesteps": [0, 9, 5]}}, r"timesteps: \[0, 9, 5\] must ascend from 0"),
        ({"curriculum": CURRICULUM | {"timesteps": [5, 6, 9]}}, r"timesteps: \[5, 6, 9\] must ascend from 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        envs.make("marinenav", **options)
    assert "\n" not in str(error.value)


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
        with pytest.raises(ValueError, match=message) as error:
            env.reset_to(episodes)
        assert "\n" not in str(error.value)
    assert env.reset_to([good, good])["agents", "active"].sum() == 2


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
