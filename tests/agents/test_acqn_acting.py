"""The AC-IQN agent: how it explores, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.agents import Agent, make_agent
from rlstack.config import ConfigError
from tests.agents.small_agents import Detour, online_parameters, sequences, small
from tests.refusals import refused

# -- how it acts -------------------------------------------------------------------------------------------------------


def act(agent: Agent, observation: Tensor, explore: bool) -> Tensor:
    td = TensorDict({"observation": observation}, observation.shape[:1])
    return agent.policy(explore)(td)["action"]


def test_epsilon_one_is_uniform() -> None:
    agent = small(epsilon=1.0)
    actions = act(agent, torch.zeros(5000, 2), explore=True)
    assert stats.kstest(actions[:, 0].numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_every_agent_of_a_world_explores_on_its_own() -> None:
    env = envs.make("marinenav", num_worlds=500, num_robots=2)
    agent = small(env, epsilon=0.3, noise_high=0.0, noise_low=0.0)
    td = env.reset()
    greedy = agent.actor(td["agents", "observation"])
    taken = agent.policy(explore=True)(td)["agents", "action"]
    assert taken.shape == (500, 2, 2) and taken.abs().max() <= 1
    random = taken != greedy
    assert torch.equal(random[..., 0], random[..., 1]), "an action is random as a whole"
    share = random[..., 0].double().mean(0)
    assert ((share - 0.3).abs() < 0.09).all()
    both = random[..., 0].all(-1).double().mean()
    assert abs(float(both) - 0.09) < 0.05


def test_without_noise_exploring_is_greedy() -> None:
    for agent in (
        small(epsilon=0.0, noise_low=0.0, noise_high=0.0, greedy_actor="online"),
        small(epsilon=0.0, noise_scale=0.0, greedy_actor="online"),
    ):
        observation = torch.randn(40, 2)
        assert torch.equal(act(agent, observation, True), act(agent, observation, False))


def test_noise_is_log_spaced_over_the_worlds() -> None:
    agent = small(epsilon=0.0, noise_low=0.001, noise_high=0.1, noise_scale=0.5, output_scale=1e-6)
    for parameter in online_parameters(agent, "actor"):
        parameter.data.zero_()
    draws = act(agent, torch.zeros(5, 4000, 2), explore=True)[..., 0]
    expected = 0.5 * torch.logspace(-3, -1, 5)
    torch.testing.assert_close(draws.std(1), expected, rtol=0.06, atol=0)
    assert (draws.mean(1).abs() < expected / 10).all()


def test_an_unbatched_env_gets_one_noise_size(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small(epsilon=0.0, noise_low=0.3, noise_high=0.5, noise_scale=1.0)
    for parameter in online_parameters(agent, "actor"):
        parameter.data.zero_()
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)
    action = agent.policy(explore=True)(TensorDict({"observation": torch.zeros(2)}, []))["action"]
    assert action.shape == (1,)
    assert float(action) == pytest.approx(math.sqrt(0.3 * 0.5))  # the middle of the log-spaced ones


@pytest.mark.slow
def test_greedy_actor_is_the_one_asked_for() -> None:
    observation = torch.randn(6, 2)
    for which in ("online", "target"):
        agent = small(greedy_actor=which, target_tau=0.01)
        policy = agent.policy(explore=False)
        for frames in (50, 100):
            agent.learn(sequences(50), frames)
        networks = (agent.actor, agent.loss.target_actor_network)
        expected = networks[which == "target"](observation)
        other = networks[which != "target"](observation)
        taken = policy(TensorDict({"observation": observation}, [6]))["action"]  # built before the updates
        assert torch.equal(taken, expected) and not torch.equal(taken, other)
        assert not taken.requires_grad


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"gama": 0.9}, r"agent.gama: unknown key, did you mean 'gamma'\?"),
        ({"batch_size": "many"}, "agent.batch_size: expected a whole number such as 64 or 1e6, got 'many'"),
        ({"gamma": 1.5}, "agent.gamma: 1.5 is outside"),
        ({"target_tau": 0.0}, "agent.target_tau: 0.0 is outside"),
        ({"frames_per_update": 0}, "agent.frames_per_update: 0.0 is outside"),
        ({"critic": "gate"}, "agent.critic: did you mean 'gated'"),
        ({"batch_size": 2000}, "agent: batch_size 2000 is larger than buffer_size 1000"),
        ({"noise_low": 1.0}, "agent: noise_low 1.0 is above noise_high"),
        ({"cvar": 0.25, "candidates": 1}, "cvar has no effect with candidates=1.*; give candidates=16, or cvar=1.0"),
        ({"critic": "gated", "hidden": [8, 4]}, "critic=gated has two hidden layers of one width"),
        ({"lr_actor": {"kind": "constant"}}, "agent.lr_actor: kind 'constant' takes only start and warmup"),
        ({"algorithm": "acqm"}, "did you mean 'acqn'"),
        ({"algorithm": "no.such.module:Agent"}, "agent.algorithm: no.such.module:Agent cannot be imported"),
        ({"algorithm": ".relative:Agent"}, "agent.algorithm: .relative:Agent cannot be imported"),
        ({"algorithm": "rlstack.agents.base:Agent"}, "base:Agent has no Config, a dataclass of its options"),
        ({"algorithm": "rlstack.agents.acqn:Nothing"}, "has no 'Nothing'; it has .*ACQN"),
    ],
)
def test_mistakes_in_the_configuration_are_one_line(overrides: dict[str, Any], message: str) -> None:
    refused(ConfigError, message, small, **overrides)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            Detour(discrete=True),
            r"agent=acqn needs continuous actions, the env has 3 discrete actions; choose an agent .*, sac\)$",
        ),
        (
            envs.make("marinenav", num_worlds=1, continuous_actions=False),
            r"choose an agent for such actions \(a2c, .*\), or set env.continuous_actions=true$",
        ),
    ],
)
def test_an_env_it_cannot_act_on_is_one_line(env: EnvBase, message: str) -> None:
    refused(ConfigError, message, small, env)


def test_of_all_candidates_the_one_with_the_best_worst_half_is_chosen() -> None:
    agent = small(candidates=32, candidate_spread=0.5, cvar=0.5)
    policy, observation = agent.policy(explore=False), torch.randn(7, 2)
    action = policy(TensorDict({"observation": observation}, [7]))["action"]
    assert torch.equal(policy(TensorDict({"observation": observation}, [7]))["action"], action)  # deterministic
    n = agent.config.num_quantiles
    levels = (torch.arange(n) + 0.5) / (2 * n)  # over the worst half

    def value(a: Tensor) -> Tensor:
        return agent.loss.target_critic_network(observation, a, levels.expand(7, -1)).mean(-1)

    own = agent.loss.target_actor_network(observation)
    proposals = torch.stack([(own + offset).clamp(-1, 1) for offset in agent._offsets[:, 0]])
    assert torch.equal(proposals[0], own) and len(proposals) == 32
    best = torch.stack([value(proposal) for proposal in proposals]).amax(0)
    torch.testing.assert_close(value(action), best, atol=1e-6, rtol=0)
    assert (value(action) > value(own)).any()


def test_candidates_spread_as_asked() -> None:
    offsets = small(candidates=512, candidate_spread=0.3)._offsets[1:, 0, 0]
    assert float(offsets.mean()) == pytest.approx(0, abs=0.01)
    assert float(offsets.std()) == pytest.approx(0.3, rel=0.03)


def test_candidates_in_several_dimensions_and_worlds_keep_their_shape() -> None:
    env = envs.make("marinenav", num_worlds=3)
    agent = make_agent("acqn", env)
    together = agent.policy(explore=False)(env.reset())["agents", "action"]
    assert together.shape == (3, 5, 2) and (together.abs() <= 1).all()
    env.set_seed(0)
    td = env.reset()
    for world in range(3):
        alone = agent.policy(explore=False)(td[world : world + 1])["agents", "action"]
        torch.testing.assert_close(alone[0], agent.policy(explore=False)(td.clone())["agents", "action"][world])


def test_a_single_candidate_is_the_actors_own_action() -> None:
    agent = small(candidates=1)
    observation = torch.randn(5, 2)
    action = agent.policy(explore=False)(TensorDict({"observation": observation}, [5]))["action"]
    assert torch.equal(action, agent.loss.target_actor_network(observation))
