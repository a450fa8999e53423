"""Agents that learn from recorded data: what each learns from the same decisions."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical

from rlstack.agents import make_agent
from rlstack.config import ConfigError
from tests.agents.small_agents import Decisions, equal
from tests.agents.test_agents_going_on import both_go_on
from tests.exhaustive import exhaustive

OPTIONS: dict[str, Any] = {
    **{"hidden": [32], "precision": "float32", "batch_size": 64, "frames_per_update": 64},
    **{"learning_starts": 0, "random_frames": 0, "target_tau": 0.1},
}
BEST = 0.5


def numbers() -> Decisions:
    return Decisions(Bounded(-1.0, 1.0, shape=(2,)), Bounded(-2.0, 2.0, shape=(1,)))


def choices() -> Decisions:
    return Decisions(Bounded(-1.0, 1.0, shape=(2,)), Categorical(3, shape=()))


def single(action: torch.Tensor, reward: torch.Tensor) -> TensorDict:
    """Makes ``[N]`` episodes of one decision."""
    count = len(action)
    flag = torch.ones(count, 1, dtype=torch.bool)
    following = {
        **{"observation": torch.rand(count, 2) * 2 - 1, "reward": reward.reshape(-1, 1)},
        **{"terminated": flag, "truncated": ~flag},
    }
    seen = {"observation": torch.rand(count, 2) * 2 - 1, "action": action}
    return TensorDict({**seen, "next": following}, [count]).auto_batch_size_(1)


def learned(name: str, env: Any, data: TensorDict, updates: int, **options: Any) -> torch.Tensor:
    """Returns the greedy actions of an agent that has learned from data alone."""
    agent: Any = make_agent(name, env, updates * 64, **{**OPTIONS, **options})
    agent.load_data(data)
    agent.learn(env.experience(agent, 1, 1)[:, :0], updates * 64)
    assert agent.updates == updates and len(agent.replay) == len(data)
    with torch.no_grad():
        return agent.policy(explore=False)(env.draw(64))["action"]


def uniform(count: int = 2000) -> TensorDict:
    """The actions lie in [-2, 2]; action 1 (0.5 on the agent's own scale) pays most."""
    action = torch.rand(count, 1) * 4 - 2
    return single(action, -3 * (action / 2 - BEST).square().squeeze(-1))


RATES: dict[str, Any] = {
    "critic": {"networks": ["qvalue_network"], "lr": 3e-3},
    "actor": {"networks": ["actor_network"], "lr": 1e-3},
}
TEMPERATURE = {"networks": ["actor_network", "log_alpha"], "lr": 1e-3}


@exhaustive(
    ("name", "updates", "options"),
    [
        ("iql", 100, {"lr": 3e-3, "options": {"loss_function": "l2", "expectile": 0.7, "temperature": 10.0}}),
        ("td3_bc", 150, {"optimizers": RATES}),
        (
            "cql",
            150,
            {
                "optimizers": {**RATES, "actor": TEMPERATURE},
                "options": {"loss_function": "l2", "min_q_weight": 0.1, "num_random": 4},
            },
        ),
    ],
)
def test_what_pays_is_learned_from_data_in_which_it_is_rare(name: str, updates: int, options: dict[str, Any]) -> None:
    acted = learned(name, numbers(), uniform(), updates, **options)
    assert 0.4 < float(acted.mean()) < 1.8  # the mean of the data is 0


def test_a_clone_does_what_was_done() -> None:
    action = (0.8 + 0.1 * torch.randn(2000, 1)).clamp(-2, 2)
    acted = learned("bc", numbers(), single(action, -action.squeeze(-1)), 60, lr=1e-2)
    assert float(acted.mean()) == pytest.approx(0.8, abs=0.1)


@exhaustive(("name", "expected"), [("discrete_cql", 2), ("discrete_iql", 2), ("bc", 0)])
def test_choices_that_pay_are_preferred_to_frequent_ones(name: str, expected: int) -> None:
    """The data contain choice 0 four times as often as choice 2, which pays."""
    action = torch.tensor([0, 0, 0, 0, 1, 2]).repeat(300)
    more = {"options": {"loss_function": "l2", "expectile": 0.7, "temperature": 10.0}} if name == "discrete_iql" else {}
    acted = learned(name, choices(), single(action, 10.0 * (action == 2)), 60, lr=1e-2, **more)
    assert (acted == expected).all()


def test_statistics_are_those_of_the_data() -> None:
    env, data = numbers(), uniform(500)
    agent: Any = make_agent("bc", env, 1000, **OPTIONS, normalize_observations=True)
    agent.load_data(data)
    moments = agent.normalizer.moments[0]
    torch.testing.assert_close(moments.mean.float(), data["observation"].mean(0))
    torch.testing.assert_close(moments.var.float(), data["observation"].var(0, unbiased=False))
    agent.load_data(data, seen=True)
    assert float(moments.count) == 500


def episode() -> TensorDict:
    """Returns three decisions with rewards 1, 2, 4, truncated, and one with reward 8 that ends its episode."""
    seen = torch.tensor([[0.0, 0], [0.1, 0], [0.2, 0], [0.5, 0]])
    flags = torch.tensor([False, False, False, True]).unsqueeze(-1)
    cut = torch.tensor([False, False, True, False]).unsqueeze(-1)
    reward = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    following = {"observation": seen + 0.1, "reward": reward, "terminated": flags, "truncated": cut}
    entries = {"observation": seen, "action": torch.zeros(4, 1), "next": following}
    return TensorDict(entries, [4]).auto_batch_size_(1)


def test_returns_of_several_steps_stay_within_their_episode() -> None:
    agent: Any = make_agent("iql", numbers(), 1000, **{**OPTIONS, "batch_size": 4}, n_step=2, gamma=0.5)
    agent.load_data(episode())
    held = agent.replay.storage.get(torch.arange(4))
    assert held["next", "reward"][:, 0].tolist() == [2.0, 4.0, 4.0, 8.0]
    assert held["gamma"][:, 0].tolist() == [0.25, 0.25, 0.5, 0.5]
    assert held["next", "terminated"][:, 0].tolist() == [False, False, False, True]
    torch.testing.assert_close(held["next", "observation"][:, 0], torch.tensor([0.2, 0.3, 0.3, 0.6]))


def test_rewards_are_scaled_by_the_returns_of_the_episodes() -> None:
    agent: Any = make_agent("iql", numbers(), 1000, **{**OPTIONS, "batch_size": 4}, gamma=0.5, normalize_rewards=True)
    agent.load_data(episode())
    returns = torch.tensor([1.0, 2.5, 5.25, 8.0], dtype=torch.float64)
    torch.testing.assert_close(agent.reward_scaler.moments.var, returns.var(unbiased=False))


def test_terms_of_a_loss_can_be_left_out() -> None:
    env, data = numbers(), uniform(200)
    with pytest.raises(ConfigError, match="loss_weights: it has no loss_q, but loss_actor, loss_qvalue, loss_value"):
        make_agent("iql", env, 1000, **OPTIONS, loss_weights={"loss_q": 0.0})
    agent: Any = make_agent("iql", env, 1000, **OPTIONS, loss_weights={"loss_actor": 0.0})
    agent.load_data(data)
    before = [parameter.detach().clone() for parameter in agent.actor.parameters()]
    agent.learn(env.experience(agent, 1, 1)[:, :0], 64 * 3)
    assert all(torch.equal(old, new) for old, new in zip(before, agent.actor.parameters(), strict=True))


@exhaustive("name", ["td3_bc", "cql"])
def test_a_restored_agent_goes_on_exactly(name: str) -> None:
    env, data = numbers(), uniform(300)
    agent, other = (cast("Any", make_agent(name, env, 1000, **OPTIONS)) for _ in range(2))
    nothing = env.experience(agent, 1, 1)[:, :0]
    for each in (agent, other):
        each.load_data(data)
    agent.learn(nothing, 64 * 3)
    assert equal(*both_go_on(agent, other, [nothing], [64 * 6])) and other.updates == 6
