"""Files of all six types of published agents are recognised, loaded, refused and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlstack import envs
from rlstack.adapters.marinenav.agents import (
    FILES,
    NETWORKS,
    load_published,
    network_of,
    published_agent,
    published_policy,
    save_published,
)
from rlstack.agents import make_agent
from rlstack.config import ConfigError
from rlstack.data.flatten import flatten_agents
from tests.adapters.published_networks import (
    CONTINUOUS,
    SMALL,
    Inputs,
    acting_network,
    decide,
    native,
    traced,
    world,
    write,
)
from tests.exhaustive import exhaustive
from tests.refusals import refused


def inputs_of(td: Any) -> Inputs:
    own, objects, mask = (td["agents", "observation", key].flatten(0, 1) for key in ("self", "objects", "mask"))
    return own, objects, mask.double()


def acted(policy: Any, td: Any) -> Tensor:
    """Returns a policy's action; its random numbers are the same at every call."""
    torch.manual_seed(7)
    return policy(td.copy())["agents", "action"]


def lively(env: Any) -> Any:
    """Returns an observation with other vessels in sight and velocities that are not zero."""
    td = env.reset()
    observation = td["agents", "observation"]
    torch.manual_seed(1)
    observation["self"].copy_(torch.randn_like(observation["self"]) * 10)
    observation["objects"].copy_(torch.randn_like(observation["objects"]) * 5)  # beyond the mask as well
    observation["mask"].copy_(torch.rand(observation["mask"].shape) < 0.5)
    return td


# -- acting as published -----------------------------------------------------------------------------------------


@exhaustive("form", ["weights", "export", "arrays"])
@exhaustive("kind", NETWORKS)
def test_every_agent_acts_as_described(kind: str, form: str, tmp_path: Path) -> None:
    network, env = acting_network(kind), world(kind)
    source: Any = {name: value.numpy() for name, value in network.state_dict().items()}
    if form == "weights":
        source = write(tmp_path, kind, network)
    elif form == "export":
        source = tmp_path / f"{kind}.pt"
        traced(kind, network).save(str(source))
    td = lively(env)
    action = acted(published_policy(source, env), td)
    torch.manual_seed(7)
    expected = decide(kind, network, inputs_of(td))
    assert action.shape == ((6, 4, 2) if kind in CONTINUOUS else (6, 4))
    # levels are drawn in the shape of the observations: the same numbers in the same order
    torch.testing.assert_close(action.flatten(0, 1), expected, rtol=0, atol=1e-12)
    assert len(action.flatten(0, 1).unique(dim=0)) > 1


# -- the way there and back --------------------------------------------------------------------------------------


@exhaustive("kind", NETWORKS)
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    agent, env = native(kind), world(kind)
    save_published(agent, tmp_path / "saved")
    names = sorted(name for part in NETWORKS[kind] for name in FILES[part])
    assert sorted(file.name for file in (tmp_path / "saved").iterdir()) == names
    again = published_agent(tmp_path / "saved", env, 1000, agent_type=None)
    assert type(again) is type(agent) and not load_published(tmp_path / "saved").missing
    for part in NETWORKS[kind]:
        ours, theirs = network_of(agent, part).state_dict(), network_of(again, part).state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(theirs[key], value) for key, value in ours.items())
    td = lively(env)
    expected = acted(agent.policy(explore=False), td)
    for policy in (again.policy(explore=False), published_policy(tmp_path / "saved", env)):
        assert torch.equal(acted(policy, td), expected)


@exhaustive("kind", NETWORKS)
def test_it_goes_on_training_with_the_weights_in_its_targets(kind: str, tmp_path: Path) -> None:
    save_published(native(kind), tmp_path)
    env = world(kind)
    agent = published_agent(tmp_path, env, 1000, batch_size=8, buffer_size=64)
    assert agent.config.batch_size == 8 and agent.config.hidden == [12, 12]
    state = agent.state_dict()
    if kind == "AC-IQN":
        loss = state["networks"]["loss"]
        pairs = [(v, loss[f"target_{k}"]) for k, v in loss.items() if f"target_{k}" in loss]
    else:
        nets, targets = state["networks"], state["targets"].items()
        pairs = [(nets[name][key], value) for name, target in targets for key, value in target.items()]
    assert len(pairs) >= 5 and all(torch.equal(a, b) for a, b in pairs)
    before = {part: {k: v.clone() for k, v in network_of(agent, part).state_dict().items()} for part in NETWORKS[kind]}
    rollout = env.rollout(3, agent.policy(explore=True), break_when_any_done=False)
    agent.update_once(flatten_agents(rollout))
    for part in NETWORKS[kind]:
        after = network_of(agent, part).state_dict()
        assert any(not torch.equal(after[key], value) for key, value in before[part].items()), part


def test_missing_critics_start_fresh_with_a_warning(tmp_path: Path) -> None:
    network = acting_network("DDPG")
    file = write(tmp_path, "DDPG", network)
    with pytest.warns(UserWarning, match="published without critic, which start fresh") as caught:
        agent = published_agent(file, world("DDPG"), 1000, agent_type="ddpg")
    assert len(caught) == 1
    bias = network_of(agent, "actor").state_dict()["output.bias"]
    assert torch.equal(bias, network.state_dict()["output_layer.bias"])
    refused(ConfigError, "AC-IQN or of DDPG; set agent_type", published_agent, file, world("DDPG"), 1000)


@pytest.mark.filterwarnings("error")
def test_a_policy_needs_no_critics_and_warns_of_nothing(tmp_path: Path) -> None:
    env = world("SAC")
    policy = published_policy(write(tmp_path, "SAC", acting_network("SAC")), env)
    action = policy(env.reset())["agents", "action"]
    assert action.shape[-1] == 2 and bool((action.abs() <= 1).all())


@pytest.mark.slow
def test_only_published_networks_are_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TD3 is not one of the published agents AC-IQN, IQN"):
        save_published(make_agent("td3", world("DDPG"), 1000, **SMALL), tmp_path)
    others: list[tuple[str, dict[str, Any]]] = [
        ("DQN", {"dueling": True}),
        ("DQN", {"inputs": "features"}),
        ("DQN", {"hidden": [12, 12, 12]}),
        ("DQN", {"normalize_observations": True}),
        ("SAC", {"squash": "tanh"}),
        ("AC-IQN", {"critic": "late"}),
        ("Rainbow", {"value_max": 9.0}),
    ]
    for kind, changes in others:
        with pytest.raises(ConfigError, match=r"has other networks than the published; agent=.*_published has those"):
            save_published(native(kind, **changes), tmp_path)
    assert not list(tmp_path.iterdir())


# -- which agent it is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_type_is_found_out(kind: str, tmp_path: Path) -> None:
    save_published(native(kind), tmp_path)
    assert load_published(tmp_path).agent_type == kind
    part = next(iter(NETWORKS[kind]))
    alone = load_published(tmp_path / FILES[part][0])
    assert alone.agent_type == (None if kind in ("AC-IQN", "DDPG") else kind) and list(alone.arrays) == [part]
    named = tmp_path / f"{kind.replace('-', '_')}_params.npz"
    np.savez(named, **alone.arrays[part])
    assert load_published(named).agent_type == kind
    assert load_published(named, kind.lower().replace("-", "_")).agent_type == kind


def test_a_directory_of_two_agents_needs_the_type(tmp_path: Path) -> None:
    for kind in ("SAC", "DQN"):
        save_published(native(kind), tmp_path)
    refused(ConfigError, "several agents; set agent_type", load_published, tmp_path)
    assert list(load_published(tmp_path, "SAC").arrays) == ["actor", "critic_1", "critic_2"]
    assert list(load_published(tmp_path, "DQN").arrays) == ["network"]


# -- what fits no published agent --------------------------------------------------------------------------------


ACTOR = Path(__file__).resolve().parents[1] / "fixtures/marinenav/AC_IQN_params.npz"


def unreadable(match: str, *arguments: Any, **options: Any) -> None:
    refused(ConfigError, match, load_published, *arguments, **options)


def test_incomplete_and_mixed_directories(tmp_path: Path) -> None:
    needed = "actor_network_params.pth, critic_network_params.pth"
    unreadable(f"holds no published agent, needed is one of: {needed}", tmp_path)
    save_published(native("SAC"), tmp_path)
    unreadable("are not DQN, needed is one of: ", tmp_path, "DQN")
    (tmp_path / "critic_2_params.pth").unlink()
    unreadable("actor_network_params.pth, critic_1_params.pth are not one agent.*an actor alone", tmp_path)
    unreadable("are not SAC, needed is one of: ", tmp_path, agent_type="SAC")
    unreadable(r"no option 'TD3'.*AC-IQN.*Rainbow", tmp_path, agent_type="TD3")
    unreadable("No such file or directory", tmp_path / "nowhere")


def test_networks_of_different_agents(tmp_path: Path) -> None:
    save_published(native("DDPG"), tmp_path)
    torch.save(acting_network("SAC").state_dict(), tmp_path / "actor_network_params.pth")
    unreadable("actor_network_params.pth, critic_network_params.pth are of different agents", tmp_path)
    save_published(native("DQN"), tmp_path)
    unreadable("holds an agent of type DQN, not IQN", tmp_path / "network_params.pth", "IQN")


def arrays(**changes: Any) -> dict[str, Any]:
    """Returns the arrays of a published actor with some replaced, or left out."""
    with np.load(ACTOR) as file:
        changed = {**file, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not None}


WEIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"cos_embedding__weight": np.zeros((256, 64))}, "has also cos_embedding.weight"),
    ({"output_layer__bias": None}, "lacks output_layer.bias .compared with AC-IQN's"),
    ({"output_layer__bias": np.zeros(9), "output_layer__weight": np.zeros((9, 128))}, "9 outputs, not 2"),
    ({"hidden_layer__weight": np.zeros(128)}, r"hidden_layer.weight is float\d+ of shape \(128,\)"),
    ({"hidden_layer__bias": np.zeros(128, dtype=int)}, "hidden_layer.bias is int64"),
    ({"hidden_layer__bias": np.array([None] * 128)}, "not plain data"),
    ({"hidden_layer__bias": np.full(128, np.nan)}, "hidden_layer.bias has numbers that are not finite"),
]


@pytest.mark.parametrize(("changes", "message"), WEIGHTS)
def test_other_weights(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "AC_IQN_params.npz", **arrays(**changes))
    unreadable(f"AC_IQN_params.npz: .*{message}", tmp_path / "AC_IQN_params.npz")


def test_layers_that_do_not_follow_one_another(tmp_path: Path) -> None:
    np.savez(tmp_path / "AC_IQN_params.npz", **arrays(hidden_layer__weight=np.zeros((128, 216))))
    with pytest.raises(ConfigError, match=r"size mismatch for trunk\.0\.weight"):
        published_policy(tmp_path / "AC_IQN_params.npz", world("AC-IQN"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_programs_with_other_weights(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)).save(str(tmp_path / "other.pt"))
    unreadable("other.pt: actor: not the weights .*: lacks .*; has also bias, weight", tmp_path / "other.pt")


@exhaustive("kind", NETWORKS)
def test_envs_and_overrides_that_do_not_fit(kind: str, tmp_path: Path) -> None:
    file = write(tmp_path, kind, acting_network(kind))
    other = "DQN" if kind in CONTINUOUS else "SAC"
    for env, match in (
        (world(other), r"set env\.continuous_actions=(true|false)"),
        (envs.make("gymnasium", id="CartPole-v1"), "needs? the observation"),
    ):
        refused(ConfigError, match, published_policy, file, env)
    options: list[tuple[dict[str, Any], str]] = [
        ({"hidden": [8, 8]}, r"agent.hidden: \[8, 8\] contradicts the published weights"),
        ({"gama": 0.5}, r"agent\.gama: unknown key"),
    ]
    if kind in ("DQN", "DDPG"):
        wrong: Any = {"DQN": {"dueling": True}, "DDPG": {"inputs": "features"}}[kind]
        options.append((wrong, r"network_params\.pth: (network|actor): "))
    for given, match in options:
        refused(ConfigError, match, published_agent, file, world(kind), 1000, agent_type=kind, **given)
