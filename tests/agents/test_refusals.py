"""Agents in envs in which they cannot act, and shipped configurations in envs in which they can."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, OneHot, TensorSpec, Unbounded
from torchrl.envs import ParallelEnv, SerialEnv, TransformedEnv

from rlstack import envs
from rlstack.agents import agent_class, build_agent, make_agent, register
from rlstack.agents.acqn import ACQN
from rlstack.agents.base import Policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from tests.agents.small_agents import ALGORITHMS, CONTINUOUS, SMALL, Decisions, plain, small, takes
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


def test_what_depends_on_the_world_is_refused_with_a_way_out() -> None:
    marinenav = envs.make("marinenav", num_worlds=1, continuous_actions=False)
    masked: Any = Decisions(Unbounded(3), ACTIONS["discrete"], masked=True)
    twice = r"agent\.normalize_observations needs agent\.inputs=raw in a world that"
    refused(ConfigError, twice, make_agent, "ppo", marinenav, normalize_observations=True)
    assert make_agent("ppo", marinenav, normalize_observations=True, inputs="raw").normalizer is not None  # type: ignore[attr-defined]
    refused(ConfigError, r"or set env.continuous_actions=true$", make_agent, "acqn", marinenav)
    message = r"^agent\.algorithm: rainbow_published keeps no action masks"
    refused(ConfigError, message, make_agent, "rainbow_published", masked)
    published = small(plain(True), name="rainbow_published")
    refused(ConfigError, "^data: rainbow_published learns from steps of", published.load_data, TensorDict())


LINEAR = {"kind": "linear", "start": 1.0, "end": 0.0}
KL: dict[str, Any] = {"kind": "adaptive", "kl": 0.01}
LATEST = "tests.agents.own_sampler:Latest"
LSTM = {"kind": "lstm", "size": 4}
BATCH = {"critic_norm": "batch"}
TARGETS = {"critic_norm": "batch_targets"}
CATEGORICAL = {"critic": "categorical"}
RETRACE: dict[str, Any] = {"correction": "retrace", "n_step": 3}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # numbers out of bounds
    ("ppo", {"minibatch_size": 1}, r"agent\.minibatch_size: 1 is outside"),
    ("ppo", {"clip": 0.0}, r"agent\.clip: 0.0 is outside"),
    ("ppo", {"policy_gain": 2.0**63}, r"agent\.policy_gain: 9.22.*e\+18 is outside \(0, 1000\] \(of the usual size"),
    ("ppo", {"lr": 1e30}, r"agent\.lr: 1e\+30 is outside \[0, 100\] \(a step moves a parameter by about so much"),
    ("ppo", {"initial_std": 1e3}, r"agent\.initial_std: 1000.0 is outside .* \(its logarithm is kept within"),
    ("a2c", {"value_coefficient": 1e30}, r"agent\.value_coefficient: 1e\+30 is outside"),
    ("acqn", {"gamma": 1.5}, r"agent\.gamma: 1.5 is outside"),
    ("acqn", {"target_tau": 0.0}, r"agent\.target_tau: 0.0 is outside"),
    ("acqn", {"noise_high": 1e9}, r"agent\.noise_high: .* is outside \[0, 10\] \(actions lie in \[-1, 1\]\)"),
    ("ddpg", {"noise": -0.1}, r"agent\.noise: -0.1 is outside"),
    ("ddpg", {"noise": {**LINEAR, "start": 1e9}}, r"agent\.noise: 1000000000.0 is outside"),
    ("sac", {"alpha": 0.0}, r"agent\.alpha: 0.0 is outside"),
    ("sac", {"target_entropy": 1e30}, r"agent\.target_entropy: 1e\+30 is outside \[-1000, 1000\]"),
    ("td3", {"actor_every": 0}, r"agent\.actor_every"),
    ("rainbow", {"value_max": 1e30}, r"agent\.value_max: 1e\+30 is outside"),
    ("rainbow", {"num_atoms": 1}, r"agent\.num_atoms: 1 is outside \[2, "),
    ("dqn", {"n_step": 100_000}, r"agent\.n_step: 100000 is outside \[1, 10000\] \(steps of an episode\)"),
    ("dqn", {"frames_per_update": 1e-9}, r"agent\.frames_per_update: 1e-09 is outside .*10,000 updates per frame"),
    ("dqn", {"epsilon": {**LINEAR, "start": 2.0}}, r"agent\.epsilon: 2.0 is outside \[0, 1\]"),
    ("ppo", {"recurrent": {**LSTM, "size": 0}}, r"agent\.recurrent\.size: 0 is outside"),
    ("ppo", {"rnd": {"coefficient": -1.0}}, r"agent\.rnd.*-1"),
    ("ppo", {"rnd": {"lr": {**LINEAR, "end": -1.0}}}, r"agent\.rnd\.lr: -1\.0 is outside \[0, 100\]"),
    *((name, {"cvar": level}, r"agent\.cvar") for name in ("iqn", "acqn") for level in (0.0, 1.5, {"distance": 0.0})),
    # no such option, value or kind of value
    ("acqn", {"gama": 0.9}, r"agent\.gama: unknown key, did you mean 'gamma'\?"),
    ("acqn", {"batch_size": "many"}, r"agent\.batch_size: expected a whole number such as 64 or 1e6, got 'many'"),
    ("acqn", {"critic": "gate"}, r"agent\.critic: did you mean 'gated'"),
    ("ppo", {"critic": "joint"}, r"agent\.critic: .*'own', 'central'"),
    ("ppo", {"normalize_over": "epoch"}, r"agent\.normalize_over: expected one of 'minibatch', 'rollout'"),
    ("iqn", {"target_action": "best"}, r"agent\.target_action"),
    ("a2c", {"precision": "float64"}, r"agent\.precision"),
    ("ppo", {"recurrent": {"kind": "rnn"}}, "expected one of 'lstm', 'gru'"),
    ("ppo", {"recurrent": {**LSTM, "length": 3}}, r"agent\.recurrent\.length: unknown key"),
    ("ppo", {"recurrent": "lstm"}, r"agent\.recurrent: expected"),
    *((name, {"cvar": level}, r"agent\.cvar") for name in ("iqn", "acqn") for level in ("careful", {"lowest": 0.1})),
    ("dqn", {"replay_device": "gpu"}, r"agent\.replay_device: 'gpu' cannot be used .*; allowed: null, cpu, cuda"),
    ("dqn", {"replay_device": "meta"}, r"agent\.replay_device: 'meta' holds no data; allowed: null, cpu, cuda"),
    ("rainbow", {"replay_device": "cuda:99"}, r"agent\.replay_device: 'cuda:99' cannot be used"),
    ("dqn", {"replay": {"sampler": "prioritised"}}, r"agent\.replay: .*'prioritised' .* 'prioritized'\? allowed: unif"),
    ("dqn", {"replay": {"storage": "ListStorage"}}, r"agent\.replay\.storage: .*'LazyTensorStorage', 'LazyMemmapSto"),
    ("dqn", {"replay": {"sampler": "tests.agents.own_sampler:torch"}}, r"agent\.replay\.sampler: .* not a torchrl"),
    (
        "dqn",
        {"replay": {"sampler": "torchrl.data.replay_buffers:Sampler"}},
        r"\.sampler: .* lacks .*, sample, state_dict, which",
    ),
    ("dqn", {"replay": {"sampler": "tests.agents.own_sampler:Old"}}, r"agent\.replay\.sampler: .*Old"),
    ("dqn", {"replay": {"sampler": {"name": "prioritized", "eps": 1.0}}}, "prioritized takes no options here"),
    ("dqn", {"replay": {"sampler": {"window": 3}}}, "'None' is unknown, allowed: uniform"),
    ("dqn", {"replay": {"sampler": {"name": LATEST, "windw": 3}}}, r"sampler\.windw: .*'window'\? allowed: alpha, win"),
    ("dqn", {"replay": {"sampler": {"name": LATEST, "capacity": 3}}}, r"\.sampler\.capacity: .*allowed: alpha, win"),
    ("dqn", {"replay": {"sampler": {"name": LATEST}}}, r"\.sampler: .*Latest refuses .* 'window'"),
    # algorithms
    ("acqn", {"algorithm": "acqm"}, "did you mean 'acqn'"),
    ("acqn", {"algorithm": "no.such.module:Agent"}, r"agent\.algorithm: no.such.module:Agent cannot be imported"),
    ("acqn", {"algorithm": ".relative:Agent"}, r"agent\.algorithm: .relative:Agent cannot be imported"),
    ("acqn", {"algorithm": "rlstack.agents.base:Agent"}, "base:Agent has no Config, a dataclass of its options"),
    ("acqn", {"algorithm": "rlstack.agents.acqn:Nothing"}, "has no 'Nothing'; it has .*ACQN"),
    # options that do not go together
    ("dqn", {"batch_size": 64, "accumulate": 3}, "accumulate 3 does not divide batch_size 64"),
    ("ppo", {"minibatch_size": 256, "accumulate": 7}, "accumulate 7 does not divide minibatch_size 256"),
    ("dqn", {"batch_size": 64, "recurrent": {"kind": "lstm", "sequence_length": 48}}, r"64 .*sequence_length \(48\)"),
    ("dqn", {"batch_size": 64, "accumulate": 4, "recurrent": {"kind": "lstm"}}, r"times accumulate \(4\)"),
    ("acqn", {"batch_size": 2000}, "batch_size 2000 is larger than buffer_size 1000"),
    ("dqn", {"buffer_size": 2, "batch_size": 2, "n_step": 3}, "n_step 3 is more than buffer_size 2 holds"),
    ("dqn", {"replay": {"directory": "/tmp"}}, r"replay\.directory is for replay\.storage=LazyMemmapStorage"),
    ("rainbow", {"value_min": 5.0, "value_max": 5.0}, "value_min must be below value_max"),
    ("acqn", {"noise_low": 1.0}, "noise_low 1.0 is above noise_high"),
    ("acqn", {"cvar": 0.25}, r"cvar has no effect with candidates=1.*; give candidates=16, or cvar=1\.0"),
    ("iqn", {"cvar": {"distance": 5.0, "low": 0.9, "high": 0.3}}, "low 0.9 is above high 0.3"),
    ("iqn", {"cvar": {"distance": 5.0}}, r"agent\.cvar: an adaptive level needs a world that reports the distance"),
    ("acqn", {"cvar": {"distance": 5.0}, "candidates": 64}, r"agent\.cvar: .* a world that reports the distance"),
    ("acqn", {"critic": "gated", "hidden": [8, 4]}, "critic=gated has two hidden layers of one width"),
    ("acqn", {"critic": "gated"}, "critic=gated has no layer normalisation, give layer_norm=false"),
    ("acqn", {"lr_actor": {"kind": "constant"}}, r"agent\.lr_actor: kind 'constant' takes only start and warmup"),
    ("ppo", {"c_clip": 2.0}, r"c_clip 2\.0 is above rho_clip 1\.0"),
    ("ppo", {"shared_layers": 3}, "shared_layers: there are 2 hidden layers, not 3"),
    ("ppo", {"shared_layers": 2, "critic": "central"}, "critic=central needs a hidden layer of its own"),
    ("ppo", {"shared_layers": 1, "critic_hidden": [8]}, "critic_hidden must be null where layers are shared"),
    ("ppo", {"shared_layers": 1, "value_first": 50}, "shared_layers=0"),
    ("ppo", {"symmetry": "augment", "recurrent": LSTM}, "symmetry=augment is for agents without a recurrent core"),
    ("ppo", {"symmetry": "augment", "critic": "central"}, "symmetry=augment needs critic=own"),
    ("acqn", {"recurrent": LSTM}, "has no recurrent core; ppo, a2c, dqn, iqn, ddpg, td3, sac, tqc have"),
    ("iqn", {**RETRACE, "n_step": 1}, "correction=retrace .* several steps, n_step is 1"),
    ("dqn", {**RETRACE, "recurrent": LSTM}, "correction=retrace is for agents without a rec"),
    ("rainbow_published", {"steps_per_batch": 4}, r"^agent\.steps_per_batch: .* takes steps one by one; set 1"),
    ("rainbow_published", {"replay_device": "cpu"}, r"^agent\.replay_device: .* the learner's device; set null"),
    (
        "rainbow_published",
        {"replay": {"storage": "LazyMemmapStorage"}},
        r"^agent\.replay\.storage: .* LazyTensorStorage",
    ),
    # layers
    ("sac", {"hidden": []}, r"hidden \[\] has no layers, give one width at least"),
    ("a2c", {"object_features": []}, r"object_features \[\] has no layers"),
    ("ppo", {"critic_hidden": []}, r"critic_hidden \[\] has no layers"),
    ("ppo", {"rnd": {"hidden": []}}, r"agent\.rnd: hidden \[\]"),
    # learning rates that follow the KL divergence
    ("a2c", {"lr": KL}, r"agent\.lr: kind 'adaptive' follows the KL .* only the learning rate of ppo can"),
    ("sac", {"lr_actor": KL}, r"agent\.lr_actor: kind 'adaptive' follows the KL"),
    ("ppo", {"clip": KL}, r"agent\.clip: kind 'adaptive' follows the KL"),
    ("ppo", {"lr": {"kind": "adaptive"}}, r"agent\.lr: kind 'adaptive' needs the KL divergence"),
    ("ppo", {"lr": {**KL, "end": 1e-4}}, r"agent\.lr: kind 'adaptive' takes kl, start, low, high and factor"),
    ("ppo", {"lr": {**KL, "factor": 0.5}}, r"factor 0\.5 of kind 'adaptive' is not above 1"),
    ("ppo", {"lr": {**KL, "start": 0.1}}, r"starts at 0\.1, outside \[1e-05, 0\.01\]"),
    ("ppo", {"lr": {**LINEAR, "kl": 1}}, "takes no kl, low and high"),
    ("ppo", {"lr": {"kind": "linear", "end": 0}}, "kind 'linear' needs a start"),
    ("ppo", {"lr": KL, "value_first": 10}, "value_first: an adaptive lr follows the policy"),
    # critics without target networks, and categorical ones
    ("sac", {**BATCH, "layer_norm": True}, "critic_norm=batch is in the place of layer_norm"),
    ("sac", {**BATCH, "target_every": 100}, "critic_norm=batch has no target networks, target_every must be null"),
    ("sac", {**BATCH, "target_tau": 0.01}, "critic_norm=batch has no target networks, leave out target_tau"),
    ("sac", {**BATCH, "target_actor": True}, "critic_norm=batch has no target networks, target_actor must be false"),
    ("sac", {**BATCH, "network": {"critic": "a:B"}}, "critics of ours"),
    ("sac", {**BATCH, "value_max": 9.0}, "value_max is for critic=categorical, critic is scalar"),
    ("sac", {**BATCH, **CATEGORICAL, "value_max": -9.0}, "value_min must be below value_max"),
    ("sac", {"weight_norm": True}, "weight_norm needs layers that are normalised"),
    ("sac", {**TARGETS, "join": "gated"}, "critic_norm=batch_targets needs join=concat"),
    ("sac", {**CATEGORICAL, "network": "a:B"}, "network may name no critic"),
    ("sac", {"layer_norm": True, "network": {"critic": "a:B"}}, "layer_norm=True is for critics of ours"),
    ("td3", {"critic_hidden": [8], "network": "a:B"}, "critic_hidden=.* is for critics of ours"),
    ("sac of choices", BATCH, "critic_norm=batch is for continuous actions"),
    ("sac of choices", CATEGORICAL, "critic=categorical is for"),
    ("sac of choices", {"join": "gated"}, "join=gated is for continuous actions"),
    ("sac of choices", {"squash": "arctan"}, "squash=arctan is for continuous actions"),
    ("tqc", CATEGORICAL, "critic=categorical is for sac"),
    ("td3", TARGETS, "critic_norm"),
    ("tqc", BATCH, "critic_norm is for ddpg, td3 and sac"),
]


@pytest.mark.parametrize(("name", "overrides", "message"), REFUSED)
def test_options_that_cannot_be_are_refused_in_one_line(name: str, overrides: dict[str, Any], message: str) -> None:
    algorithm = name.removesuffix(" of choices")
    refused(ConfigError, message, small, plain(name not in CONTINUOUS), name=algorithm, **overrides)


# -- Agents by name, and an env as one agent sees it -----------------------------------------------------------------


class Shape:
    """Stands in for an env with its specs alone."""

    def __init__(self, observation: TensorSpec, action: TensorSpec, batch: tuple[int, ...]) -> None:
        self.batch_size = torch.Size(batch)
        self.observation_spec = Composite({"observation": observation}, shape=batch)
        self.full_action_spec = Composite({"action": action}, shape=batch)


@pytest.mark.parametrize("batch", [(), (4,)])
def test_interface_of_a_single_agent(batch: tuple[int, ...]) -> None:
    env = Shape(Unbounded((*batch, 3), dtype=torch.float64), Bounded(-1.0, 1.0, shape=(*batch, 2)), batch)
    interface = Interface.of(env)  # type: ignore[arg-type]
    assert interface.group is None and interface.key("action") == "action"
    assert interface.observation.shape == (3,) and interface.action.shape == (2,)
    assert interface.continuous and interface.features is None and interface.dtype == torch.float64
    assert interface.observation_keys() == ["observation"]


def test_discrete_and_unbounded_actions_are_no_bounded_vectors() -> None:
    for action in (Categorical(4, shape=(2,)), Unbounded((2, 3)), Bounded(0, 3, shape=(2, 1), dtype=torch.int64)):
        assert not Interface.of(Shape(Unbounded((2, 3)), action, (2,))).continuous  # type: ignore[arg-type]


def test_dtype_is_that_of_the_floating_leaves() -> None:
    leaves = {"mask": Binary(3, shape=(2, 3), dtype=torch.bool), "self": Unbounded((2, 3), dtype=torch.float64)}
    env = Shape(Composite(leaves, shape=(2,)), Bounded(-1.0, 1.0, shape=(2, 1)), (2,))
    assert Interface.of(env).dtype == torch.float64  # type: ignore[arg-type]


def test_interface_of_marinenav() -> None:
    env = envs.make("marinenav", num_worlds=3, num_robots=4)
    interface = Interface.of(env)
    assert interface.group == "agents" and interface.key("action") == ("agents", "action")
    shapes = {key: tuple(spec.shape) for key, spec in interface.observation.items()}
    assert shapes == {"self": (7,), "objects": (5, 5), "mask": (5,)}
    assert interface.action.shape == (2,) and interface.continuous
    assert interface.features is type(env).input_features and interface.dtype == torch.float32
    keys = [("agents", "observation", leaf) for leaf in ("self", "objects", "mask")]
    assert sorted(interface.observation_keys()) == sorted(keys)


def test_a_policy_writes_actions_and_nothing_else() -> None:
    env = envs.make("marinenav", num_worlds=3, num_robots=4)
    policy = Policy(Interface.of(env), lambda observation: observation["self"][..., :2] * 0)
    td = env.reset()
    before = set(td.keys(True, True))
    assert set(policy(td).keys(True, True)) - before == {("agents", "action")}
    assert policy.out_keys == [("agents", "action")] and set(policy.in_keys) <= before


def test_own_agents_by_name_and_by_path() -> None:
    assert agent_class("acqn") is agent_class("rlstack.agents.acqn:ACQN") is ACQN
    register("mine", "rlstack.agents.acqn:ACQN")
    assert agent_class("mine") is ACQN
    refused(ValueError, "not of the form", register, "mine", "rlstack.agents.acqn.ACQN")
    with pytest.raises(ConfigError, match=r"agent\.algorithm: missing, one of a2c, acqn, .*ppo"):
        build_agent({}, envs.make("marinenav", num_worlds=1), 100)
    refused(ConfigError, "agent: no option 'nope'", make_agent, "nope", envs.make("marinenav", num_worlds=1))


@pytest.mark.parametrize("started", [False, True])
def test_batches_of_worlds_by_torchrl_are_not_asked_for_more_than_specs(started: bool) -> None:
    """Covers envs for which reading an attribute starts worlds, recurses, or waits for processes that do not exist."""
    env = TransformedEnv(SerialEnv(2, partial(envs.make, "marinenav", num_worlds=3, num_robots=2)))
    if started:
        env.reset()
    seen = Interface.of(env)
    assert (seen.group, seen.agents, tuple(seen.action.shape)) == ("agents", 2, (2,))
    assert seen.features is None and seen.nearest is None and not seen.carries
    batch = make_agent("ppo", env, hidden=[8]).policy(explore=True)(env.reset())
    assert batch["agents", "action"].shape == (2, 3, 2, 2)
    env.close()


def test_worlds_in_other_processes_need_not_run_to_be_known() -> None:
    env = ParallelEnv(2, partial(envs.make, "cartpole", num_worlds=3))
    assert Interface.of(env).choices == (2,) and env.is_closed


def test_an_env_whose_observations_have_other_names_is_told_in_one_line() -> None:
    env: Any = Decisions(Unbounded(3), Categorical(3, shape=()))
    env.observation_spec = Composite({"position": Unbounded(3), "speed": Unbounded(1)})
    refused(
        ConfigError, "^env: it shows no entry 'observation', only position, speed; a transf", make_agent, "ppo", env
    )


def test_a_target_has_a_name_of_its_own_and_a_network_that_there_is() -> None:
    agent = small(plain(True), name="dqn")
    for name, network, message in (("network", None, "already"), ("second", None, "no network 'second', allowed: net")):
        refused(ValueError, f"^add_target: there is .*{message}", agent.add_target, name, nn.Linear(2, 2), 0.1, network)
    agent.add_target("second", copy.deepcopy(agent.network), 0.5, network="network")
    assert agent.targets.keys() == {"network", "second"}
