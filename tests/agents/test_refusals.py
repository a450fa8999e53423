"""Agents in envs in which they cannot act, and shipped configurations in envs in which they can."""

from __future__ import annotations

from typing import Any

import pytest
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from tests.agents.small_agents import ALGORITHMS, SMALL, YAMLS, Decisions, takes
from tests.exhaustive import exhaustive
from tests.refusals import refused

ACTIONS: dict[str, TensorSpec] = {
    "continuous": Bounded(-1.0, 1.0, shape=(2,)),
    "discrete": Categorical(3, shape=()),
    "multi-discrete": MultiCategorical([3, 2]),
    "hybrid": Composite({"axes": Bounded(-1.0, 1.0, shape=(2,)), "button": Categorical(3, shape=())}),
    "a dict of choices": Composite({"button": Categorical(3, shape=())}),
    "a matrix": Bounded(-1.0, 1.0, shape=(2, 2)),
    "unbounded": Unbounded(2),
    "one-hot": OneHot(3),
}
TAKES = {name: [kind for kind, action in ACTIONS.items() if takes(name, action)] for name in ALGORITHMS}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_agents_say_which_actions_they_take(name: str) -> None:
    assert TAKES[name]
    for kind, action in ACTIONS.items():
        env: Any = Decisions(Unbounded(3), action)
        if kind in TAKES[name]:
            assert make_agent(name, env, **SMALL[name]).parameters()
            continue
        refused(ConfigError, f"agent={name} (needs|takes) .*the env has ", make_agent, name, env)


@pytest.mark.parametrize(
    ("name", "kind", "others"),
    [
        ("acqn", "discrete", {"ppo", "dqn", "sac"}),
        ("acqn", "multi-discrete", {"ppo", "a2c"}),
        ("dqn", "multi-discrete", {"ppo", "a2c"}),
        ("dqn", "continuous", {"ppo", "sac", "acqn"}),
        ("acqn", "hybrid", {"ppo", "a2c"}),
        ("dqn", "a matrix", set()),
    ],
)
def test_a_refusal_names_the_agents_that_fit(name: str, kind: str, others: set[str]) -> None:
    env: Any = Decisions(Unbounded(3), ACTIONS[kind])
    with pytest.raises(ConfigError) as error:
        make_agent(name, env)
    _, _, suggested = str(error.value).partition("choose an agent for such actions (")
    found = set(suggested.rstrip(")").split(", ")) if suggested else set()
    assert found >= others and found == {each for each in ALGORITHMS if kind in TAKES[each]}


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_one_hot_actions_have_a_way_out(name: str) -> None:
    env: Any = Decisions(Unbounded(3), ACTIONS["one-hot"])
    refused(ConfigError, r"one-hot actions, .* by categorical_action_encoding=True", make_agent, name, env)


def test_inputs_are_not_scaled_twice() -> None:
    env = envs.make("marinenav", num_worlds=1)
    with pytest.raises(
        ConfigError, match=r"agent\.normalize_observations needs agent\.inputs=raw in a world that"
    ) as e:
        make_agent("ppo", env, normalize_observations=True)
    assert "\n" not in str(e.value)
    assert make_agent("ppo", env, normalize_observations=True, inputs="raw").normalizer is not None


def test_the_published_memory_keeps_no_masks() -> None:
    env: Any = Decisions(Unbounded(3), ACTIONS["discrete"], masked=True)
    with pytest.raises(ConfigError, match=r"^agent\.algorithm: rainbow_published keeps no action masks"):
        make_agent("rainbow_published", env)


def test_the_published_memory_takes_no_recorded_data() -> None:
    env: Any = Decisions(Unbounded(3), ACTIONS["discrete"])
    with pytest.raises(ConfigError, match=r"^data: rainbow_published learns from steps of all robots in turn"):
        make_agent("rainbow_published", env, buffer_size=100).load_data(TensorDict())


@exhaustive("name", [name for name in YAMLS if name.removesuffix("_published") in TAKES])
def test_every_shipped_configuration_builds_in_every_fitting_world(name: str) -> None:
    algorithm, built = name.removesuffix("_published"), 0
    objects = Composite({"self": Unbounded(7), "objects": Unbounded((5, 5)), "mask": Unbounded(5)})
    for continuous in (True, False):
        kind = "continuous" if continuous else "discrete"
        if kind not in TAKES[algorithm]:
            continue
        shapes: list[Any] = [Decisions(seen, ACTIONS[kind]) for seen in (Unbounded(3), objects)]
        for env in (*shapes, envs.make("marinenav", num_worlds=2, continuous_actions=continuous)):
            agent = make_agent(name, env)
            assert agent.config.name == name and agent.config.algorithm in (name, algorithm)
            assert agent.policy(explore=True).out_keys[0] == agent.interface.key("action")
            built += 1
    assert built >= 3


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("ppo", {"minibatch_size": 1}, "agent.minibatch_size: 1 is outside"),
        ("ppo", {"clip": 0.0}, r"agent\.clip: 0.0 is outside"),
        ("dqn", {"batch_size": 64, "accumulate": 3}, "accumulate 3 does not divide batch_size 64"),
        ("rainbow", {"value_min": 5.0, "value_max": 5.0}, "value_min must be below value_max"),
        ("rainbow_published", {"steps_per_batch": 4}, r"^agent\.steps_per_batch: .* takes steps one by one; set 1"),
        ("rainbow_published", {"replay_device": "cpu"}, r"^agent\.replay_device: .* the learner's device; set null"),
        (
            "rainbow_published",
            {"replay": {"storage": "LazyMemmapStorage"}},
            r"^agent\.replay\.storage: rainbow_published keeps no files; set LazyTensorStorage",
        ),
        ("dqn", {"replay_device": "gpu"}, "agent.replay_device: 'gpu' cannot be used .*; allowed: null, cpu, cuda"),
        ("rainbow", {"replay_device": "cuda:99"}, "agent.replay_device: 'cuda:99' cannot be used"),
        ("sac", {"hidden": []}, r"hidden \[\] has no layers, give one width at least"),
        ("a2c", {"object_features": []}, r"object_features \[\] has no layers"),
        ("acqn", {"critic": "gated"}, "critic=gated has no layer normalisation, give layer_norm=false"),
        ("iqn", {"target_action": "best"}, "agent.target_action"),
        ("ddpg", {"noise": -0.1}, r"agent\.noise: -0.1 is outside"),
        ("sac", {"alpha": 0.0}, r"agent\.alpha: 0.0 is outside"),
        ("a2c", {"precision": "float64"}, "agent.precision"),
        ("td3", {"actor_every": 0}, "agent.actor_every"),
        (
            "ppo",
            {"policy_gain": 2.0**63},
            r"agent\.policy_gain: 9.22.*e\+18 is outside \(0, 1000\] \(of the usual size",
        ),
        ("ppo", {"lr": 1e30}, r"agent\.lr: 1e\+30 is outside \[0, 100\] \(a step moves a parameter by about so much"),
        ("ppo", {"initial_std": 1e3}, r"agent\.initial_std: 1000.0 is outside .* \(its logarithm is kept within"),
        ("a2c", {"value_coefficient": 1e30}, r"agent\.value_coefficient: 1e\+30 is outside"),
        ("ppo", {"minibatch_size": 256, "accumulate": 7}, "accumulate 7 does not divide minibatch_size 256"),
        ("ppo", {"critic_hidden": []}, r"critic_hidden \[\] has no layers"),
        ("sac", {"target_entropy": 1e30}, r"agent\.target_entropy: 1e\+30 is outside \[-1000, 1000\]"),
        ("ddpg", {"noise": {"kind": "linear", "start": 1e9, "end": 0.0}}, r"agent\.noise: 1000000000.0 is outside"),
        ("acqn", {"noise_high": 1e9}, r"agent\.noise_high: .* is outside \[0, 10\] \(actions lie in \[-1, 1\]\)"),
        ("rainbow", {"value_max": 1e30}, r"agent\.value_max: 1e\+30 is outside"),
        ("rainbow", {"num_atoms": 1}, r"agent\.num_atoms: 1 is outside \[2, "),
        ("dqn", {"n_step": 100_000}, r"agent\.n_step: 100000 is outside \[1, 10000\] \(steps of an episode\)"),
        ("dqn", {"buffer_size": 2, "batch_size": 2, "n_step": 3}, "n_step 3 is more than buffer_size 2 holds"),
        ("dqn", {"frames_per_update": 1e-9}, r"agent\.frames_per_update: 1e-09 is outside .*10,000 updates per frame"),
        ("dqn", {"replay_device": "meta"}, r"agent\.replay_device: 'meta' holds no data; allowed: null, cpu, cuda"),
        ("dqn", {"epsilon": {"kind": "linear", "start": 2.0, "end": 0.0}}, r"agent\.epsilon: 2.0 is outside \[0, 1\]"),
    ],
)
def test_mistakes_in_the_configuration_are_one_line(name: str, overrides: dict[str, Any], message: str) -> None:
    env: Any = Decisions(Unbounded(3), ACTIONS[TAKES[name.removesuffix("_published")][-1]])
    refused(ConfigError, message, make_agent, name, env, **overrides)
