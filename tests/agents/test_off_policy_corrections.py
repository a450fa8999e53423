"""Corrections for data that another policy gathered: V-trace for on-policy agents, Retrace for off-policy ones."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torchrl.data import Categorical, Unbounded

from rlstack.agents import build_agent, completed
from rlstack.config import ConfigError
from rlstack.data.flatten import n_step_returns, transitions
from rlstack.losses.dqn import DQNLoss
from tests.agents.recall import Recall
from tests.agents.small_agents import Decisions, plain, small, some_arrive
from tests.agents.test_recurrent_agents import batches
from tests.agents.test_recurrent_agents import small as with_memory
from tests.exhaustive import exhaustive

DOUBLE = torch.float64


def moved(agent: Any) -> None:
    """Moves the networks away from where they were when the data were gathered."""
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


# -- V-trace -------------------------------------------------------------------------------------------------------


def targets(agent: Any, data: Any, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """Computes V-trace by its definition (eq. 1 of Espeholt et al. 2018), a sum for every step of every row."""
    c, following = agent.config, data["next"]
    rows, time = data.shape
    value = agent.critic(data["observation"])[..., 0].detach()
    after = agent.critic(following["observation"])[..., 0].detach()
    ratio = (log_prob - data["log_prob"]).exp()
    discount = c.gamma * (~following["terminated"][..., 0])
    # The value of what follows is that of the next entry, unless an episode or the data end there.
    goes_on = ~following["done"][:, :-1, 0]
    after[:, :-1] = torch.where(goes_on, value[:, 1:], after[:, :-1])
    delta = ratio.clamp(max=c.rho_clip) * (following["reward"][..., 0] + discount * after - value)
    target = value.clone()
    for row in range(rows):
        for start in range(time):
            weight = 1.0
            for step in range(start, time):
                target[row, start] += weight * delta[row, step]
                if following["done"][row, step]:
                    break
                weight *= c.gamma * c.gae_lambda * min(c.c_clip, float(ratio[row, step]))
    later = after.clone()
    later[:, :-1] = torch.where(goes_on, target[:, 1:], after[:, :-1])
    gain = following["reward"][..., 0] + discount * later - value
    return (gain if c.name == "ppo" else ratio.clamp(max=c.rho_clip) * gain), target


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_an_agent_that_has_moved_on_learns_from_v_trace(name: str, discrete: bool) -> None:
    clips = {"rho_clip": 1.5, "c_clip": 1.25, "gae_lambda": 0.75}
    env = plain(discrete, DOUBLE)
    agent = small(env, name=name, gamma=0.875, advantage="vtrace", hidden=[8], policy_gain=1.0, **clips)
    data = env.experience(agent, 3, 8)
    moved(agent)
    batch = agent.rollout(data)
    action = data["action"] if discrete else data["raw_action"]
    log_prob = agent.distribution(data["observation"]).log_prob(action).detach()
    ratio = (log_prob - data["log_prob"]).exp()
    assert ratio.max() > 1.5 and ratio.min() < 1
    advantage, target = targets(agent, data, log_prob)
    torch.testing.assert_close(batch["advantage"], advantage.flatten())
    torch.testing.assert_close(batch["return"], target.flatten())
    assert torch.equal(batch["log_prob"], data["log_prob"].flatten())
    assert agent.learn(data, 24)


@exhaustive(("critic", "length"), [("own", 5), ("central", 4), ("own", 4), ("central", 5)], quick=2)
def test_a_memory_is_unrolled_for_the_present_probabilities(critic: str, length: int) -> None:
    """Before any update, the probabilities equal those of acting, wherever an agent acted."""
    env = Recall(6, delay=2, dtype=DOUBLE) if critic == "own" else some_arrive()
    agent = with_memory(env, "ppo", length=length, advantage="vtrace", critic=critic)
    seen, now = [], agent._log_prob
    agent._log_prob = lambda *given: seen.append(now(*given)) or seen[-1]
    for part in islice(batches(env, agent, 12), 2):
        agent.rollout(part)
        active = part["active"]
        torch.testing.assert_close(seen[-1][active], part["log_prob"][active], rtol=2e-5, atol=2e-5)


def test_who_is_not_there_spoils_no_return() -> None:
    env = plain(True, DOUBLE)
    agent = small(env, name="ppo", advantage="vtrace", hidden=[8])
    data = env.experience(agent, 2, 6)
    agent.interface = dataclasses.replace(agent.interface, group="agents")
    data["next", "done"][:, 2] = True
    data["active"][:, 3:] = False
    data["log_prob"][:, 3:] = torch.nan
    batch = agent.rollout(data)
    assert len(batch) == 6 and batch["advantage"].isfinite().all() and batch["return"].isfinite().all()


# -- Retrace -------------------------------------------------------------------------------------------------------

RETRACE = {"correction": "retrace", "n_step": 3}


def dqn(env: Any, **options: Any) -> Any:
    return small(env, name="dqn", hidden=[8], gamma=0.875, **{**RETRACE, **options})


def stream(env: Any, agent: Any, rows: int, steps: int) -> Any:
    """Makes experience in which each step leads to the state of the next, unless an episode ends."""
    data = env.experience(agent, rows, steps)
    seen, goes_on = data["next", "observation"], ~data["next", "done"][:, :-1]
    seen[:, :-1] = torch.where(goes_on, data["observation"][:, 1:], seen[:, :-1])
    return data


def test_what_explores_says_how_probable_its_actions_were() -> None:
    """With four actions, one in four random: 3/4 + 1/16 for the best, 1/16 for each other."""
    agent, seen = dqn(plain(True), epsilon=0.25, random_frames=100), plain(True).draw(200)
    random = agent.policy(explore=True)(seen.clone())
    torch.testing.assert_close(random["log_prob"].exp(), torch.full((200,), 0.25))
    agent.set_frames(100)
    acted, best = agent.policy(explore=True)(seen.clone()), agent.policy(explore=False)(seen.clone())
    wanted = torch.where(acted["action"] == best["action"], 0.8125, 0.0625)
    assert len(wanted.unique()) == 2
    torch.testing.assert_close(acted["log_prob"].exp(), wanted)
    assert "log_prob" not in best and not agent.policy()(seen.clone())["log_prob"].any()


def test_of_legal_actions_only() -> None:
    """With three legal actions of four: 1/2 + 1/6, or 1/6."""
    env = Decisions(Unbounded(3), Categorical(4, shape=()), masked=True)
    agent, seen = dqn(env, epsilon=0.5), env.draw(100)
    acted, best = agent.policy(explore=True)(seen.clone()), agent.policy(explore=False)(seen.clone())
    wanted = torch.where(acted["action"] == best["action"], 2 / 3, 1 / 6)
    torch.testing.assert_close(acted["log_prob"].exp(), wanted)


@pytest.mark.parametrize("decay", [1.0, 0.0])
def test_of_greedy_actions_it_is_the_n_step_return_and_without_traces_one_step(decay: float) -> None:
    env = plain(True, DOUBLE)
    agent = dqn(env, epsilon=0.0, retrace_lambda=decay)
    data = stream(env, agent, 4, 12)
    returns = transitions(n_step_returns(data, 3 if decay else 1, 0.875))
    plain_loss = DQNLoss(agent.network, 0.875)
    windows = transitions(agent.make_n_step(carry=False)(data))
    torch.testing.assert_close(agent.loss.target_value(windows), plain_loss.target_value(returns))


@pytest.mark.parametrize("name", ["qrdqn", "iqn", "rainbow"])
def test_distributions_learn_returns_that_end_with_the_greedy_actions(name: str) -> None:
    """Greedy actions give n-step returns, others one-step returns, whichever agent took them."""
    env = plain(True)
    agent = small(env, name=name, hidden=[8], gamma=0.875, **RETRACE)
    data = stream(env, agent, 4, 12)
    mean = agent.values_as_logits(data["observation"].flatten(0, 1)).argmax(-1).unflatten(0, (4, 12))
    if name == "iqn":  # whose means are of random quantiles
        agent.values_as_logits = lambda seen: torch.nn.functional.one_hot((seen[..., 0] > 0).long(), 4).float()
        mean = (data["observation"][..., 0] > 0).long()
    for shift, steps in ((0, 3), (1, 1)):
        data["action"] = (mean + shift) % 4
        found = agent.corrected(transitions(agent.make_n_step(carry=False)(data)))
        wanted = transitions(n_step_returns(data, steps, 0.875))
        for key in ("reward", "observation", "terminated"):
            torch.testing.assert_close(found["next", key], wanted["next", key])
        torch.testing.assert_close(found["gamma"], wanted["gamma"])
    assert agent.update_once(data)["loss/critic"].isfinite()


def test_a_loss_of_another_target_has_no_retrace() -> None:
    config = {"name": "m", "algorithm": "tests.agents.munchausen:MunchausenDQN", **RETRACE}
    with pytest.raises(ConfigError, match="MunchausenLoss has no retrace, set it to none"):
        build_agent(completed(config), plain(True), 1000)


def test_data_without_probabilities_are_refused() -> None:
    env = plain(True)
    agent = dqn(env)
    with pytest.raises(ConfigError, match="needs the probability of each action, these data have none"):
        agent.learn(env.experience(agent, 2, 4).exclude("log_prob"), 8)
