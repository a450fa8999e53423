"""Models of Stable-Baselines3 as policies of TorchRL envs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import OneHot
from torchrl.envs import EnvBase, InitTracker, TransformedEnv

from rlstack import envs
from rlstack.adapters.sb3.model import SB3Model, load_sb3
from rlstack.adapters.sb3.native import sb3_policy
from rlstack.config import ConfigError
from rlstack.data.collector import make_collector
from tests.adapters.small_worlds import Noise, box
from tests.refusals import refused

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/sb3"
MULTI = {"combat_targets": 17, "enemy_count": 1, "mission_progress": 3, "player_state": 7, "spatial_awareness": 4}


def model(name: str, statistics: bool = True, bounds: bool = True) -> SB3Model:
    """Loads a fixture; without ``bounds``, as a model whose file does not state them."""
    path = FIXTURES / f"{name}_vecnormalize.pkl"
    found = load_sb3(FIXTURES / f"{name}.zip", path if statistics and path.exists() else None)
    return found if bounds else dataclasses.replace(found, low=None, high=None)


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("name", ["a2c_multi_default", "dqn_multi_default"])
def test_structured_observations_are_joined_in_the_models_order(name: str, agents: int | None) -> None:
    """The env lists its keys in another order, and has one that the model does not know."""
    order = {key: MULTI[key] for key in reversed(MULTI)} | {"a_surplus": 2}
    env = Noise(order, 6, num_worlds=64, agents=agents)
    chosen = model(name)
    td = env.reset()
    seen = td["observation"] if agents is None else td["agents", "observation"]
    joined = torch.cat([seen[key] for key in sorted(MULTI)], -1)
    assert chosen.normaliser is not None
    outputs = chosen.network(chosen.normaliser.normalise(joined))[0]
    expected = outputs["logits" if name.startswith("a2c") else "q"].argmax(-1)
    action = sb3_policy(chosen, env)(td).get("action" if agents is None else ("agents", "action"))
    assert torch.equal(action, expected) and len(action.unique()) > 1
    assert env.full_action_spec["action" if agents is None else ("agents", "action")].is_in(action)


def test_actions_as_the_env_wants_them() -> None:
    one_hot = Noise(MULTI, OneHot(6), num_worlds=16)
    td = one_hot.reset()
    action = sb3_policy(model("a2c_multi_default"), one_hot)(td.clone())["action"]
    assert action.shape == (16, 6) and one_hot.action_spec.is_in(action)
    plain = Noise(MULTI, 6, num_worlds=16)
    assert torch.equal(action.long().argmax(-1), sb3_policy(model("a2c_multi_default"), plain)(td)["action"])


def test_gaussian_means_are_clipped_to_the_envs_bounds() -> None:
    env = Noise(32, box((-0.02, 0.01), (-1, 1)), num_worlds=64)
    chosen, td = model("ppo_mlp_box_action", statistics=False, bounds=False), env.reset()
    mean = chosen.network(td["observation"])[0]["mean"]
    action = sb3_policy(chosen, env)(td)["action"]
    assert torch.equal(action[:, 1], mean[:, 1])
    assert torch.equal(action[:, 0], mean[:, 0].clamp(-0.02, 0.01)) and (action[:, 0] != mean[:, 0]).any()


def test_infinite_bounds_of_a_model_say_nothing() -> None:
    chosen = dataclasses.replace(model("sac_small"), low=torch.full((2,), -torch.inf))
    env = Noise(5, box((-9, 1), (-9, 3)))
    action = sb3_policy(chosen, env)(env.reset())["action"]
    assert env.action_spec.is_in(action)


def test_squashed_means_fill_the_envs_bounds() -> None:
    env = Noise(5, box((-2, 1), (0, 3)), num_worlds=64)
    td = env.reset()
    with_their_bounds = sb3_policy(model("sac_small"), env)(td.clone())["action"]
    other = Noise(5, box((-1, 1), (10, 40)), num_worlds=64)
    ours = sb3_policy(model("sac_small", bounds=False), other)(td)["action"]
    torch.testing.assert_close((with_their_bounds[:, 0] + 2) / 3, (ours[:, 0] + 1) / 2)
    torch.testing.assert_close(with_their_bounds[:, 1] / 3, (ours[:, 1] - 10) / 30)


@pytest.mark.parametrize("name", ["a2c_multi_default", "dqn_multi_default", "ppo_mlp_box_action", "sac_small"])
def test_sampling(name: str) -> None:
    observation: Any = MULTI if "multi" in name else 5 if name == "sac_small" else 32
    env = Noise(observation, 6 if "multi" in name else box((-5, 5), (-5, 5)), num_worlds=4000)
    td = env.reset()
    td = td.apply(lambda value: value[:1].expand_as(value).clone())  # the same decision, 4000 times
    chosen = model(name, bounds=False)
    torch.manual_seed(0)
    action = sb3_policy(chosen, env, deterministic=False)(td)["action"]
    outputs = chosen.network(chosen.features(td["observation"][:1]))[0]
    if name.startswith("dqn"):
        assert len(action.unique()) == 1
    elif name.startswith("a2c"):
        frequency = torch.bincount(action, minlength=6) / 4000
        torch.testing.assert_close(frequency, outputs["logits"].softmax(-1)[0], atol=0.03, rtol=0)
    else:
        value = torch.atanh(action / 5) if name == "sac_small" else action
        torch.testing.assert_close(value.mean(0), outputs["mean"][0], atol=0.07, rtol=0)
        torch.testing.assert_close(value.std(0), outputs["log_std"][0].exp(), atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "name, env, message",
    [
        ("sac_small", lambda: Noise(6, box((-1, 1), (-1, 1))), r"SAC model takes a vector of 5 features.*\(6,\)"),
        ("sac_small", lambda: Noise(5, 4), "SAC model has 2 continuous actions, the env takes 4 discrete actions"),
        ("sac_small", lambda: Noise(5, box((-1, 1))), r"2 continuous actions, .* of shape \(1,\)"),
        ("sac_small", lambda: Noise(5, box((-2, 2), (0, 3))), r"bounds high are \[1, 3\], the env's are \[2, 3\]"),
        ("sac_small", lambda: Noise(5, box((-3, 1), (0, 3))), r"bounds low are \[-2, 0\], the env's are \[-3, 0\]"),
        ("sac_small", lambda: Noise({"a": 5}, box((-1, 1), (-1, 1))), r"a vector of 5 features, .*'a': \(5,\)"),
        ("dqn_multi_default", lambda: Noise(32, 6), "DQN model takes .*enemy_count.*a vector of shape"),
        ("dqn_multi_default", lambda: Noise(MULTI | {"enemy_count": 2}, 6), "DQN model takes .*enemy_count"),
        ("dqn_multi_default", lambda: Noise(MULTI, 5), "DQN model has 6 discrete actions, the env takes 5"),
        ("dqn_multi_default", lambda: envs.make("marinenav", num_worlds=2), "the env shows .*objects"),
    ],
)
def test_envs_that_do_not_fit(name: str, env: Any, message: str) -> None:
    refused(ConfigError, message, sb3_policy, model(name), env())


# -- memory --------------------------------------------------------------------------------------------------------


def replayed(chosen: SB3Model, observation: Tensor, starts: Tensor) -> Tensor:
    """Returns the actions ``[N, T]`` of the bare network for a sequence ``[N, T, F]``."""
    network = chosen.network
    memory, actions = network.initial_memory(len(observation)), []
    for t in range(observation.shape[1]):
        outputs, memory = network(observation[:, t], memory, starts[:, t])
        actions.append(network.choose(outputs))
    return torch.stack(actions, 1)


def starts_of(rollout: TensorDictBase) -> Tensor:
    """Returns where episodes begin in ``[W, T]``, given the ends of those before."""
    done = rollout["next", "done"][..., 0]
    return torch.cat((torch.ones_like(done[:, :1]), done[:, :-1]), 1)


def check_memory(chosen: SB3Model, rollout: TensorDictBase, group: str | None = None) -> None:
    place: Any = rollout if group is None else rollout[group]
    observation, action, starts = place["observation"], place["action"], starts_of(rollout)
    assert starts[:, 1:].any()
    if group is not None:
        agents = observation.shape[2]
        observation, action = (value.transpose(1, 2).flatten(0, 1) for value in (observation, action))
        starts = starts.repeat_interleave(agents, 0)
    assert torch.equal(action, replayed(chosen, observation, starts))
    never = torch.zeros_like(starts)
    assert not torch.equal(action, replayed(chosen, observation, never))  # the resets matter


def tracked(env: EnvBase) -> EnvBase:
    return TransformedEnv(env, InitTracker())


@pytest.mark.parametrize("agents", [None, 2])
@pytest.mark.parametrize("wrap", [lambda env: env, tracked])
def test_memory_begins_anew_with_every_episode(wrap: Any, agents: int | None) -> None:
    chosen, env = model("recurrent_ppo_small"), wrap(Noise(5, 4, num_worlds=6, agents=agents))
    policy = sb3_policy(chosen, env)
    for _ in range(2):  # the second rollout resets the env in the middle of episodes
        check_memory(chosen, env.rollout(25, policy, break_when_any_done=False), None if agents is None else "agents")


def test_memory_in_a_collector_goes_on_between_batches() -> None:
    chosen, env = model("recurrent_ppo_small"), Noise(5, 4, num_worlds=6)
    batches = [batch.clone() for batch in make_collector(env, sb3_policy(chosen, env), 10, total_frames=6 * 30)]
    assert len(batches) == 3
    check_memory(chosen, torch.cat(batches, 1))


def test_forgetting() -> None:
    env = Noise(5, 4, num_worlds=64)
    policy, td = sb3_policy(model("recurrent_ppo_small"), env), env.reset()
    first = policy(td.clone())["action"]
    later = policy(td.clone())["action"]
    policy.reset()
    assert torch.equal(policy(td.clone())["action"], first) and not torch.equal(later, first)
