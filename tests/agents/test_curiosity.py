"""The exploration bonus of random network distillation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrl.objectives import rnd

from rlstack.losses.ppo import RNDLoss
from tests.agents.small_agents import FRESH, copies, equal, plain, small
from tests.exhaustive import exhaustive


def test_the_loss_is_torchrls() -> None:
    predictor, target = nn.Linear(3, 5), nn.Linear(3, 5)
    data = plain(discrete=True).draw(8)
    ours = RNDLoss(predictor, target)(data)["loss_predictor"]
    theirs = rnd.RNDLoss(predictor, target, update_fraction=1.0)
    theirs.set_keys(observation="observation")
    torch.testing.assert_close(ours, theirs(data)["loss_predictor"])
    grads = [
        torch.autograd.grad(value, list(predictor.parameters())) for value in (ours, theirs(data)["loss_predictor"])
    ]
    torch.testing.assert_close(*grads)
    assert not any(parameter.requires_grad for parameter in target.parameters())


@exhaustive("name", FRESH)
def test_what_is_seen_often_is_no_longer_new(name: str) -> None:
    env = plain(discrete=True)
    agent = small(env, name=name, rnd={"lr": 3e-3})
    data = env.experience(agent, 4, 16)
    known, elsewhere = data["next"].reshape(-1), env.draw(64).apply_(lambda seen: seen + 6.0)
    for k in range(40):
        agent.learn(data, 64 * (k + 1))
    curiosity = agent.curiosity
    told = []
    for part in (known, elsewhere):
        scaled = part.select("observation").set("observation", curiosity.statistics(part["observation"]))
        told.append(curiosity.loss.distance(scaled).mean().item())
    assert told[0] < 0.2 * told[1]


def test_the_bonus_joins_the_reward_and_is_told() -> None:
    """The discounted sum of the bonus, which continues across episodes, has a standard deviation of about one."""
    env, found = plain(discrete=True), []
    for own in ({}, {"rnd": {"coefficient": 0.0}}, {"rnd": {"coefficient": 2.0, "gamma": 0.0}}):
        agent = small(env, name="ppo", **own)
        torch.manual_seed(1)
        data = env.experience(agent, 8, 64)
        found.append(agent.scaled_reward(data))
    assert torch.equal(found[0], data["next", "reward"]) and torch.equal(found[0], found[1])
    bonus = (found[2] - found[0]) / 2
    assert (bonus > 0).all() and bonus.std().item() == pytest.approx(1.0, rel=0.01)
    seen = data["next"].select("observation").reshape(-1)
    metrics = agent.curiosity.learn(seen, 4, lambda loss, part: loss(part))
    torch.testing.assert_close(metrics["reward/bonus"], 2 * bonus.mean())


def test_only_the_predictor_learns() -> None:
    env = plain(discrete=True)
    agent = small(env, name="a2c", rnd={})
    before = [copies(list(net.parameters())) for net in (agent.curiosity.predictor, agent.curiosity.target)]
    agent.learn(env.experience(agent, 2, 8), 16)
    after = [copies(list(net.parameters())) for net in (agent.curiosity.predictor, agent.curiosity.target)]
    assert not equal(before[0], after[0]) and equal(before[1], after[1])
    assert "schedule/lr_predictor" in agent.schedule_metrics()


def test_processes_that_learn_together_make_as_many_steps() -> None:
    """Each learns from as many observations as the one that has the fewest, since every step waits for all."""
    env, steps = plain(discrete=True), []
    agent = small(env, name="ppo", rnd={})
    agent.least = lambda number: min(number, 300)
    minimize = agent.predictor_optimizer.minimize

    def counted(loss: Any, part: Any) -> Any:
        steps.append(len(part))
        return minimize(loss, part)

    agent.predictor_optimizer.minimize = counted
    agent.learn(env.experience(agent, 8, 64), 512)
    assert steps == [256, 44]
