"""Agents learn to use their recurrent state, in a task where without one half of the reward is the best possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlstack.agents import make_agent
from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from tests.agents.recall import Recall
from tests.exhaustive import exhaustive

ON: dict[str, Any] = {"hidden": [16], "lr": 5e-3, "steps_per_batch": 16, "gamma": 0.95}
OFF: dict[str, Any] = {
    **{"hidden": [32], "lr": 4e-3, "gamma": 0.95, "batch_size": 256, "buffer_size": 10_000, "learning_starts": 500},
    **{"frames_per_update": 32, "target_tau": 0.1, "target_every": None, "n_step": 3},
    "epsilon": {"kind": "linear", "start": 1.0, "end": 0.1, "duration": 0.5},
}
ACTOR: dict[str, Any] = {
    **{key: OFF[key] for key in OFF if key not in ("epsilon", "lr", "target_every")},
    **{"lr_actor": 3e-3, "lr_critic": 3e-3, "target_tau": 0.05, "random_frames": 500},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "ppo": {**ON, "minibatch_size": 128, "epochs": 6},
    "a2c": {**ON, "normalize_advantage": True, "steps_per_batch": 8},
    "dqn": OFF,
    "iqn": OFF,
    "td3": ACTOR,
    "ddpg": ACTOR,
    "sac": {**ACTOR, "lr_alpha": 1e-2, "alpha": 0.2},
    "tqc": {**ACTOR, "lr_alpha": 1e-2, "alpha": 0.2},
}
FRAMES = {"ppo": 7_936, "a2c": 39_936, "dqn": 13_952, "iqn": 24_000}
FRAMES |= {"td3": 12_032, "ddpg": 12_032, "sac": 16_128, "tqc": 16_128}


def score(name: str, memory: dict[str, Any] | None, frames: int, **options: Any) -> float:
    """Returns the mean reward of greedy episodes after training."""
    torch.manual_seed(0)
    env = Recall(16, delay=4, **options)
    agent = make_agent(name, env, frames, recurrent=memory, **LEARNERS[name])
    for batch in make_collector(env, agent.policy(explore=True), agent.config.steps_per_batch, total_frames=frames):
        agent.learn(flatten_agents(batch, None), agent.frames + batch.numel())
    played = Recall(64, delay=4, seed=9, **options).rollout(40, agent.policy(explore=False), break_when_any_done=False)
    return float(played["next", "reward"][played["next", "done"]].mean())


@exhaustive(("name", "kind"), [("ppo", "lstm"), ("dqn", "gru")])
def test_it_learns_to_remember(name: str, kind: str) -> None:
    burn_in = {"burn_in": 2} if name == "dqn" else {}
    assert score(name, {"kind": kind, "size": 16, "sequence_length": 8, **burn_in}, FRAMES[name]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("ppo", "gru"), ("a2c", "gru"), ("dqn", "lstm"), ("iqn", "gru")])
def test_so_do_the_others(name: str, kind: str) -> None:
    assert score(name, {"kind": kind, "size": 16, "sequence_length": 8}, FRAMES[name]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("td3", "gru"), ("sac", "gru"), ("tqc", "gru"), ("ddpg", "lstm")])
def test_actors_of_continuous_actions_and_their_critics_remember(name: str, kind: str) -> None:
    memory = {"kind": kind, "size": 16, "sequence_length": 8, "burn_in": 2}
    assert score(name, memory, FRAMES[name], continuous=True) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_it_learns_to_remember_under_masks(name: str) -> None:
    memory = {"kind": "lstm", "size": 16, "sequence_length": 8}
    assert score(name, memory, 2 * FRAMES[name], masked=True) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "td3", "sac"])
def test_without_a_memory_it_cannot_be_learned(name: str) -> None:
    assert score(name, None, FRAMES[name], continuous=name != "ppo") < 0.7
