"""Any TorchRL environment as a world: rows, ends, actions, observations, groups, seeds, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs.utils import check_env_specs

import rlstack
from rlstack import envs
from rlstack.envs.torchrl.env import observation_form
from rlstack.evaluation.evaluator import evaluate
from rlstack.runs.worlds import build_world
from tests.conftest import Command
from tests.envs import torchrl_toys
from tests.evaluation.scripted import Scripted
from tests.refusals import refused

TOYS = torchrl_toys.__name__


def door(toy: str = "Counter", **options: Any) -> Any:
    kwargs = {key: options.pop(key) for key in options.keys() - envs.options_of("torchrl").keys()}
    return envs.make("torchrl", id=f"{TOYS}:{toy}", kwargs=kwargs, **options)


def columns(batch: TensorDictBase, *key: str) -> list[list[float]]:
    """Returns ``[W, T, 1]`` as lists of numbers, one list per row."""
    return batch.get(key)[..., 0].tolist()


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"num_envs": 2}, [2, 2]),  # copies
        ({"batch": (3,)}, [2, 3, 4]),  # as it is
        ({"batch": (2, 2)}, [2, 3, 4, 5]),  # a batch of two axes is one
        ({"batch": (3,), "num_envs": 2}, [2, 3]),  # the last row is not shown
        ({"batch": (2,), "num_envs": 3}, [2, 3, 2]),  # the last of two batches is not, either
    ],
)
def test_rows_begin_anew_each_by_itself(options: dict[str, Any], rows: list[int]) -> None:
    env = door(**options)
    assert env.batch_size == (len(rows),)
    check_env_specs(env)
    batch = env.rollout(7, break_when_any_done=False)
    lengths = [[float(step % ends + 1) for step in range(7)] for ends in rows]
    assert columns(batch, "next", "episode", "length") == lengths == columns(batch, "next", "episode", "return")
    assert batch["next", "observation"][..., 0].tolist() == lengths, "the true last observation"
    over = [[length == ends for length in own] for own, ends in zip(lengths, rows)]
    assert columns(batch, "next", "terminated") == columns(batch, "next", "done") == over
    assert not batch["next", "truncated"].any()
    first = batch["observation"][..., 1]
    assert all(len(set(own.tolist())) == -(-7 // ends) for own, ends in zip(first, rows)), "one number an episode"


def test_batches_of_environments_in_series() -> None:
    env = door("in_series")
    assert env.batch_size == (2,)
    batch = env.rollout(6, break_when_any_done=False)["next", "episode"]
    assert columns(batch, "length") == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]] == columns(batch, "return")
    refused(ValueError, "'speed'.* is not shown by SerialEnv", door, "in_series", observation_keys=["speed"])


def test_a_single_environment_comes_in_eight_copies_of_different_seeds() -> None:
    env = door()
    first = env.reset()["observation"][:, 1]
    assert env.batch_size == (8,) and len(set(first.tolist())) == 8
    assert torch.equal(door().reset()["observation"][:, 1], first)
    assert not torch.equal(door(seed=1).reset()["observation"][:, 1], first)
    part = door(num_envs=4)
    part.share(4, 8, seed=0)
    assert torch.equal(part.reset()["observation"][:, 1], first[4:]), "as in a world of all of them"


def test_the_rows_of_a_batch_have_no_seeds_of_their_own() -> None:
    refused(ValueError, "^seed: the rows of a batch of Counter cannot have", door(batch=(3,)).reset, seed=[5, 6, 5])


def test_time_limits_and_sums_of_the_environments_own() -> None:
    env = door("limited", num_envs=1, steps=3, ends=5)
    batch = env.rollout(4, break_when_any_done=False)
    assert columns(batch, "next", "truncated") == [[False, False, True, False]]
    assert not batch["next", "terminated"].any() and columns(batch, "next", "done") == [[False, False, True, False]]
    assert columns(batch, "next", "episode", "return") == [[1.0, 2.0, 3.0, 1.0]]
    assert set(env.observation_spec.keys()) == {"observation", "episode"}
    told = door("scaled", num_envs=1).rollout(3)
    assert columns(told, "next", "reward") == [[10.0, 10.0, 10.0]]
    assert columns(told, "next", "episode", "return") == [[1.0, 2.0, 3.0]], "what the environment says counts"


def test_an_environment_with_all_its_keys_below_one() -> None:
    batch = door("nested", num_envs=1).rollout(5, break_when_any_done=False)["next"]
    assert columns(batch, "episode", "length") == [[1, 2, 3, 1, 2]] == columns(batch, "episode", "return")
    assert columns(batch, "terminated") == columns(batch, "done") == [[False, False, True, False, False]]


def test_a_limit_of_the_doors() -> None:
    batch = door(num_envs=1, ends=9, max_steps=2).rollout(4, break_when_any_done=False)
    assert columns(batch, "next", "truncated") == [[False, True, False, True]]
    assert columns(batch, "next", "episode", "length") == [[1.0, 2.0, 1.0, 2.0]]
    both = door(num_envs=1, ends=2, max_steps=2).rollout(2)
    assert both["next", "terminated"][0, -1] and both["next", "truncated"][0, -1]


@pytest.mark.parametrize(
    ("action", "given", "taken", "spec"),
    [
        ("numbers", [1.5, 7.0], [1.5, 1.0], Bounded),  # clipped
        ("table", [0.0, 0.1, 0.2, 0.3], [[0.0, 0.1], [0.2, 0.3]], Bounded),
        ("unbounded", [0.5, -9.0, 0.0], [0.5, -1.0, 0.0], Bounded),
        ("choice", 2, 2, Categorical),
        ("column", 3, [3], Categorical),
        ("choices", [1, 2], [1, 2], MultiCategorical),
        ("one-hot", 1, [0, 1, 0], Categorical),
        ("one-hots", [1, 2], [0, 1, 0, 0, 1], MultiCategorical),
        ("bits", [1, 0, 1], [1, 0, 1], MultiCategorical),
    ],
)
def test_actions(action: str, given: Any, taken: Any, spec: type) -> None:
    env = door(num_envs=2, action=action, ends=9)
    check_env_specs(env)
    assert type(env.action_spec).__mro__[0] in (spec, *spec.__subclasses__())
    root = env.reset().set("action", torch.tensor([given, given], dtype=env.action_spec.dtype))
    env.step(root)
    own = env._envs[1]
    got = own.taken[-1]
    assert got.dtype == own.action_spec.dtype and own.action_spec.is_in(got)
    torch.testing.assert_close(got, torch.tensor(taken, dtype=got.dtype))


def test_masks_reach_the_policy() -> None:
    env = door(num_envs=2, action="choice", ends=5)
    root = env.reset()
    assert root["action_mask"].tolist() == [[True, False, False, False]] * 2
    assert env.rand_action(root)["action"].tolist() == [0, 0]
    assert rlstack.make_agent("ppo", env).policy(explore=True)(root)["action"].tolist() == [0, 0]


def test_observations_of_every_kind() -> None:
    env = door(num_envs=1, shows="dict", ends=9)
    check_env_specs(env)
    env.rollout(1)
    shown = env.rollout(3)["observation"][0, -1]
    numbers = {("state", "count"): [2.0], "kind": [0.0, 0.0, 1.0], "seen": [1.0, 1.0]}
    assert {key: shown[key].tolist() for key in numbers} == numbers
    assert shown["pixels"].dtype == torch.uint8 and shown["pixels"].shape == (40, 40, 3)
    assert all(value.dtype == torch.float32 for key, value in shown.items(True, True) if key != "pixels")
    pixels = door(num_envs=1, shows="dict", observation_keys=["pixels"])
    assert pixels.observation_spec["observation"].shape == (1, 40, 40, 3)
    some = door(num_envs=1, shows="dict", observation_keys=["state.count", "kind"], dtype=torch.float64)
    assert set(some.observation_spec["observation"].keys(True, True)) == {("state", "count"), "kind"}
    assert some.reset()["observation", "kind"].dtype == torch.float64


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        (Bounded(0, 255, shape=(5, 5), dtype=torch.uint8), torch.uint8),
        (Unbounded((5, 5), dtype=torch.uint8), torch.uint8),
        (Bounded(0, 2, shape=(5, 5), dtype=torch.uint8), torch.float32),
        (Binary(5, shape=(5, 5), dtype=torch.uint8), torch.float32),
    ],
)
def test_bytes_of_a_smaller_range_are_no_pixels(spec: TensorSpec, dtype: torch.dtype) -> None:
    form = observation_form(spec, (2,), torch.float32, torch.device("cpu"))
    assert form.spec.dtype == dtype
    assert form.convert(torch.ones(2, 5, 5, dtype=torch.uint8)).dtype == dtype


def test_a_group_of_agents() -> None:
    env = door("Pair", num_envs=2)
    check_env_specs(env)
    batch = env.rollout(4, break_when_any_done=False)
    agents = batch["next", "agents"]
    assert agents["observation"].shape == (2, 4, 2, 1) and batch["agents", "action"].shape == (2, 4, 2)
    assert columns(batch, "next", "done")[0] == [False, False, True, False]
    assert agents["done"][0, ..., 0].tolist() == [[True, False], [True, False], [True, True], [True, False]]
    assert batch["agents", "active"][0].tolist() == [[True, True], [False, True], [False, True], [True, True]]
    assert columns(batch, "next", "episode", "return")[0] == [2.0, 3.5, 5.0, 2.0], "the mean of both agents"
    sequences = rlstack.flatten_agents(batch)
    assert sequences["next", "reward"][..., 0].tolist() == [[1.0, 0.0, 0.0, 1.0], [3.0] * 4] * 2, "none after its end"
    ends = door("Pair", num_envs=1, own_ends=False).rollout(3)["next", "agents", "done"][0, :, :, 0].tolist()
    assert ends == [[False, False], [False, False], [True, True]]


def test_a_world_ends_with_its_last_agent_also_if_only_some_terminate() -> None:
    batch = door("Pair", num_envs=1, common_end=False).rollout(4, break_when_any_done=False)["next"]
    flags = {name: batch["agents", name][0, ..., 0].tolist() for name in ("terminated", "truncated")}
    assert flags["terminated"] == [[True, False], [True, False], [True, False], [True, False]]
    assert flags["truncated"] == [[False, False], [False, False], [False, True], [False, False]]
    assert columns(batch, "truncated") == columns(batch, "done") == [[False, False, True, False]]
    assert columns(batch, "episode", "length") == [[1.0, 2.0, 3.0, 1.0]]


def test_an_agent_that_has_ended_stays_so_when_another_row_begins_anew() -> None:
    env = door("Pair", num_envs=2)
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    root = env.reset(root.set("_reset", torch.tensor([[False], [True]])))  # now the rows end at different times
    for active in ([[False, True], [False, True]], [[True, True], [False, True]]):
        _, root = env.step_and_maybe_reset(env.rand_action(root))
        assert root["agents", "active"].tolist() == active


def test_a_shared_reward_is_for_those_who_are_there() -> None:
    batch = door("Pair", num_envs=1, shared_reward=True).rollout(3)["next"]
    assert batch["agents", "reward"][0, ..., 0].tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    assert columns(batch, "episode", "return") == [[1.0, 2.0, 3.0]]


def test_an_end_lasts_until_the_reset() -> None:
    env = door(batch=(2,), ends=1)  # rows that end after one step and after two
    root = env.reset()
    for step in (1, 2, 3):
        following = env.step(env.rand_action(root))["next"]
        assert following["done"][:, 0].tolist() == [True, step > 1]
        assert following["episode", "return"][:, 0].tolist() == [1.0, min(step, 2)]
    env = door("limited", batch=(2,), ends=1, steps=9)  # which sums the rewards itself
    root = env.reset()
    for _ in range(2):
        following = env.step(env.rand_action(root))["next"]
    assert following["episode", "return"][:, 0].tolist() == [1.0, 2.0]


def test_an_evaluation_plays_as_many_episodes_as_asked_for() -> None:
    policy = Scripted(lambda root: torch.ones(*root.shape, 2), "action")
    result = evaluate(policy, "torchrl", {"id": f"{TOYS}:limited", "kwargs": {"batch": [2], "steps": 4}}, 3, seed=0)
    assert result.episodes["length"].tolist() == [4.0] * 3 == result.episodes["return"].tolist()


@pytest.mark.parametrize("options", [{"batch": (2,)}, {"batch": (1,), "num_envs": 2}])
def test_terms_of_rewards_are_sums_of_an_episode(options: dict[str, Any]) -> None:
    env = door("Paying", ends=3, **options)
    check_env_specs(env)
    batch = env.rollout(4, break_when_any_done=False)["next", "episode"]
    second = 4 if options["batch"] == (2,) else 1  # two batches of one row both begin anew after three steps
    assert columns(batch, "reward_step") == [[1, 2, 3, 1], [1, 2, 3, second]]
    assert columns(batch, "reward_late") == [[0, -2, -4, 0], [0, -2, -4, -6 if second == 4 else 0]]


def test_wrappers_and_configuration() -> None:
    config = {"name": "torchrl", "id": f"{TOYS}:Counter", "kwargs": {"ends": 4}, "frame_stack": 2, "action_repeat": 2}
    env = build_world(config, num_worlds=3)
    assert env.batch_size == (3,) and env.observation_spec["observation"].shape == (3, 4)
    batch = env.rollout(2)
    assert columns(batch, "next", "reward") == [[2.0, 2.0]] * 3 and batch["next", "done"][:, -1].all()


def test_every_command_takes_it(rlstack_command: Command) -> None:
    env = ["env=torchrl", f"env.id={TOYS}:limited", "env.kwargs.steps=4", "agent=ppo", "agent.hidden=[4]", "device=cpu"]
    allow = f"allow=[{TOYS}:limited]"
    run = ["agent.steps_per_batch=8", "agent.minibatch_size=32", "total_frames=64", "eval.episodes=1", "eval.every=64"]
    train = rlstack_command("train", *env, *run, "log_every=64", "checkpoint.every=64", "run_dir=a", "logger=csv")
    assert train.status == 0 and "torchrl" in train.out, train.err
    evaluate = rlstack_command("evaluate", "checkpoint=a", allow, "episodes=2", "device=cpu")
    assert re.search(r"all +2 +4\.0+ +4\.0", evaluate.out), evaluate.out + evaluate.err
    watch = rlstack_command("watch", "checkpoint=a", allow, "show=numbers", "episodes=1", "device=cpu")
    assert watch.status == 0 and "step 4: return 4, length 4" in watch.out
    diagnose = rlstack_command("explain", "speed", *env, "test=env", "seconds=0.01", "clock=cpu", "plots=false")
    assert diagnose.status == 0 and "8 worlds" in diagnose.out, diagnose.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": None}, r"id: give package\.module:Class, or package\.module:function with the annotation"),
        ({"id": "CartPole-v1"}, "'CartPole-v1' may be one of env=gymnasium"),
        ({"id": "gymnasium.envs.classic_control:CartPoleEnv"}, "EnvBase class nor .*; for environments of gymnasium"),
        ({"id": f"{TOYS}:unannotated"}, "neither a torchrl.envs.EnvBase class nor a function annotated"),
        ({"id": f"{TOYS}:liar"}, "has made a int, not a torchrl.envs.EnvBase"),
        ({"id": f"{TOYS}:Nothing"}, "has no 'Nothing'; it has .*Counter"),
        ({"id": ".relative:Env"}, "cannot be imported: .* relative import"),
        ({"kwargs": {"end": 3}}, "cannot be made with kwargs {'end': 3}: .*unexpected keyword argument"),
        ({"kwargs": {"action": "none"}}, r"cannot be made with kwargs .*: 'none' \(torchrl_toys.py, line \d+\)"),
        ({"num_envs": 0}, "num_envs: 0 is not a positive number"),
        ({"kwargs": {"action": "half"}}, "actions with one bound only"),
        ({"kwargs": {"action": "whole"}}, "actions of kind BoundedDiscrete .* are not supported, allowed: Categorical"),
        ({"observation_keys": ["speed"]}, "'speed'.* is not shown by Counter, it shows observation"),
    ],
)
def test_what_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, envs.make, "torchrl", **{"id": f"{TOYS}:Counter", **options})


def test_each_environment_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(torchrl_toys.Counter, "close", lambda env, **_: closed.append(env))
    env = door(num_envs=3)
    env.close()
    env.close()
    assert len(closed) == 3
    refused(ValueError, "is not shown by Counter", door, num_envs=2, observation_keys=["speed"])
    assert len(closed) == 5


def test_gymnasium_points_to_this_door() -> None:
    refused(ValueError, r"for environments of \w+, use env=torchrl", envs.make, "gymnasium", id=f"{TOYS}:Counter")


# -- ``env=playground`` and ``env=mjlab``: what they refuse, rows that are reset one by one, and terms of rewards ----


@pytest.mark.parametrize(("world", "package"), [("playground", "mujoco_playground"), ("mjlab", "mjlab")])
def test_a_missing_package_is_named(world: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstack.envs.torchrl.env.find_spec", lambda name: None if name == package else object())
    refused(ValueError, f"env={world} needs the extra '{world}'", envs.make, world, task="x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "package", "task", "options"),
    [
        ("playground", "mujoco_playground", "CartpoleBalance", {"max_steps": 3}),
        ("mjlab", "mjlab", "Mjlab-Cartpole-Balance", {"max_steps": 3, "observation_keys": ["actor"]}),
    ],
)
def test_rows_begin_anew_one_by_one(world: str, package: str, task: str, options: dict[str, Any]) -> None:
    pytest.importorskip(package)
    refused(ValueError, "task: 'Nothing' is none of", envs.make, world, task="Nothing")
    env = envs.make(world, task=task, num_envs=3, seed=1, **options)
    env.reset()
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    seen = root["observation"].clone()
    lengths = root["episode", "length"].flatten().tolist()
    assert lengths == [1.0, 1.0, 1.0]
    after = env.reset(root.set("_reset", torch.tensor([[False], [True], [False]])))
    assert torch.equal(after["observation"][[0, 2]], seen[[0, 2]])
    assert not torch.equal(after["observation"][1], seen[1])
    assert after["episode", "length"].flatten().tolist() == [1.0, 0.0, 1.0]
    names = [name for name in sorted(after["episode"].keys()) if name.startswith("reward_")]
    assert names and all(float(after["episode", name][1]) == 0 for name in names)
    # The rows go on from where they were: the same action moves them as one simulator would have.
    following = env.step(after.set("action", torch.zeros_like(env.rand_action(after)["action"])))["next"]
    assert following["episode", "length"].flatten().tolist() == [2.0, 1.0, 2.0]
    moved = (following["observation"] - after["observation"]).abs().amax(-1)
    assert bool((moved < 0.5).all())  # no row has jumped
    env.close()
