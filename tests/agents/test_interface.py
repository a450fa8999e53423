"""Agents by name, and an env as one agent sees it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, TensorSpec, Unbounded
from torchrl.envs import ParallelEnv, SerialEnv, TransformedEnv

from rlstack import envs
from rlstack.agents import Agent, agent_class, build_agent, make_agent, register
from rlstack.agents.acqn import ACQN
from rlstack.agents.base import Policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError, conf_dir
from rlstack.data.flatten import flatten_agents
from tests.exhaustive import exhaustive
from tests.refusals import refused


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
    out = policy(td)
    assert set(out.keys(True, True)) - before == {("agents", "action")}
    assert policy.out_keys == [("agents", "action")] and set(policy.in_keys) <= before


LEARNERS = sorted(path.stem for path in (conf_dir() / "agent").glob("*.yaml") if path.stem != "legacy")


@exhaustive("name", LEARNERS)
def test_every_shipped_agent_acts_and_learns(name: str) -> None:
    """Uses continuous actions, or discrete ones for agents that cannot take continuous ones."""
    worlds = [("marinenav", {"num_robots": 2, "continuous_actions": continuous}) for continuous in (True, False)]
    if name == "cql":  # TorchRL's loss takes observations of one tensor
        worlds = [("echelon", {"actions": "box", "maps": 2})]
    for world, options in worlds:
        env = envs.make(world, num_worlds=4, **options)
        try:
            agent = make_agent(name, env)
            break
        except ConfigError as error:
            assert "actions" in str(error)
    else:
        pytest.fail("acts neither continuously nor discretely")
    before = [value.detach().clone() for value in agent.parameters()]
    batch = env.rollout(8, agent.policy(explore=True), break_when_any_done=False)
    metrics = agent.update_once(flatten_agents(batch, agent.interface.group))
    assert metrics and all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    assert not all(map(torch.equal, before, agent.parameters()))
    if getattr(agent.config, "greedy", "mode") == "sample" or getattr(agent.config, "act_levels", "") == "random":
        return  # as published: greedy actions are drawn
    greedy = agent.policy(explore=False)
    td = env.reset()
    first = greedy(td.clone()).get(agent.interface.key("action"))
    assert torch.equal(first, greedy(td.clone()).get(agent.interface.key("action")))


def test_own_agents_by_name_and_by_path() -> None:
    assert agent_class("acqn") is agent_class("rlstack.agents.acqn:ACQN") is ACQN
    register("mine", "rlstack.agents.acqn:ACQN")
    assert agent_class("mine") is ACQN
    refused(ValueError, "not of the form", register, "mine", "rlstack.agents.acqn.ACQN")
    with pytest.raises(ConfigError, match=r"agent\.algorithm: missing, one of a2c, acqn, .*ppo"):
        build_agent({}, envs.make("marinenav", num_worlds=1), 100)
    refused(ConfigError, "agent: no option 'nope'", make_agent, "nope", envs.make("marinenav", num_worlds=1))


def test_an_observation_no_encoder_fits_is_a_config_error() -> None:
    env = Shape(Unbounded((2, 3, 8)), Bounded(-1.0, 1.0, shape=(2, 1)), (2,))
    with pytest.raises(ConfigError, match=r"shape \(3, 8\) have no encoder"):
        make_agent("acqn", env)  # type: ignore[arg-type]


def test_agents_without_replay_say_so() -> None:
    class Forgetful(ACQN):
        replay_state = Agent.replay_state
        load_replay_state = Agent.load_replay_state

    agent = object.__new__(Forgetful)
    assert agent.replay_state() is None
    refused(ConfigError, "Forgetful has no replay buffer", agent.load_replay_state, {})


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
