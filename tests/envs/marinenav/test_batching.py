"""Worlds of one batch do not notice each other, run for long, and go on where they ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, assert_close
from torch import Tensor

from rlstack import envs
from rlstack.envs.foundation import tensors
from rlstack.envs.marinenav.env import MarineNav
from rlstack.envs.marinenav.episodes import Config, default_robot, make_episode
from rlstack.envs.marinenav.noise import PublishedNoise
from tests.envs.marinenav.recorded import act, build, lively_episodes, robot
from tests.exhaustive import exhaustive

STEPS = 24
assert_same = partial(assert_close, rtol=0, atol=1e-12, equal_nan=False)


def random_actions(shape: Sequence[int], continuous: bool, steps: int = STEPS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not continuous:
        return torch.randint(25, (steps, *shape), generator=generator)
    # Actions are held for some steps, so that robots make progress.
    rates = 3 * torch.rand(steps // 6 + 1, *shape, 2, generator=generator, dtype=torch.float64) - 1
    return rates.repeat_interleave(6, 0)[:steps]


def run(env: MarineNav, td: TensorDict, actions: Tensor) -> TensorDict:
    """Returns the entry "next" of each step, ``[T, W]``; no world restarts."""
    steps = []
    for action in actions:
        td = act(env, td, action.to(env.float_dtype) if env.options.continuous else action)
        steps.append(td.clone())
    return torch.stack(steps)


def world_of(result: TensorDict, world: int, robots: int) -> TensorDict:
    """Returns one world of a run ``[T, W]`` as if it were alone, without padding."""
    part = result[:, world : world + 1].clone()
    part["agents"] = part["agents"][:, :, :robots]
    return part


def counts(episodes: list[Config]) -> list[int]:
    return [episode["env"]["num_robots"] for episode in episodes]


def published_noise(episodes: list[Config], worlds: Sequence[int]) -> PublishedNoise:
    seeds = [[100 * world + robot for robot in range(counts(episodes)[world])] for world in worlds]
    return PublishedNoise(seeds, dtype=torch.float64)


@exhaustive("noisy", [False, True])
@exhaustive("continuous", [True, False])
def test_different_episodes_share_a_batch(continuous: bool, noisy: bool) -> None:
    episodes = lively_episodes()
    options = {"continuous_actions": continuous, "perception_noise": noisy}
    batch = build(len(episodes), 6, **options)
    if noisy:
        batch.set_noise_source(published_noise(episodes, range(len(episodes))))
    actions = random_actions((len(episodes), 6), continuous)
    start = batch.reset_to(episodes)
    together = run(batch, start, actions)
    for world, (episode, robots) in enumerate(zip(episodes, counts(episodes))):
        alone = build(1, robots, **options)
        if noisy:
            alone.set_noise_source(published_noise(episodes, [world]))
        first = alone.reset_to([episode])
        assert_same(first[None], world_of(start[None], world, robots))
        assert_same(run(alone, first, actions[:, world : world + 1, :robots]), world_of(together, world, robots))
    assert len(together["agents", "info"].unique()) >= 4  # something happened
    for world, robots in enumerate(counts(episodes)):
        assert_padding(together[:, world]["agents"][:, robots:])
    differ = together["episode", "return"][-1, :, 0]
    assert len(differ.unique()) == len(episodes)


def assert_padding(agents: TensorDict) -> None:
    """Checks that robots that a world does not have are inert and marked."""
    assert (agents["info"] == -1).all() and not agents["active"].any()
    assert agents["done"].all() and agents["terminated"].all() and not agents["truncated"].any()
    for key in ("reward", "phi", "energy", "colregs"):
        assert (agents[key] == 0).all(), key
    for key in ("self", "objects", "mask"):
        assert (agents["observation", key] == 0).all(), key


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [True, False])
def test_random_worlds_and_episode_files_follow_the_same_rules(continuous: bool) -> None:
    """Recordings are replayed through episode files; training runs on random worlds with shared constants."""
    options = {"num_obstacles": 4, "num_cores": 3, "min_start_goal_dis": 30.0, "continuous_actions": continuous}
    random, replayed = build(16, 4, **options), build(16, 4, **options)
    td = random.reset()
    actions = random_actions((16, 4), continuous, steps=100)
    again = replayed.reset_to([as_episode(random, world) for world in range(16)])
    replayed.worlds.velocity.zero_()  # a random start ignores the current, see the episode format
    assert_same(td.select(("agents", "active"))[None], again.select(("agents", "active"))[None])
    ours, theirs = run(random, td, actions), run(replayed, again, actions)
    assert_same(ours, theirs, atol=1e-9)
    infos = set(ours["agents", "info"].unique().tolist())
    assert infos >= {0, 2, 4}


def as_episode(env: MarineNav, world: int) -> Config:
    state = env.worlds.map(lambda value: value[..., world])
    robots = [
        default_robot(start, goal, theta)
        for start, goal, theta in zip(state.start.T.tolist(), state.goal.T.tolist(), state.pose[2].tolist())
    ]
    return make_episode(robots, state.cores.T.tolist(), state.obstacles.T.tolist())


@pytest.mark.slow
def test_single_precision_follows_double_precision() -> None:
    """50 steps (25 s): poses within 1e-3 m and rad, observations within 1e-2, the same events."""
    double = build(64, 5, num_obstacles=4)
    td = double.reset()
    single = build(64, 5, dtype=torch.float32)
    first = single.reset_to([as_episode(double, world) for world in range(64)])
    assert first["agents", "observation", "self"].dtype == torch.float32
    actions = random_actions((64, 5), continuous=True, steps=50)
    exact, rough = run(double, td, actions), run(single, first, actions)
    same = (exact["agents", "info"] == rough["agents", "info"]).all(-1).all(0)  # an event may occur in another step
    assert same.sum() >= 62
    exact, rough = exact[:, same], rough[:, same]
    for key in ("self", "objects"):
        difference = (exact["agents", "observation", key] - rough["agents", "observation", key].double()).abs()
        # At the edge of the sensors' range, or for two equally near objects, a slot may hold another object for a step.
        assert (difference > 1e-2).double().mean() < (1e-4 if key == "objects" else 1e-12), key
    assert ((exact["agents", "reward"] - rough["agents", "reward"]).abs() > 1e-3).double().mean() < 1e-3
    assert (double.state.pose - single.state.pose)[same].abs().amax() < 1e-3


# -- Many random steps: all numbers stay finite, and no robot is lost ------------------------------------------------


LEVELS = {
    "timesteps": None,
    "num_robots": [1, 3, 5],
    "num_cores": [0, 8, 2],
    "num_obstacles": [0, 6, 8],
    "min_start_goal_dis": [30.0, 30.0, 40.0],
}


@pytest.mark.parametrize(
    ("worlds", "steps"), [(128, 60), pytest.param(4096, 245, marks=pytest.mark.slow, id="a-million")]
)
@exhaustive("continuous", [True, False])
def test_random_steps_stay_finite(worlds: int, steps: int, continuous: bool) -> None:
    env = envs.make(
        "marinenav", num_worlds=worlds, curriculum=LEVELS, continuous_actions=continuous, max_steps=50, seed=5
    )
    td = env.reset()
    generator = torch.Generator().manual_seed(0)
    lead = (worlds, env.num_robots)
    ended = 0
    for step in range(steps):
        if step % 8 == 0:  # held, so that robots make progress
            rates = 4 * torch.rand(*lead, 2, generator=generator) - 1.5
            action = rates if continuous else torch.randint(25, lead, generator=generator)
        done_td, td = env.step_and_maybe_reset(td.set(("agents", "action"), action))
        following = done_td["next"]
        for name, value in env.worlds.items():
            assert value.isfinite().all(), name
        for key, value in following.items(True, True):
            assert not value.dtype.is_floating_point or value.isfinite().all(), key
        ended += int(following["done"].sum())
        lost = following["agents", "done"][..., 0] & following["agents", "active"]
        assert not (lost & (following["agents", "info"] != 1)).any()
    assert ended >= worlds  # by time-out at the latest
    theta = env.worlds.pose[2]
    assert (theta >= 0).all() and (theta < 2 * math.pi).all()
    assert env.worlds.thrust.min() >= -500 and env.worlds.thrust.max() <= 1000
    assert env.total_steps == worlds * steps


# -- Successive episodes: automatic resets, repeated given episodes, and a restored env ------------------------------


def pair_of_envs(**options: Any) -> tuple[MarineNav, MarineNav]:
    """Returns two equal envs in which worlds end often."""
    defaults: dict[str, Any] = {"min_start_goal_dis": 10.0, "end_on_collision": True, "max_steps": 12}
    defaults |= {"num_worlds": 24, "seed": 7}
    first, second = (envs.make("marinenav", **(defaults | options)) for _ in range(2))
    return first, second  # type: ignore[return-value]


def test_no_random_world_is_used_twice() -> None:
    env, _ = pair_of_envs(max_steps=2)
    td = env.reset()
    starts = [env.worlds.start[:, 0].T.clone()]
    for _ in range(30):
        step, td = env.step_and_maybe_reset(td.update(env.action_spec.zero()))
        starts.append(env.worlds.start[:, 0, step["next", "done"][:, 0]].T.clone())
    found = torch.cat(starts)
    assert len(found) > 200 and len(found.unique(dim=0)) == len(found)


@pytest.mark.parametrize("free", [tensors.FREE, set()], ids=["", "as on a GPU"])
def test_given_episodes_begin_again_and_a_full_reset_leaves_them(
    free: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "FREE", free)
    env = build(2, 2, max_steps=3)
    episode = make_episode([robot((20.0, 20.0), theta=0.5)])
    td = env.reset_to([episode, episode])
    first = td["agents", "observation", "self"].clone()
    for step in range(4):
        env.make_ready(1)
        _, td = env.step_and_maybe_reset(td.set(("agents", "action"), torch.ones(2, 2, 2, dtype=torch.float64)))
        assert torch.equal(td["agents", "observation", "self"], first) == (step == 3)
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
