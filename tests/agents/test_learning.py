"""Every agent learns to look two steps ahead."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from rlstack.data.collector import make_collector
from rlstack.data.flatten import flatten_agents
from tests.agents.small_agents import CASES, ON_POLICY, Detour, options_of, plain, small
from tests.exhaustive import exhaustive

_COMMON: dict[str, Any] = {
    **{"hidden": [32, 32], "gamma": 1.0, "lr": 3e-3, "lr_actor": 1e-3, "lr_critic": 3e-3, "epsilon": 0.3},
    **{"batch_size": 64, "buffer_size": 10_000, "learning_starts": 500, "frames_per_update": 12},
    **{"minibatch_size": 64, "epochs": 8, "target_tau": 0.1, "target_every": None},
}
_SOFT = {"lr_actor": 3e-3, "lr_alpha": 3e-3, "alpha": 0.05, "frames_per_update": 8, "epsilon": 0.0}
_OWN: dict[str, dict[str, Any]] = {
    "a2c": {"normalize_advantage": True, "initial_std": 0.5},
    "rainbow": {"num_atoms": 31, "value_min": -4.0, "value_max": 3.0},
    "ddpg": {"noise": 0.4, "epsilon": 0.2},
    "td3": {"noise": 0.4, "epsilon": 0.2, "target_noise": 0.05},
    "sac": _SOFT,
    "tqc": _SOFT,
    "acqn": {"epsilon": 0.2, "noise_high": 0.5},
}
FRAMES = {"ppo": 10_240, "pqn": 10_240, "a2c": 20_480}


def learner(name: str) -> dict[str, Any]:
    """Returns options with which an algorithm solves :class:`~tests.agents.small_agents.Detour`."""
    return {**options_of(name, **_COMMON), **_OWN.get(name, {})}


@exhaustive(("name", "discrete"), CASES)
def test_it_finds_the_actions_of_the_highest_return(name: str, discrete: bool) -> None:
    env, total = Detour(32, discrete=discrete), FRAMES.get(name, 5120)
    agent = small(env, total, name, **learner(name))
    frames, steps = 0, 16 if name in ("ppo", "pqn") else 4
    for batch in make_collector(env, agent.policy(explore=True), steps, total_frames=total):
        flat = flatten_agents(batch, None)
        frames += int(flat["active"].sum())
        agent.learn(flat, frames)
    assert frames == total and (agent.updates > 0 or name in ON_POLICY)
    greedy = env.rollout(2, agent.policy(explore=False))["action"][0].flatten()
    if discrete:
        greedy = torch.tensor([-1.0, 0.5, 1.0])[greedy]
    assert greedy[0] < (-0.5 if name in ("sac", "tqc") else -0.65), "sac's entropy bonus keeps it from the edge"
    assert abs(float(greedy[1]) - 0.5) < 0.35


@exhaustive(("name", "discrete"), CASES)
def test_it_can_be_taught_by_examples(name: str, discrete: bool) -> None:
    env = plain(discrete)
    agent = small(env, name=name, **({"greedy_actor": "online"} if name == "acqn" else {}))
    observation = env.draw(64)["observation"]
    action = (observation[:, 0] > 0).long() + 1 if discrete else observation[:, 1:] / 4
    optimizer = torch.optim.Adam(agent.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        agent.imitation_loss(observation, action, None).backward()
        optimizer.step()
    taken = agent.policy(explore=False)(TensorDict({"observation": observation}, [64]))["action"]
    if discrete:
        assert (taken == action).float().mean() > 0.9
    else:
        assert (taken - action).abs().mean() < 0.05
