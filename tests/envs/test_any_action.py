"""Common behaviour of all worlds: invalid actions, a reset before the first step, seeds, closing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, assert_close
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.collectors import Collector
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs

from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.world import reader
from rlstack.training.preflight import check_batch
from tests.envs.marinenav.test_env import CURRICULUM
from tests.exhaustive import exhaustive
from tests.refusals import refused

Pair = Callable[[Tensor], tuple[Tensor, Tensor]]


def numbers(action: Tensor) -> tuple[Tensor, Tensor]:
    """Returns numbers beyond [-1, 1] and NaN, and the numbers played instead."""
    given, played = action.clone(), action.clone()
    for place, (value, meant) in enumerate([(99.0, 1.0), (-torch.inf, -1.0), (torch.nan, 0.0), (1e30, 1.0)]):
        given.view(-1)[place::5], played.view(-1)[place::5] = value, meant
    return given, played


def choices(counts: list[int]) -> Pair:
    """Returns choices that do not exist, and the nearest existing ones."""

    def pair(action: Tensor) -> tuple[Tensor, Tensor]:
        given, played = action.clone().view(-1, len(counts)), action.clone().view(-1, len(counts))
        last = torch.tensor(counts) - 1
        given[::3], played[::3] = 99, last
        given[1::3], played[1::3] = -1, 0
        return given.view_as(action), played.view_as(action)

    return pair


FIGHT = {"blue": 2, "red": 2, "maps": 2}
WORLDS: list[tuple[str, dict[str, Any], dict[Any, Pair]]] = [
    ("cartpole", {}, {"action": choices([2])}),
    ("arena", {}, {"action": choices([5])}),
    ("arena", {"style": 2}, {"action": choices([6])}),
    ("marinenav", {"num_robots": 2, "continuous_actions": False}, {("agents", "action"): choices([25])}),
    ("rocket", {"tick_skip": 1}, {("agents", "action"): choices([5, 5, 5, 5, 5, 2, 2, 2])}),
    ("rocket", {"tick_skip": 1, "actions": "lookup90"}, {("agents", "action"): choices([90])}),
    ("rocket", {"tick_skip": 1, "actions": "box8"}, {("agents", "action"): numbers}),
    ("echelon", FIGHT, {("agents", "action"): choices([5, 5, 2, 7, 2, 2, 3, 2, 2, 1 + 2])}),
    ("echelon", FIGHT | {"actions": "box"}, {("agents", "action"): numbers}),
    (
        "echelon",
        FIGHT | {"actions": "hybrid"},
        {
            ("agents", "action", "axes"): numbers,
            ("agents", "action", "buttons"): choices([2, 2, 3, 2, 2]),
            ("agents", "action", "target"): choices([1 + 2]),
        },
    ),
]
"""Worlds, their options, and invalid actions."""


def build(name: str, options: dict[str, Any], num_worlds: int = 3) -> EnvBase:
    return envs.make(name, num_worlds=num_worlds, seed=1, **options)


@pytest.mark.parametrize(("name", "options", "wrong"), WORLDS)
def test_what_cannot_be_played_is_played_as_the_nearest_that_can(
    name: str, options: dict[str, Any], wrong: dict[Any, Pair]
) -> None:
    twins = [build(name, options) for _ in range(2)]
    roots = [env.reset() for env in twins]
    chosen = twins[0].rand_action(roots[0].clone())
    for root in roots:
        for key in wrong:
            root.set(key, chosen.get(key).clone())
    for key, pair in wrong.items():
        for root, action in zip(roots, pair(chosen.get(key))):
            root.set(key, action)
    given = {key: roots[0].get(key).clone() for key in wrong}
    results = [env.step(root).get("next") for env, root in zip(twins, roots)]
    for key, value in results[0].items(include_nested=True, leaves_only=True):
        assert torch.equal(value, results[1].get(key)), key
        assert torch.isfinite(value.float()).all(), key
    for key in wrong:  # learning uses the policy's own choice
        torch.testing.assert_close(roots[0].get(key), given[key], equal_nan=True, rtol=0, atol=0)


def test_thrust_rates_are_bounded_by_the_thrust_alone() -> None:
    """MarineNav's rules allow rates beyond [-1, 1]; 0 replaces NaN."""
    key, after = ("agents", "action"), []
    for rate in ([1.5, torch.inf], [1.5, 3.0], [torch.nan, torch.nan], [0.0, 0.0]):
        env = build("marinenav", {"num_robots": 2, "num_obstacles": 0, "perception_noise": False})
        env.step(env.reset().set(key, torch.tensor(rate).expand(3, 2, 2)))
        after.append(env.state)
    assert torch.equal(after[0].thrust[..., 0], torch.full((3, 2), 750.0))  # 1.5 * 1000 N/s for half a second
    assert torch.equal(after[0].thrust, after[1].thrust) and after[0].thrust.max() == 1000.0
    assert torch.equal(after[2].pose, after[3].pose) and torch.isfinite(after[2].pose).all()


@pytest.mark.parametrize(("value", "played"), [(99.0, 1), (torch.inf, 1), (-torch.inf, 0), (torch.nan, 0), (1.0, 1)])
def test_numbers_in_place_of_choices(value: float, played: int) -> None:
    spec = build("cartpole", {}).full_action_spec["action"]
    read = reader(spec, "action")(torch.full((3,), value))
    assert read.dtype == torch.int64 and read.tolist() == [played] * 3


def test_choices_out_of_range_raise_where_types_are_checked() -> None:
    env = build("rocket", {})
    root = env.rand_action(env.reset())
    env.run_type_checks = True
    env.step(root.clone())
    root["agents", "action"][1, 0, 6] = 2
    refused(ValueError, r"^Rocket: action: 2 is none of the choices, .* 4, 4, 4, 4, 4, 1, 1, 1$", env.step, root)


@pytest.mark.parametrize("wrapper", [{"frame_stack": 2}, {"action_repeat": 2}])
def test_types_are_checked_inside_wrappers(wrapper: dict[str, int]) -> None:
    env = build("cartpole", wrapper)
    assert env.run_type_checks is False
    env.run_type_checks = True
    with pytest.raises(ValueError, match="CartPole: action: 5 is none of the choices"):
        env.step(env.reset().set("action", torch.full((3,), 5)))


def test_a_missing_action_is_named() -> None:
    env = build("cartpole", {})
    refused(ValueError, r"^CartPole: action: missing, the tensordict has no entry 'action'$", env.step, env.reset())


@pytest.mark.parametrize("count", [0, 2.5, "3"])
def test_a_number_of_worlds_is_whole_and_positive(count: Any) -> None:
    refused(ValueError, r"num_worlds: .* is not a positive whole number", envs.make, "cartpole", num_worlds=count)


def test_choices_out_of_range_end_a_run_with_debug() -> None:
    env = build("cartpole", {})
    batch = env.rollout(4, break_when_any_done=False)
    check_batch(batch, env, 0)
    batch["action"][1, 2] = 2
    refused(ConfigError, r"^debug: action is outside its spec in step 2 after frame 12$", check_batch, batch, env, 12)


@pytest.mark.parametrize(
    ("name", "options", "key", "shape"),
    [
        ("cartpole", {}, "action", (3, 1)),
        ("rocket", {"actions": "box8"}, ("agents", "action"), (3, 2, 7)),
        ("gymnasium", {"id": "Pendulum-v1", "num_envs": 3}, "action", (3, 2)),
        ("gymnasium", {"id": "CartPole-v1", "num_envs": 3}, "action", (3, 1)),
    ],
)
def test_actions_of_a_wrong_length_say_what_is_needed(
    name: str, options: dict[str, Any], key: Any, shape: tuple[int, ...]
) -> None:
    env = envs.make(name, **options) if name == "gymnasium" else build(name, options)
    with env, pytest.raises(ValueError, match=r"an action has shape \[3.*\], but \[3.*\] is needed$"):
        env.step(env.reset().set(key, torch.zeros(shape)))


# -- specs -----------------------------------------------------------------------------------------------------------

TOYS = "tests.envs.gymnasium_toys"
FEW: dict[str, Any] = {"num_worlds": 3, "maps": 2}
SPECS: list[tuple[str, dict[str, Any]]] = [
    ("cartpole", {"num_worlds": 3, "max_steps": 4}),
    ("arena", {"num_worlds": 3, "max_steps": 4}),
    ("marinenav", {"num_worlds": 6}),
    ("rocket", {"num_worlds": 2, "blue": 1, "orange": 2, "observation": "compact", "actions": "box8", "tick_skip": 2}),
    ("torchrl", {"id": "torchrl.envs:PendulumEnv", "num_envs": 3, "observation_keys": ["th"]}),
    ("gymnasium", {"id": "CartPole-v1", "num_envs": 3}),
    ("gymnasium", {"id": "Pendulum-v1", "num_envs": 3, "max_steps": 2}),
    *(("gymnasium", {"id": f"{TOYS}:{toy}", "num_envs": 3}) for toy in ("Structured", "Masked")),
    ("gymnasium", {"id": f"{TOYS}:Masked", "num_envs": 3, "kwargs": {"form": "observation"}}),
    ("gymnasium", {"id": f"{TOYS}:Noisy", "num_envs": 3, "dtype": torch.float64}),
    ("gymnasium", {"id": "CartPole-v1", "num_envs": 3, "observation_keep": [3, 1, 0]}),
    *(
        ("pettingzoo", {"id": f"tests.envs.test_pettingzoo:{world}", "num_envs": 3, **options})
        for world, options in (
            ("March", {"kwargs": {"masks": "info"}}),
            ("Push", {"dtype": torch.float64, "max_steps": 3}),
            ("Coming", {"action_repeat": 2}),
        )
    ),
    *(
        (f"tests.envs.test_wrappers:{world}", options)
        for world in ("Clock", "Team")
        for options in ({"action_repeat": 3}, {"frame_stack": 3}, {"action_repeat": 2, "frame_stack": 2})
    ),
    ("echelon", FEW | {"actions": "hybrid", "visibility": "partial", "opponent": "policy"}),
]
MORE_SPECS: list[tuple[str, dict[str, Any]]] = [
    ("marinenav", {"num_worlds": 6, "continuous_actions": False}),
    ("marinenav", {"num_worlds": 6, "curriculum": CURRICULUM, "perception_noise": False}),
    ("marinenav", {"num_worlds": 6, "curriculum": CURRICULUM | {"timesteps": None}}),
    ("marinenav", {"num_worlds": 6, "dtype": torch.float64, "num_cores": 2, "num_robots": 1, "num_obstacles": 0}),
    ("rocket", {"num_worlds": 3, "kick_offs": 0.4, "random_states": 0.3, "aerials": 0.3, "dtype": torch.float64}),
    ("rocket", {"num_worlds": 3, "team_size": 3, "actions": "lookup90", "rewards": "sparse", "ramps": False}),
    ("echelon", FEW),
    ("echelon", FEW | {"actions": "box", "blue": 1, "red": 3, "opponent": "random", "symmetric_maps": False}),
    ("echelon", FEW | {"blue": 10, "red": 7, "opponent": "rush", "visibility": "partial"}),
    ("echelon", FEW | {"dtype": torch.float64, "blue": 3, "opponent_mix": {"veteran": 1.0, "heuristic": 2.0}}),
]


@exhaustive(("name", "options"), [*SPECS, *MORE_SPECS], quick=len(SPECS))
def test_specs_hold_in_every_step(name: str, options: dict[str, Any]) -> None:
    with envs.make(name, **options) as env:
        check_env_specs(env, seed=3)
        for kind in ("action", "observation", "reward", "done") if env.batch_size != (1,) else ():
            for spec in (f"{kind}_spec", f"full_{kind}_spec"):
                whole, single = getattr(env, spec), getattr(env, f"{spec}_unbatched")
                assert (*env.batch_size, *single.shape) == whole.shape
                assert single.is_in(single.rand()) and not whole.is_in(single.rand())
        shown, rewards = (list(spec.keys(True, True)) for spec in (env.observation_spec, env.full_reward_spec))
        for step in env.rollout(6, break_when_any_done=False).unbind(-1):
            assert env.observation_spec.is_in(step.select(*shown))
            assert env.observation_spec.is_in(step["next"].select(*shown))
            assert env.full_reward_spec.is_in(step["next"].select(*rewards))


# -- before the first step, and after the last ------------------------------------------------------------------------

ALL: list[tuple[str, dict[str, Any]]] = [
    ("cartpole", {"num_worlds": 2}),
    ("arena", {"num_worlds": 2}),
    ("marinenav", {"num_worlds": 2, "num_robots": 2}),
    ("rocket", {"num_worlds": 2, "tick_skip": 1}),
    ("echelon", {"num_worlds": 2, "blue": 1, "red": 1, "maps": 2}),
    ("gymnasium", {"id": "CartPole-v1", "num_envs": 2}),
    ("torchrl", {"id": "tests.envs.torchrl_toys:Counter", "num_envs": 2}),
    ("pettingzoo", {"id": "tests.envs.test_pettingzoo:Seeded", "num_envs": 2}),
]


@pytest.mark.parametrize(("name", "options"), ALL)
@pytest.mark.parametrize("repeat", [1, 2])
def test_the_first_step_comes_after_reset(name: str, options: dict[str, Any], repeat: int) -> None:
    with envs.make(name, action_repeat=repeat, **options) as env:
        refused(RuntimeError, r"reset\(\) comes before the first step$", env.rand_step)
        refused(RuntimeError, r"reset\(\) comes before the first step$", env.step_and_maybe_reset, env.rand_action())
    assert env.is_closed


@pytest.mark.parametrize(("name", "options"), ALL[:5])
@pytest.mark.parametrize("repeat", [1, 2])
def test_the_state_before_the_first_reset_is_that_of_the_generator(
    name: str, options: dict[str, Any], repeat: int
) -> None:
    with envs.make(name, action_repeat=repeat, seed=3, **options) as env:
        state = env.state_dict()
        first = shown(env.reset())
        env.load_state_dict({})  # TorchRL's state of an environment without one
        again = shown(env.reset())
        env.load_state_dict(state)
        same = shown(env.reset())
    assert all(torch.equal(value, same[key]) for key, value in first.items())
    assert not all(torch.equal(value, again[key]) for key, value in first.items())


@pytest.mark.parametrize(("name", "options"), ALL)
def test_the_first_reset_begins_all_worlds(name: str, options: dict[str, Any]) -> None:
    with envs.make(name, seed=3, **options) as env:
        mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
        mask[0] = True
        some = shown(env.reset(TensorDict({"_reset": mask}, env.batch_size)))
        env.rand_step()
    with envs.make(name, seed=3, **options) as env:
        whole = shown(env.reset())
    assert all(torch.equal(value, some[key]) for key, value in whole.items())


@pytest.mark.parametrize(("name", "options"), [("gymnasium", {"id": f"{TOYS}:Noisy", "num_envs": 2}), *ALL[6:]])
def test_where_episodes_cannot_be_saved_new_ones_follow_from_the_saved_generator(
    name: str, options: dict[str, Any]
) -> None:
    starts = []
    with envs.make(name, seed=3, **options) as env:
        seen = shown(env.rollout(2)[:, 0])
        for seed in (8, 9):
            with envs.make(name, seed=seed, **options) as other:
                other.load_state_dict(env.state_dict())
                assert other.total_steps == env.total_steps
                root = other.reset()
                assert (root["episode", "length"] == 0).all()
                starts.append(shown(root))
    assert all(torch.equal(value, starts[1][key]) for key, value in starts[0].items())
    assert not any(torch.equal(value, seen[key]) for key, value in starts[0].items())


STAGED: list[tuple[str, dict[str, Any]]] = [
    ("arena", {}),
    ("rocket", {"blue": 2, "orange": 2}),
    ("echelon", {"blue": 2, "red": 2, "maps": 2, "fire_stages": [0.2, [0.4, 0.8]]}),
    ("marinenav", {"curriculum": CURRICULUM | {"timesteps": None}}),
]


@pytest.mark.parametrize(("name", "options"), STAGED)
def test_a_state_holds_the_stage(name: str, options: dict[str, Any]) -> None:
    with envs.make(name, num_worlds=4, seed=3, **options) as env, envs.make(name, num_worlds=4, **options) as other:
        env.reset()
        env.set_stage(1)
        before = env.generator.get_state()
        env.set_stage(1)
        assert torch.equal(before, env.generator.get_state()), "a stage draws no random numbers"
        other.load_state_dict(env.state_dict())
        other.reset()  # continues the worlds
        fresh, same = shown(env.reset()), shown(other.reset())
    assert all(torch.equal(value, same[key]) for key, value in fresh.items())


STEPPED: list[tuple[str, dict[str, Any]]] = [
    ("cartpole", {"num_worlds": 3, "max_steps": 4}),
    ("arena", {"num_worlds": 2, "max_steps": 4}),
    ("marinenav", {"num_worlds": 4, "max_steps": 3, "end_on_collision": True}),
    ("marinenav", {"num_worlds": 1, "num_robots": 1, "max_steps": 3}),
    ("rocket", {"num_worlds": 2, "max_seconds": 0.05, "tick_skip": 2}),
    ("echelon", {"num_worlds": 2, "blue": 1, "red": 1, "maps": 2, "max_steps": 4}),
    ("gymnasium", {"id": "tests.envs.gymnasium_toys:Structured", "num_envs": 2}),
    ("pettingzoo", {"id": "tests.envs.test_pettingzoo:Coming", "num_envs": 2}),
    ("tests.envs.test_wrappers:Clock", {"action_repeat": 3}),
    ("tests.envs.test_wrappers:Clock", {"action_repeat": 2, "frame_stack": 2}),
    ("tests.envs.test_wrappers:Team", {"frame_stack": 3}),
    ("tests.envs.test_wrappers:Team", {"action_repeat": 2, "frame_stack": 2}),
]
"""Worlds whose episodes end within some steps."""

assert_equal = partial(assert_close, rtol=0, atol=0, equal_nan=False)


@pytest.mark.parametrize(("name", "options"), STEPPED)
def test_the_fast_path_does_what_torchrl_does(name: str, options: dict[str, Any]) -> None:
    """And nothing that it has handed out changes later."""
    env, plain = (envs.make(name, **options) for _ in range(2))
    for one in (env, plain):
        one.set_seed(1)
    root, other, ends = env.reset(), plain.reset(), 0
    kept: list[tuple[TensorDictBase, TensorDictBase]] = []
    for _ in range(10):
        action = env.rand_action(root.copy()).select(*env.action_keys)
        stepped, root = env.step_and_maybe_reset(root.update(action))
        wanted, other = EnvBase.step_and_maybe_reset(plain, other.update(action.clone()))
        assert_equal(stepped, wanted)
        assert_equal(root, other.exclude(*env.action_keys))
        kept += [(stepped, deepcopy(stepped)), (root.copy(), deepcopy(root))]
        ends += int(stepped["next", "done"].sum())
    assert ends > 1
    for handed_out, then in kept:
        assert_equal(handed_out, then)


def test_a_collector_of_torchrl_saves_and_loads() -> None:
    env = envs.make("cartpole", num_worlds=4)
    policy = TensorDictModule(lambda root: (root[:, 0] > 0).long(), in_keys=["observation"], out_keys=["action"])
    collector = Collector(env, policy, frames_per_batch=32, total_frames=96, auto_register_policy_transforms=False)
    next(iter(collector))
    collector.load_state_dict(collector.state_dict())
    assert next(iter(collector)).shape == (4, 8)
    collector.shutdown()


@pytest.mark.parametrize(("name", "options"), ALL[:5])
def test_what_is_shown_may_be_changed_in_place(name: str, options: dict[str, Any]) -> None:
    ways = []
    for spoil in (False, True):
        env = envs.make(name, seed=1, **options)
        root, seen = env.reset(), []
        torch.manual_seed(0)
        action = env.rand_action(root.copy()).select(*env.action_keys)
        for _ in range(3):
            if spoil:
                for value in shown(root).values():
                    value.fill_(3 if value.is_floating_point() else True)
            stepped, root = env.step_and_maybe_reset(root.update(action.clone()))
            seen.append(stepped["next"].clone())
        ways.append(torch.stack(seen))
        env.close()
    assert (ways[0] == ways[1]).all()


# -- seeds ---------------------------------------------------------------------------------------------------------


def shown(root: TensorDictBase) -> dict[Any, Tensor]:
    return {key: value for key, value in root.items(include_nested=True, leaves_only=True) if "observation" in key}


@pytest.mark.parametrize(("name", "options"), ALL)
def test_a_world_begins_by_its_own_seed(name: str, options: dict[str, Any]) -> None:
    size = "num_envs" if "num_envs" in options else "num_worlds"
    few, more = (envs.make(name, **{**options, size: count, "seed": count}) for count in (2, 4))
    first = shown(few.reset(seed=[11, 12]))
    other = shown(more.reset(seed=[12, 13, 14, 11]))
    for key, value in first.items():
        assert torch.equal(value, other[key][[3, 0]]), key
    assert not all(torch.equal(value[0], value[1]) for value in first.values())
    again = shown(few.reset(seed=[11, 12]))
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    one, same = shown(few.reset(seed=5)), shown(few.reset(seed=5))
    assert all(torch.equal(value, same[key]) for key, value in one.items())
    few.close()
    more.close()


def test_seeds_decide_what_follows_too() -> None:
    runs = []
    for count in range(2):
        env = envs.make("cartpole", num_worlds=2, max_steps=3, seed=count, frame_stack=2)
        root, seen = env.reset(seed=[3, 4]), []
        for _ in range(7):
            stepped, root = env.step_and_maybe_reset(root.set("action", torch.tensor([0, 1])))
            seen.append(stepped["next", "observation"])
        runs.append(torch.stack(seen))
    assert torch.equal(*runs)


@pytest.mark.parametrize(("seeds", "fault"), [([1], "1 seeds for 2 worlds"), ([1, -1], "a number >= 0 for each")])
def test_seeds_that_do_not_fit(seeds: list[int], fault: str) -> None:
    refused(ValueError, fault, build("cartpole", {}, 2).reset, seed=seeds)
