"""PPO of rlstack and of Stable-Baselines3: the statistics of the comparison, and a few batches of both."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

import envs
import rlstack
from experiments.benchmarks import equal_ppo


def test_returns_are_those_of_the_part_in_which_an_episode_ends() -> None:
    found = equal_ppo.parts([(1, 10.0), (100, 20.0), (101, 30.0), (2100, 40.0)], frames=2000)
    assert found == [15.0, 30.0, *[None] * (equal_ppo.PARTS - 3), 40.0]


def test_the_end_is_the_last_quarter() -> None:
    curve = [0.0] * (equal_ppo.PARTS - equal_ppo.PARTS // 4) + [8.0] * (equal_ppo.PARTS // 4)
    told = equal_ppo.summary([curve, curve])
    assert told["end"] == [8.0, 8.0, 8.0] and told["area"][0] == pytest.approx(2.0)


@pytest.mark.parametrize("library", list(equal_ppo.LIBRARIES))
def test_episodes_have_the_length_of_their_return(library: str) -> None:
    if library == "stable-baselines3" and importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("needs the extra sb3")
    settings = equal_ppo.Settings(frames=256, num_envs=2, steps=64, epochs=1, hidden=(8,))
    episodes = equal_ppo.LIBRARIES[library]("CartPole-v1", settings, 0)
    frames = [when for when, _ in episodes]
    assert frames == sorted(frames) and frames[0] > 0 and frames[-1] <= 256
    # Each step has a reward of 1, so the sum is at most the number of frames; only two unfinished episodes are missing.
    assert 256 - 2 * 100 <= sum(value for _, value in episodes) <= 256


def test_curves_are_measured_once_for_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, int]] = []

    def train(task: str, settings: equal_ppo.Settings, seed: int) -> equal_ppo.Episodes:
        trained.append((task, seed))
        return [(part * settings.frames // equal_ppo.PARTS, 1.0) for part in range(1, equal_ppo.PARTS + 1)]

    monkeypatch.setattr(equal_ppo, "LIBRARIES", {"one": train})
    for frames, task, seeds in [(100, "a", "0"), (100, "b", "0"), (100, "a", "01"), (200, "a", "0")]:
        monkeypatch.setattr(equal_ppo, "SETTINGS", dict.fromkeys("ab", equal_ppo.Settings(frames, 1, 1)))
        monkeypatch.setattr(sys, "argv", ["equal_ppo", task, "--seeds", *seeds, "--out", str(tmp_path)])
        equal_ppo.main()
    assert trained == [("a", 0), ("b", 0), ("a", 1), ("a", 0)]
    tasks = json.loads((tmp_path / "equal_ppo.json").read_text())["tasks"]
    assert {task: list(found["curves"]["one"]) for task, found in tasks.items()} == {"a": ["0"], "b": ["0"]}


def test_rollout_and_updates_equal_those_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch) -> None:
    """From equal weights, on the transitions that Stable-Baselines3 gathers, with minibatches in the same order."""
    sb3 = pytest.importorskip("stable_baselines3", reason="needs the extra sb3")
    import gymnasium
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    settings = equal_ppo.Settings(1000, 4, 60, minibatch=48, epochs=2, gamma=0.97, gae_lambda=0.9, entropy=0.01)
    gathered: list[dict[str, Any]] = []

    class Gathering(BaseCallback):
        def _on_step(self) -> bool:
            infos, done = self.locals["infos"], self.locals["dones"].copy()
            cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
            seen = [info.get("terminal_observation", new) for info, new in zip(infos, self.locals["new_obs"])]
            gathered.append(
                {
                    "observation": self.model._last_obs.copy(),
                    "action": self.locals["actions"].copy(),
                    "log_prob": self.locals["log_probs"].numpy().copy(),
                    **{"next_observation": np.stack(seen), "reward": self.locals["rewards"].copy()},
                    **{"done": done, "terminated": done & ~cut},
                }
            )
            return True

    # Poles fall after eight steps at the earliest, so that some episodes end and others are cut.
    worlds = make_vec_env(lambda: gymnasium.make("CartPole-v1", max_episode_steps=14), settings.num_envs, seed=0)
    theirs = sb3.PPO(
        *("MlpPolicy", worlds, settings.lr, settings.steps, settings.minibatch, settings.epochs),
        *(settings.gamma, settings.gae_lambda, settings.clip),
        **{"ent_coef": settings.entropy, "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}},
        **{"seed": 0, "device": "cpu"},
    )
    ours = equal_ppo.agent_of(envs.make("gymnasium", id="CartPole-v1", num_envs=settings.num_envs), settings)
    policy = theirs.policy
    layers = [*linear(policy.mlp_extractor.policy_net), policy.action_net]
    layers += [*linear(policy.mlp_extractor.value_net), policy.value_net]
    twins = list(zip([*linear(ours.actor), *linear(ours.critic)], layers, strict=True))
    for mine, other in twins:
        mine.load_state_dict(other.state_dict())

    _, callback = theirs._setup_learn(settings.frames, Gathering())
    theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, settings.steps)
    told = {name: torch.as_tensor(np.stack([step[name] for step in gathered], 1)) for name in gathered[0]}
    assert told["terminated"].any() and (told["done"] & ~told["terminated"]).any()
    lead = (settings.num_envs, settings.steps)
    following = {name: told[name].unsqueeze(-1) for name in ("reward", "done", "terminated")}
    following["observation"] = told["next_observation"]
    entries = {name: told[name] for name in ("observation", "action", "log_prob")}
    data = TensorDict({**entries, "next": TensorDict(following, lead)}, lead)
    batch = ours.rollout(rlstack.flatten_agents(data, None))
    buffer = theirs.rollout_buffer
    for name, expected in (("advantage", buffer.advantages), ("return", buffer.returns), ("value", buffer.values)):
        torch.testing.assert_close(batch[name].view(lead), torch.as_tensor(expected).T, rtol=1e-5, atol=1e-5)

    orders = [np.random.default_rng(epoch).permutation(len(batch)) for epoch in range(settings.epochs)]
    for_them, for_us = iter(orders), iter(orders)
    monkeypatch.setattr(np.random, "permutation", lambda _: next(for_them))
    monkeypatch.setattr(torch, "randperm", lambda _, **__: torch.as_tensor(next(for_us)))
    theirs.train()
    ours.update(batch)
    for mine, other in twins:
        torch.testing.assert_close(mine.weight, other.weight, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine.bias, other.bias, rtol=0, atol=1e-6)


def linear(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
