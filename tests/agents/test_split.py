"""Two sides that share nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.agents.split import SIDES, Split
from rlstack.config import ConfigError
from rlstack.data.flatten import flatten_agents
from tests.play.duel import NAME


def duel(size: int = 2, **options: Any) -> Any:
    return envs.make(NAME, num_worlds=6, size=size, **options)


def split(env: Any, name: str = "ppo", **options: Any) -> Any:
    torch.manual_seed(0)
    return rlstack.make_agent(name, env, 1000, hidden=[8], parameters="split", **options)


def gathered(env: Any, agent: Any) -> Any:
    collector = rlstack.make_collector(env, agent.policy(explore=True), 4)
    batch = next(iter(collector))
    collector.shutdown(close_env=False)
    return batch


def test_each_side_acts_by_its_own_networks() -> None:
    env = duel()
    agent = split(env)
    assert isinstance(agent, Split) and {name.split("/")[0] for name in agent.networks} == set(SIDES)
    with torch.no_grad():
        for part, favourite in zip(agent.parts, (0, 2)):
            for parameter in part.actor.parameters():
                parameter.zero_()
            list(part.actor.parameters())[-1][favourite] = 10.0
    action = agent.policy(explore=False)(env.reset())["agents", "action"]
    assert bool((action[:, :2] == 0).all()) and bool((action[:, 2:] == 2).all())


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_each_side_learns_from_its_own_rows_alone(name: str) -> None:
    env = duel()
    agent = split(env, name, **({"random_frames": 0, "batch_size": 8} if name == "dqn" else {}))
    sequences = flatten_agents(gathered(env, agent))
    seen: list[Any] = []
    for part in agent.parts:
        part.learn = lambda rows, frames: (seen.append(rows), {"loss/total": 1.0})[1]
    metrics = agent.learn(sequences, 96)
    assert set(metrics) == {"loss/total_first", "loss/total_second"}
    share, ours, theirs = range(3)
    whole = sequences["observation"].unflatten(0, (6, 4))
    for number, rows in enumerate(seen):
        expected = whole[:, 2 * number : 2 * number + 2].flatten(0, 1)
        assert torch.equal(rows["observation"], expected)
    first, second = (rows["observation"].unflatten(0, (6, 2))[:, 0] for rows in seen)
    assert torch.equal(first[..., ours], second[..., theirs]) and torch.equal(first[..., share], second[..., share])


def test_it_learns_and_goes_on_from_its_state() -> None:
    env = duel()
    agent, other = split(env), split(env)
    batch = flatten_agents(gathered(env, agent))
    before = [parameter.clone() for parameter in agent.parameters()]
    agent.learn(batch, 96)
    assert agent.updates > 0 and agent.frames == 96
    assert not all(map(torch.equal, before, agent.parameters()))
    other.load_state_dict(agent.state_dict())
    assert all(map(torch.equal, agent.parameters(), other.parameters())) and other.updates == agent.updates
    for one in (agent, other):
        torch.manual_seed(3)
        one.learn(batch, 192)
    assert all(map(torch.equal, agent.parameters(), other.parameters()))


def test_driving_one_side_is_the_first_sides_part() -> None:
    env = duel()
    agent = split(env)
    root = env.reset()
    half = root.empty().set("agents", root["agents"][:, 2:])
    shown = agent.policy(explore=False)(half.clone())["agents", "action"]
    assert torch.equal(shown, agent.parts[0].policy(explore=False)(half.clone())["agents", "action"])


def test_what_it_cannot_do_is_one_line() -> None:
    with pytest.raises(ConfigError, match="two sides, an even number of agents; it has 1"):
        split(envs.make("arena", num_worlds=2))
    for option in ({"recurrent": {"kind": "gru", "size": 8}}, {"critic": "central"}):
        with pytest.raises(ConfigError, match=r"needs agent\.recurrent=null and agent\.critic=own"):
            split(duel(), **option)
    with pytest.raises(ConfigError, match="cannot imitate"):
        rlstack.imitate(split(duel()), duel(), "high", frames=10)
