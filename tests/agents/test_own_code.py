"""Networks, losses and algorithms written by a user, in our agents."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Composite, Unbounded

import rlstack
from rlstack import envs
from rlstack.adapters.exporting import export_policy
from rlstack.agents import Agent, build_agent, completed, make_agent
from rlstack.agents.dqn import DQN
from rlstack.config import ConfigError
from rlstack.networks.own import OwnNetwork
from rlstack.runs.checkpoint import write_checkpoint
from rlstack.runs.loading import initialise
from tests.agents import own_network
from tests.agents.munchausen import MunchausenConfig, MunchausenLoss
from tests.agents.small_agents import CASES, DISCRETE, REMEMBERING, Decisions, plain, small
from tests.agents.spo import SPOLoss
from tests.conftest import Command
from tests.exhaustive import exhaustive
from tests.refusals import refused

HERE = "tests.agents.test_own_code"
NET = "tests.agents.own_network:Net"
MEMORY = {"kind": "gru", "size": 6, "sequence_length": 4}


def mine(name: str, env: Any = None, **options: Any) -> Any:
    return small(env or plain(discrete=True), name=name, **{"network": NET, "network_options": {"width": 8}, **options})


class Linear(nn.Module):
    """A network with weights of 1 that records what it was built for and what it saw."""

    seen: Any = None

    def __init__(self, inputs: Any, outputs: int) -> None:
        super().__init__()
        self.inputs, self.scale = inputs, nn.Parameter(torch.ones(outputs))

    def forward(self, x: Any) -> Tensor:
        self.seen = x
        first = next(iter(x.values())) if isinstance(x, dict) else x
        return first.flatten(1).sum(1, keepdim=True) * self.scale


class Frozen(own_network.Net):
    """A network whose first layer is frozen."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 8)
        self.first.requires_grad_(False)


class Dropped(own_network.Net):
    """A network that drops half of its inputs in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.dropout(x))

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 8)
        self.dropout = nn.Dropout(0.5)


# -- every agent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "discrete"), CASES)
def test_every_agent_trains_all_of_it(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent = mine(name, env)
    own = [network.network for networks in agent.own.by_role.values() for network in networks]
    assert {type(network) for network in own} == {own_network.Net} and len(own) >= len(agent.own.by_role)
    before = [[value.clone() for value in network.parameters()] for network in own]
    agent.update_once(env.experience(agent, 4, 8))
    for network, old in zip(own, before):
        assert not any(map(torch.equal, network.parameters(), old))


@pytest.mark.parametrize("name", REMEMBERING)
def test_with_a_memory_it_stands_before_the_core(name: str) -> None:
    agent = mine(name, plain(discrete=name in DISCRETE), recurrent=MEMORY, hidden=[5, 7])
    for network in agent.memories.values():
        assert type(network.encoder.network) is own_network.Net and network.core.cells.input_size == 5
    assert {core.rstrip("_12") for core in agent.memories} == set(agent.own.by_role)  # critic_1 and critic_2


def test_networks_are_named_by_role_and_the_others_are_ours() -> None:
    agent = mine("ppo", network={"critic": NET})
    assert agent.own.roles == ["critic"] and not isinstance(agent.actor, OwnNetwork)
    assert type(agent.critic.network) is own_network.Net


@pytest.mark.parametrize(("name", "role"), [("torchrl_ppo", "actor_network"), ("torchrl_sac", "qvalue_network")])
def test_in_losses_of_torchrl_roles_are_arguments_of_the_loss(name: str, role: str) -> None:
    env = plain(discrete=name == "torchrl_ppo")
    options = {"network": {role: NET}, "hidden": [8], "precision": "float32"}
    torch.manual_seed(0)
    agent: Any = make_agent(name, env, 1000, **options)
    assert agent.own.roles == [role]
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    agent.update_once(env.experience(agent, 4, 8))
    assert not any(map(torch.equal, agent.parameters(), before))


# -- what it gets and gives --------------------------------------------------------------------------------------


def linear(name: str, env: Decisions, role: str, **options: Any) -> Any:
    return mine(name, env, network=f"{HERE}:Linear", network_options={}, **options).own.by_role[role][0]


def test_a_critic_of_actions_gets_them_behind_the_observation() -> None:
    own = linear("td3", plain(discrete=False), "critic")
    assert own.network.inputs == 3 + 2
    observation, action = torch.arange(6.0).view(2, 3), torch.tensor([[7.0, 8.0], [9.0, 10.0]])
    assert own(observation, action).tolist() == [[18.0], [31.0]]
    assert own.network.seen.tolist() == [[0.0, 1.0, 2.0, 7.0, 8.0], [3.0, 4.0, 5.0, 9.0, 10.0]]


def test_structured_observations_come_as_dicts_of_flat_batches() -> None:
    seen = Composite({"b": Categorical(9, shape=(2,)), "a": Unbounded((2, 3)), "in": Composite({"c": Unbounded(4)})})
    own = linear("sac", Decisions(seen, Bounded(-1.0, 1.0, shape=(2,))), "critic")
    assert own.network.inputs == {"a": (2, 3), "b": 2, "in": {"c": 4}, "action": 2}
    assert own(seen.expand(5, 4).rand(), torch.zeros(5, 4, 2)).shape == (5, 4, 1)
    got = own.network.seen
    assert got["in"]["c"].shape == (20, 4) and got["a"].shape == (20, 2, 3) and got["action"].shape == (20, 2)
    assert got["b"].dtype == torch.float32 and type(got) is dict


def test_images_have_a_shape_and_actions_beside_them() -> None:
    images = Bounded(0, 255, shape=(3, 8, 8), dtype=torch.uint8)
    own = linear("ddpg", Decisions(images, Bounded(-1.0, 1.0, shape=(2,))), "critic")
    assert own.network.inputs == {"observation": (3, 8, 8), "action": 2}
    assert linear("dqn", Decisions(images, Categorical(4, shape=())), "network").network.inputs == (3, 8, 8)


def test_pixels_are_seen_from_0_to_1_and_bytes_that_are_no_pixels_as_they_are() -> None:
    parts = {key: Bounded(0, 255, shape=shape, dtype=torch.uint8) for key, shape in (("a", (3, 8, 8)), ("b", (4,)))}
    own = linear("dqn", Decisions(Composite(parts), Categorical(4, shape=())), "network")
    shown = Composite(parts).expand(2, 3).rand()
    own(shown)
    assert torch.equal(own.network.seen["a"], shown["a"].flatten(0, 1) / 255)
    assert torch.equal(own.network.seen["b"], shown["b"].flatten(0, 1).float())


def test_it_sees_what_the_world_has_scaled_or_the_raw_observation() -> None:
    marinenav = envs.make("marinenav", num_worlds=2)
    for inputs in ("features", "raw"):
        own = small(marinenav, name="td3", network=f"{HERE}:Linear", inputs=inputs).own.by_role["actor"][0]
        observation = marinenav.reset()["agents", "observation"]
        wanted = marinenav.input_features()(observation) if inputs == "features" else observation
        own(observation)
        assert torch.equal(own.network.seen["self"], wanted["self"].flatten(0, 1))
        assert own.network.inputs["self"] == wanted["self"].shape[-1]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_batch_dimensions_are_folded_for_it(lead: tuple[int, ...]) -> None:
    own = linear("rainbow", plain(discrete=True), "network", num_atoms=11)
    assert own(torch.ones(*lead, 3)).shape == (*lead, 4, 11) and own.network.seen.dim() == 2


def test_outputs_are_values_logits_means_and_actions_to_squash() -> None:
    x = torch.tensor([[0.3, -0.2, 0.5], [1.0, 2.0, -4.0]])
    discrete, continuous = plain(discrete=True), plain(discrete=False)

    def out(agent: Any, role: str) -> Tensor:
        result: Tensor = agent.own.by_role[role][0].network(x)
        return result

    for name, role in (("dqn", "network"), ("ppo", "actor"), ("sac", "actor")):
        agent = mine(name, discrete)
        acted = agent.policy(explore=False).action(x)
        assert torch.equal(acted, out(agent, role).argmax(-1))
    for name in ("td3", "acqn"):
        agent = mine(name, continuous, **({"greedy_actor": "online"} if name == "acqn" else {}))
        torch.testing.assert_close(agent.policy(explore=False).action(x), out(agent, "actor").tanh())
    agent = mine("sac", continuous)
    torch.testing.assert_close(agent.policy(explore=False).action(x), out(agent, "actor")[:, :2].tanh())
    agent = mine("ppo", continuous)
    torch.testing.assert_close(agent.policy(explore=False).action(x), out(agent, "actor").clamp(-1, 1))


def test_frozen_layers_stay_as_they_are() -> None:
    env = plain(discrete=True)
    agent = mine("dqn", env, network=f"{HERE}:Frozen", network_options={})
    network = agent.network.network
    first, last = network.first.weight.clone(), network.last.weight.clone()
    agent.update_once(env.experience(agent, 4, 8))
    assert torch.equal(network.first.weight, first) and not torch.equal(network.last.weight, last)


def test_dropout_is_for_gradients_alone() -> None:
    agent = mine("dqn", network=f"{HERE}:Dropped", network_options={})
    x = torch.randn(50, 3)
    with torch.no_grad():
        assert torch.equal(agent.network(x), agent.network(x))
    assert not torch.equal(agent.network(x), agent.network(x))


# -- handed on ----------------------------------------------------------------------------------------------------


@exhaustive("name", ["ppo", "dqn", "td3"])
def test_exports_act_the_same(name: str, tmp_path: Path) -> None:
    env = plain(discrete=name != "td3")
    agent, x = mine(name, env), env.draw(64)
    export_policy(agent, tmp_path / "mine.pt")
    program = torch.jit.load(tmp_path / "mine.pt")
    torch.testing.assert_close(program(x["observation"]), agent.policy(explore=False)(x)["action"])


# -- weights from elsewhere --------------------------------------------------------------------------------------


def recorded(folder: Path, outputs: int = 4, **more: Any) -> tuple[own_network.Net, Path]:
    """Returns a network that was trained elsewhere, and the file of its weights."""
    torch.manual_seed(7)
    network = own_network.Net(3, outputs, 8)
    path = folder / "weights.pt"
    torch.save({**network.state_dict(), **more}, path)
    return network, path


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_recorded_weights_act_as_they_did_and_go_on_learning(name: str, tmp_path: Path) -> None:
    network, path = recorded(tmp_path)
    env = plain(discrete=True)
    agent = mine(name, env)
    initialise(agent, path)
    x = torch.randn(200, 3)
    old = network(x).argmax(-1)
    assert torch.equal(agent.policy(explore=False).action(x), old) and len(old.unique()) > 1
    if name == "dqn":
        torch.testing.assert_close(agent.loss.target_network(x), network(x))
    for _ in range(20):
        agent.update_once(env.experience(agent, 4, 8))
    assert not torch.equal(agent.policy(explore=False).action(x), old)


def test_weights_of_several_networks_are_told_apart_by_role(tmp_path: Path) -> None:
    actor, critic = own_network.Net(3, 2, 8), own_network.Net(5, 1, 8)
    torch.save({"actor": actor.state_dict(), "critic": critic.state_dict()}, tmp_path / "both.pt")
    agent = mine("td3", plain(discrete=False))
    initialise(agent, tmp_path / "both.pt")
    x, action = torch.randn(9, 3), torch.randn(9, 2)
    torch.testing.assert_close(agent.loss.target_actor(x), actor(x).tanh())
    for twin in (*agent.loss.critics, *agent.loss.target_critics):
        torch.testing.assert_close(twin(x, action), critic(torch.cat((x, action), -1)))


def test_weights_of_another_network_are_told_in_one_line(tmp_path: Path) -> None:
    _, path = recorded(tmp_path, outputs=5)
    with pytest.raises(ConfigError, match=r"init: the weights of .*weights.pt do not fit agent.network \(.*size mis"):
        initialise(mine("dqn"), path)
    torch.save({"critic": own_network.Net(3, 4, 8).state_dict()}, path)
    with pytest.raises(ConfigError, match=r"init: weights of critic, agent.network names one of yours for \['network"):
        initialise(mine("dqn"), path)
    refused(ConfigError, "init: .*weights.pt: not a checkpoint", initialise, small(plain(True), name="dqn"), path)


class Delayed(DQN):
    """DQN with a second target, which nothing reads."""

    def build(self) -> None:
        super().build()
        self.slow = copy.deepcopy(self.network).requires_grad_(False)
        self.add_target("second", self.slow, 0.125, network="network")


def test_a_second_target_follows_cloning_and_is_there_where_a_run_begins(tmp_path: Path) -> None:
    options = completed({"name": "mine", "algorithm": f"{HERE}:Delayed", "hidden": [4]})
    agent, other = (build_agent(options, plain(True), 1000) for _ in range(2))
    data = TensorDict({"observation": torch.randn(40, 3), "action": torch.zeros(40, dtype=torch.int64)}, [40])
    rlstack.imitate(agent, data, epochs=1)
    weights = [network.state_dict() for network in (agent.network, agent.slow)]
    torch.testing.assert_close(*weights)
    with torch.no_grad():
        for parameter in agent.slow.parameters():
            parameter.add_(1)
    config = {"agent": options, "env": {"name": "made up"}, "total_frames": 1000}
    write_checkpoint(tmp_path / "x.pt", {"frames": 0, "agent": agent.state_dict(), "config": config}, 0)
    initialise(other, tmp_path / "x.pt")
    torch.testing.assert_close(other.slow.state_dict(), agent.slow.state_dict())
    torch.testing.assert_close(other.network.state_dict(), agent.network.state_dict())


def test_a_run_may_begin_to_explore_by_curiosity_and_to_scale_rewards(tmp_path: Path) -> None:
    options = completed({"name": "ppo", "algorithm": "ppo", "hidden": [4]})
    agent, other = (
        build_agent(options | new, plain(True), 1000)
        for new in ({}, {"rnd": {"coefficient": 1.0}, "normalize_rewards": True})
    )
    config = {"agent": options, "env": {"name": "made up"}, "total_frames": 1000}
    write_checkpoint(tmp_path / "x.pt", {"frames": 0, "agent": agent.state_dict(), "config": config}, 0)
    predictor = copy.deepcopy(other.curiosity.predictor.state_dict())
    initialise(other, tmp_path / "x.pt")
    for name, network in agent.networks.items():
        torch.testing.assert_close(other.networks[name].state_dict(), network.state_dict())
    torch.testing.assert_close(other.curiosity.predictor.state_dict(), predictor)


# -- mistakes ----------------------------------------------------------------------------------------------------


def raises(inputs: Any, outputs: int) -> nn.Module:
    raise RuntimeError("no weights")


def wrong_shape(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs + 1)


def whole_numbers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), Rounded())


def empty(inputs: int, outputs: int) -> nn.Module:
    return Unlearned()


def no_module(inputs: int, outputs: int) -> str:
    return "net"


def other_input(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs + 1, outputs)


def batch_norm(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(inputs), nn.Linear(inputs, outputs))


def detached(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), Unlearned())


class Unused(own_network.Net):
    """A network with a second head that is never used."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.value = nn.Linear(inputs, 1)


class Lazy(own_network.Net):
    """A network with a second head that is never used and does not know its inputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.value = nn.LazyLinear(1)


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.round().long()


class Unlearned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 4)


an_instance = nn.Linear(3, 4)

WANTED = r"wanted is a class of torch.nn.Module, or a function that returns one, of \(inputs, outputs\) = \(3, 4\)"
MISTAKES = {
    f"{HERE}:raises": f"fails: RuntimeError: no weights; {WANTED}",
    f"{HERE}:wrong_shape": r"gives \[3, 5\] for 3 observations, wanted is \[3, 4\]",
    f"{HERE}:whole_numbers": r"gives a tensor of torch.int64, wanted is a floating-point tensor \[3, 4\]",
    f"{HERE}:empty": "has no parameters to train",
    f"{HERE}:no_module": f"makes an object of str; {WANTED}",
    f"{HERE}:other_input": r"fails on an input of shape \[3, 3\]: RuntimeError: mat1 and mat2",
    f"{HERE}:batch_norm": "BatchNorm1d has running statistics, .*; take LayerNorm",
    f"{HERE}:detached": "no gradient reaches its parameters",
    f"{HERE}:Unused": "no gradient reaches value.weight, value.bias; leave out, or freeze",
    f"{HERE}:Lazy": "no gradient reaches value.weight, value.bias; leave out, or freeze",
    f"{HERE}:an_instance": f"is an object of Linear; {WANTED}",
    f"{HERE}:nothing": "has no 'nothing'",
    "no_such_module:Net": "no_such_module:Net cannot be imported: No module",
    "Net": "not of the form 'package.module:attribute'",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_that_names_the_key(name: str) -> None:
    refused(ConfigError, f"^agent.network: .*{MISTAKES[name]}", mine, "dqn", network=name, network_options={})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ppo", {"network": {"acter": NET}}, "agent.network.acter: unknown key, did you mean 'actor'"),
        ("ppo", {"network": {"actor": f"{HERE}:empty"}, "network_options": {}}, "agent.network.actor: .*no parameters"),
        ("dqn", {"network_options": {"depth": 1}}, "agent.network: .*unexpected keyword argument 'depth'"),
        ("dqn", {"network": None}, "agent: network_options are those of a network of yours"),
        ("ppo", {"shared_layers": 1}, "networks of yours share no layers with others, give shared_layers=0"),
        ("dqn", {"network": 3}, "agent.network: expected text or a mapping"),
    ],
)
def test_other_mistakes(name: str, options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, mine, name, **options)


def test_a_script_gives_the_class_itself_and_numbers_of_any_library() -> None:
    agent = mine("dqn", network=own_network.Net, network_options={"width": np.int64(5)}, gamma=np.float32(0.5))
    assert isinstance(agent.network.network, own_network.Net)
    assert agent.network.network.first.out_features == 5 and agent.config.gamma == 0.5
    for wrong in (own_network.Net(4, 2), nn.ReLU()):
        refused(ConfigError, "^agent.network: expected a class or what a config", mine, "dqn", network=wrong)


def test_an_agent_that_asks_for_none_says_so() -> None:
    config = {"name": "mine", "algorithm": "tests.agents.test_policies:Hidden", "network": NET}
    with pytest.raises(ConfigError, match=r"agent.network: agent=mine makes its own networks"):
        build_agent(completed(config), plain(True), 100)  # type: ignore[arg-type]


# -- The loss that rlstack/agents/README.md shows, as a user's own ---------------------------------------------------


README = Path(rlstack.__file__).parent / "agents" / "README.md"
YAML = next(
    OmegaConf.to_container(OmegaConf.create(block))
    for block in re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if "spo:SPOLoss" in block
)
OWN = {key: value for key, value in YAML.items() if key != "defaults"}  # type: ignore[union-attr]


def agent(**options: Any) -> Agent:
    config = completed({**OWN, "loss": "tests.agents.spo:SPOLoss", "hidden": [8], **options})
    return build_agent(config, envs.make("cartpole", num_worlds=2), 1000)


def test_its_losses_are_those_of_the_formula() -> None:
    """With ratio 1.5, advantages 2 and -2, and epsilon 0.2: |A| / 0.4 * 0.25 = 1.25, A r = 3 and -3."""
    loss, states = agent().loss, torch.randn(2, 4)
    action = torch.tensor([0, 1])
    with torch.no_grad():
        log_prob = loss.actor_network.get_dist(TensorDict(observation=states, batch_size=[2])).log_prob(action)
        value = loss.critic_network(TensorDict(observation=states, batch_size=[2]))["state_value"]
    data = {"observation": states, "action": action, "log_prob": log_prob - torch.tensor(1.5).log()}
    data |= {"advantage": torch.tensor([[2.0], [-2.0]]), "value_target": value + 1.0}
    told = loss(TensorDict(data, [2]))
    torch.testing.assert_close(told["loss_policy"], torch.tensor((1.25 - 3 + 1.25 + 3) / 2))
    torch.testing.assert_close(told["loss_value"], torch.tensor(0.5))


def test_torchrl_asks_for_no_annotations() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "replay"}, "value_estimator=gae needs sequences, data=rollout"),
        (
            {"data": "replay", "value_estimator": "td0"},
            '"advantage" not found.*; fresh rollouts bring it: agent.data=rollout',
        ),
        (
            {"loss": f"{__name__}:WithoutEstimator"},
            "; a loss of yours for rollouts needs a method make_value_estimator",
        ),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, agent, **options)


class WithoutEstimator(SPOLoss):
    make_value_estimator = SPOLoss.__mro__[1].make_value_estimator  # type: ignore[assignment]
    default_value_estimator = None


@pytest.mark.slow
def test_it_learns_cartpole_from_python(tmp_path: Path) -> None:
    options = {f"agent.{key}": value for key, value in OWN.items() if key != "loss"}
    run = rlstack.train(
        agent="torchrl_options",
        env="cartpole",
        total_frames=60_000,
        seed=0,
        run_dir=tmp_path / "run",
        quiet=True,
        **{**options, "agent.loss": SPOLoss, "env.num_worlds": 8, "threads": 1, "logger": "csv", "device": "cpu"},
    )
    assert run.score > 400


# -- An algorithm written by a user: one file and a YAML file, as the README of the agents shows ---------------------


CLASS = "tests.agents.munchausen:MunchausenDQN"


def munchausen(**options: object) -> Agent:
    config = completed({"name": "munchausen", "algorithm": CLASS, **options})
    return build_agent(config, envs.make("cartpole", num_worlds=2), 1000)


def test_its_options_are_checked_like_ours() -> None:
    expected = MunchausenConfig("munchausen", CLASS, alpha=0.5, precision="float32")
    assert munchausen(alpha=0.5, precision="float32").config == expected
    refused(ConfigError, r"agent.alpha: 5.0 is outside \[0, 1\]", munchausen, alpha=5.0)
    refused(ConfigError, r"agent.alhpa: unknown key, did you mean 'alpha'", munchausen, alhpa=0.5)


def test_its_target_is_that_of_the_paper() -> None:
    network = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(2))  # the values are the observation
    loss = MunchausenLoss(network, MunchausenConfig("munchausen", CLASS, alpha=0.5, temperature=1.0, gamma=0.5))
    following = {"observation": torch.zeros(1, 2), "reward": torch.ones(1, 1), "terminated": torch.zeros(1, 1).bool()}
    batch = TensorDict({"observation": torch.zeros(1, 2), "action": torch.tensor([1]), "next": following}, [1])
    # Uniform policies: 1 + 0.5 log(1/2) + 0.5 log 2.
    torch.testing.assert_close(loss.target_value(batch), torch.ones(1, 1))


@pytest.mark.parametrize("by_yaml", [True, False])
def test_it_trains_from_a_yaml_and_from_its_name_alone(by_yaml: bool, rlstack_command: Command, tmp_path: Path) -> None:
    if by_yaml:
        (tmp_path / "conf/agent").mkdir(parents=True)
        yaml = f"defaults: [dqn, _self_]\nname: munchausen\nalgorithm: {CLASS}\nalpha: 0.8\n"
        (tmp_path / "conf/agent/mine.yaml").write_text(yaml)
        given = ["--config-dir=conf", "agent=mine", "agent.epsilon.end=0.2"]
    else:
        given = [f"agent={CLASS}", "agent.alpha=0.8", "agent.epsilon.end=0.2"]
    words = ["env=cartpole", "debug=40", "logger=csv", "device=cpu", "threads=1", "run_dir=run", "agent.hidden=[8]"]
    words += ["eval.episodes=1", "eval.max_steps=5"]
    done = rlstack_command("train", *given, *words)
    assert done.status == 0, done.err
    stored = OmegaConf.load(tmp_path / "run/config.yaml").agent
    assert (stored.algorithm, stored.alpha, stored.epsilon.end, stored.temperature) == (CLASS, 0.8, 0.2, 0.03)


@pytest.mark.slow
def test_an_own_network_is_exported_as_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    exported = export_policy(mine("dqn"), tmp_path / "mine.onnx", format="onnx")
    assert exported.agreement.wrong == 0 and (tmp_path / "mine.onnx").is_file()


def test_masks_hold_for_the_choices_of_an_own_network() -> None:
    env = Decisions(Unbounded(3), Categorical(4, shape=()), masked=True)
    assert (mine("ppo", env).policy(explore=True)(env.draw(40))["action"] > 0).all()
