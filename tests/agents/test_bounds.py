"""Learned scales stay within their bounds, and can return from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchrl.data import Unbounded

from rlstack.agents.on_policy import LOG_STD_RANGE
from rlstack.agents.sac import LOG_ALPHA_RANGE
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from tests.agents.small_agents import plain, small


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("end", LOG_STD_RANGE)
def test_the_spread_of_a_policy(name: str, end: float) -> None:
    env = plain(discrete=False)
    agent: Any = small(env, name=name)
    batch = agent.rollout(env.experience(agent, 2, 8))
    agent.actor.log_std.data.fill_(3 * end)
    agent.optimizer.minimize(agent.objective, agent.for_step(batch))
    assert agent.actor.log_std.tolist() == [end, end]
    distribution, _ = agent.policy_and_value(batch)
    assert torch.isfinite(distribution.log_prob(batch["action"])).all()


@pytest.mark.parametrize("target", [1e3, -1e3])
def test_the_temperature_of_sac(target: float) -> None:
    """With a target entropy out of reach, the temperature would otherwise grow (or shrink) without end."""
    env = plain(discrete=False)
    agent: Any = small(env, name="sac", target_entropy=target, lr_alpha=100.0)
    agent.update_once(env.experience(agent, 2, 8))
    end = LOG_ALPHA_RANGE[target > 0]
    assert agent.temperature.log_alpha.item() == end
    assert torch.isfinite(agent.temperature())


def test_the_variances_of_normalisers() -> None:
    """A constant observation has variance zero and a huge one a huge variance; the output stays within +-10."""
    for values in (torch.full((50, 2), 3.0), torch.full((50, 2), 1e30) * torch.tensor([[1.0, -1.0]])):
        normalizer = ObservationNormalizer(Unbounded((2,)))
        normalizer.update(values)
        scaled = normalizer(torch.cat((values, torch.zeros(1, 2), values + 1)))
        assert torch.isfinite(scaled).all() and scaled.abs().max() <= 10
    scaler = RewardScaler(0.99)
    scaler.moments.update(torch.zeros(10))
    assert scaler(torch.tensor([1e30, -1.0, 0.0])).tolist() == [10.0, -10.0, 0.0]
