"""A world's own players as experts for imitation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rlstack
from rlstack import envs
from rlstack.config import ConfigError
from rlstack.envs.rocket.players import SIDES
from rlstack.play.versus import ScriptedPolicy, own_policy
from tests.play.duel import NAME


def test_a_script_drives_both_sides() -> None:
    env = envs.make(NAME, num_worlds=4, size=2)
    policy = own_policy(env, "high")
    assert policy is not None
    assert bool((policy(env.reset())["agents", "action"] == 2).all())
    assert own_policy(env, "unknown") is None
    assert own_policy(envs.make("arena", num_worlds=2), "rule") is None


@pytest.mark.parametrize("side", ["first", "second", "both"])
def test_with_an_opponent_inside_it_drives_the_side_that_learns(side: str) -> None:
    env: Any = envs.make("rocket", num_worlds=6, random_states=1.0, opponents={"players": ["random"], "side": side})
    root = env.reset()
    everyone = SIDES.scripted["rule"](env.inner, torch.arange(6))
    own = everyone.flatten(0, 1)[env.learners]
    shown = ScriptedPolicy(env, "rule")(root)["agents", "action"]
    assert shown.shape == (6, 1, 8) and bool((shown[:, 0] == own).all())


def test_an_agent_learns_what_the_script_does() -> None:
    env: Any = envs.make(NAME, num_worlds=8)
    agent: Any = rlstack.make_agent("ppo", env, 1000, hidden=[16])
    rlstack.imitate(agent, env, "high", frames=400, epochs=20, batch_size=64, lr=1e-2)
    assert bool((agent.policy(explore=False)(env.reset())["agents", "action"] == 2).all())
    with pytest.raises(ConfigError, match="nobody"):
        rlstack.imitate(agent, env, "nobody", frames=10)
