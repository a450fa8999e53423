"""The AC-IQN agent: how it acts and explores, when it learns, and recorded updates."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack import envs
from rlstack.agents import Agent
from tests.agents.small_agents import copies, equal, sequences, small
from tests.exhaustive import exhaustive


def act(agent: Agent, observation: Tensor, explore: bool) -> Tensor:
    td = TensorDict({"observation": observation}, observation.shape[:1])
    return agent.policy(explore)(td)["action"]


def test_epsilon_one_is_uniform() -> None:
    actions = act(small(epsilon=1.0), torch.zeros(5000, 2), explore=True)
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
    assert ((random[..., 0].double().mean(0) - 0.3).abs() < 0.09).all()
    assert float(random[..., 0].all(-1).double().mean()) == pytest.approx(0.09, abs=0.05)


def test_noise_is_log_spaced_over_the_worlds() -> None:
    agent = small(epsilon=0.0, noise_low=0.001, noise_high=0.1, noise_scale=0.5, output_scale=1e-6)
    for parameter in agent.actor.parameters():
        parameter.data.zero_()
    draws = act(agent, torch.zeros(5, 4000, 2), explore=True)[..., 0]
    expected = 0.5 * torch.logspace(-3, -1, 5)
    torch.testing.assert_close(draws.std(1), expected, rtol=0.06, atol=0)
    assert (draws.mean(1).abs() < expected / 10).all()


def test_an_unbatched_env_gets_one_noise_size(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small(epsilon=0.0, noise_low=0.3, noise_high=0.5, noise_scale=1.0)
    for parameter in agent.actor.parameters():
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
    offsets = small(candidates=512, candidate_spread=0.3)._offsets[1:, 0, 0]
    assert float(offsets.mean()) == pytest.approx(0, abs=0.01) and float(offsets.std()) == pytest.approx(0.3, rel=0.03)


def test_a_single_candidate_is_the_actors_own_action_and_so_is_exploring_without_noise() -> None:
    agent, observation = small(candidates=1), torch.randn(5, 2)
    assert torch.equal(act(agent, observation, explore=False), agent.loss.target_actor_network(observation))
    for silent in ({"noise_low": 0.0, "noise_high": 0.0}, {"noise_scale": 0.0}):
        agent = small(epsilon=0.0, greedy_actor="online", **silent)
        assert torch.equal(act(agent, observation, True), act(agent, observation, False))


# -- the AC-IQN agent: when it learns, and recorded updates ------------------------------------------------------------


def test_nothing_is_learned_before_learning_starts_or_a_batch_is_there() -> None:
    agent = small(learning_starts=100, n_step=1)
    waiting = small(n_step=1)  # for a batch
    assert waiting.learn(sequences(15), 15) == {} and waiting.updates == 0
    assert waiting.learn(sequences(10), 25) and waiting.updates == 1
    before, frames = copies(agent.parameters()), 0
    while frames + 20 < 100:
        frames += 20
        assert agent.learn(sequences(20), frames) == {}
    assert agent.updates == 0 and equal(before, agent.parameters()) and len(agent.replay) == 80
    assert agent.learn(sequences(20), 100)
    assert agent.updates == 2 and not equal(before, agent.parameters())


@exhaustive(
    ("per_update", "sizes"),
    [
        (10, [16, 24, 7, 3, 1, 9, 55, 5, 40]),
        (10, [20] + [1] * 100),  # 0.1 ten times is not 1
        (3, [18, *[1] * 31, 50]),
        (7, [16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100]),
        (0.5, [16, 1, 2, 5]),
        (1400, [16, 1383, 1, 1400, 2799, 1]),
    ],
)
def test_updates_follow_the_frames_exactly(per_update: float, sizes: list[int]) -> None:
    agent = small(frames_per_update=per_update, num_quantiles=1, n_step=1)
    frames = 0
    for size in sizes:
        frames += size
        metrics = agent.learn(sequences(size), frames)
        assert agent.updates == frames // per_update
        if size >= per_update:
            assert {"loss/critic", "loss/actor"} <= set(metrics)


@pytest.mark.parametrize(
    ("per_update", "sizes", "moved"),
    [
        (10, [205, 36], [40, 80, 120, 160, 200, 240]),  # several are due in one batch
        (30, [30] * 10, [60, 90, 120, 180, 210, 240, 300]),  # which updates fall between
    ],
)
def test_targets_move_at_the_first_update_after_each_multiple(
    per_update: int, sizes: list[int], moved: list[int]
) -> None:
    agent, seen, frames = small(target_tau=1.0, target_every=40, frames_per_update=per_update), [], 0
    agent.move_targets = lambda: seen.append(per_update * agent.updates)
    for size in sizes:
        frames += size
        agent.learn(sequences(size), frames)
    assert seen == moved


@pytest.mark.parametrize("critic", ["late", "gated"])
def test_the_activation_is_that_of_both_networks(critic: str) -> None:
    agent = small(activation="tanh", critic=critic, layer_norm=False, hidden=[16, 16])
    for network in (agent.loss.actor_network, agent.loss.critic_network):
        kinds = {type(module) for module in network.modules()}
        assert nn.Tanh in kinds and nn.ReLU not in kinds


def test_schedules_drive_what_they_should() -> None:
    lr = {"kind": "linear", "start": 1.0e-2, "end": 0.0, "duration": 1.0}
    agent = small(total_frames=1000, lr_actor=lr, lr_critic=5.0e-3, epsilon=lr, noise_scale=lr)

    def state() -> list[float]:
        rates = [agent.optimizers[name].lr for name in ("lr_actor", "lr_critic")]
        return [*rates, agent.scheduled["epsilon"], agent.scheduled["noise_scale"]]

    assert state() == pytest.approx([1e-2, 5e-3, 1e-2, 1e-2])
    agent.learn(sequences(250), 250)
    assert state() == pytest.approx([7.5e-3, 5e-3, 7.5e-3, 7.5e-3])
    before = copies(agent.actor.parameters())
    agent.learn(sequences(750), 1000)
    assert state() == pytest.approx([0, 5e-3, 0, 0])
    assert equal(before, copies(agent.actor.parameters())), "a learning rate of 0 moves nothing"
