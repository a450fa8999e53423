"""The released agents: their recorded outputs, and their results in the public environment."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from rlstack import envs
from rlstack.adapters.marinenav.agents import published_agent, published_policy
from rlstack.agents import Agent
from rlstack.envs.marinenav.noise import PublishedNoise, perception_seeds
from rlstack.evaluation.evaluator import EpisodeSet, Evaluation, evaluate
from rlstack.evaluation.statistics import wilson_interval
from tests.envs.marinenav.recorded import load_json
from tests.exhaustive import recordings

CONTINUOUS = {"AC_IQN": True, "DDPG": True, "SAC": True, "DQN": False, "IQN": False}
EXACT: dict[str, Any] = {"dtype": torch.float64}
Records = list[dict[str, Any]]


# -- recorded outputs --------------------------------------------------------------------------------------------


def agent_of(params: Path) -> Agent:
    name = params.name.removesuffix("_params.npz")
    env = envs.make("marinenav", num_worlds=1, continuous_actions=CONTINUOUS[name], **EXACT)
    return published_agent(params, env, 1000)


def outputs(agent: Any, name: str, observation: TensorDict, recorded: dict[str, Tensor]) -> dict[str, Tensor]:
    if name == "AC_IQN":
        return {"action": agent.actor(observation), "target's": agent.loss.target_actor_network(observation)}
    if name == "SAC":
        mean, log_std = agent.actor(observation)
        return {"mu": mean, "log_std": log_std}
    if name == "IQN":
        return {"quantiles": agent.network(observation, recorded["taus"])}
    return {"q": agent.network(observation)} if name == "DQN" else {"action": agent.actor(observation)}


@pytest.mark.filterwarnings("ignore:.*start fresh:UserWarning")
@recordings("*/*_io_public.npz", "weights/marinenav/*_io_*.npz", least=len(CONTINUOUS))
def test_recorded_outputs(path: Path) -> None:
    with np.load(path) as file:
        recorded = {key: torch.from_numpy(value) for key, value in file.items()}
    name = path.stem.partition("_io_")[0]
    keys = {"self": "self_state", "objects": "objects", "mask": "mask"}
    observation = TensorDict({ours: recorded[theirs] for ours, theirs in keys.items()}, [32])
    with torch.no_grad():
        results = outputs(agent_of(path.parents[1] / f"marinenav/{name}_params.npz"), name, observation, recorded)
    for key, value in results.items():
        expected = recorded["action" if key == "target's" else key]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9, msg=f"{name}: {key}")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_acts_in_marinenav(dtype: torch.dtype, fixtures_dir: Path) -> None:
    env = envs.make("marinenav", num_worlds=64, num_robots=3, num_obstacles=0, min_start_goal_dis=30.0, dtype=dtype)
    policy = published_policy(fixtures_dir / "marinenav/AC_IQN_params.npz", env)
    td = policy(env.reset())
    assert td["agents", "action"].shape == (64, 3, 2) and td["agents", "action"].dtype == dtype
    if dtype == torch.float32:
        batch = env.rollout(120, policy, break_when_any_done=False)
        done = batch["next", "done"][..., 0]
        assert done.sum() >= 64
        assert batch["next", "episode", "success"][done].mean() > 0.8


# -- closed loop -------------------------------------------------------------------------------------------------


def configs_of(configs: Records, results: Records) -> list[dict[str, Any]]:
    known = {(r["set_seed"], r["level"], r["index"]): r["config"] for r in configs}
    return [deepcopy(known[r["set_seed"], r["level"], r["index"]]) for r in results]


def without_noise(config: dict[str, Any]) -> dict[str, Any]:
    senses = config["robots"]["perception"]
    for name, value in (("pos_std", 0.0), ("vel_std", 0.0), ("r_mean_ratio", 1.0)):
        senses[name] = [value] * len(senses[name])
    return config


def published_noise(configs: Sequence[Any]) -> PublishedNoise:
    return PublishedNoise([perception_seeds(config) for config in configs], dtype=torch.float64)


def roll_out(
    params: Path, configs: list[dict[str, Any]], seed: int = 0, noise: Any = None, **options: Any
) -> Evaluation:
    options = {"continuous_actions": CONTINUOUS[params.name.removesuffix("_params.npz")], **EXACT, **options}
    policy = published_policy(params, envs.make("marinenav", num_worlds=1, **options))
    chosen = EpisodeSet(configs, ["all"] * len(configs))
    return evaluate(policy, "marinenav", options, 1, seed, noise_source=noise, episode_set=chosen)


def column(results: Records, key: str) -> Tensor:
    return torch.tensor([float(result[key]) for result in results], dtype=torch.float64)


def check_noise_free(params: Path, configs: Records, results: Records) -> None:
    """Lengths and flags are exact; the rest agrees as far as rounding in a closed loop allows."""
    episodes = roll_out(params, [without_noise(config) for config in configs_of(configs, results)]).episodes
    for key in ("success", "collision", "length"):
        assert torch.equal(episodes[key].double(), column(results, key)), key
    torch.testing.assert_close(episodes["discounted_return"], column(results, "ret"), rtol=0, atol=1e-6)
    torch.testing.assert_close(episodes["time"], column(results, "time"))
    torch.testing.assert_close(episodes["energy"], column(results, "energy"), rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AC_IQN", "DQN"])
def test_published_episodes(name: str, fixtures_dir: Path) -> None:
    folder = fixtures_dir / "marinenav"
    results = load_json(folder / f"{name}_episodes_253.json.gz")["noise_free"]
    chosen = [result for result in results if result["index"] in (0, 6)]
    assert len(chosen) == 12
    check_noise_free(folder / f"{name}_params.npz", load_json(folder / "eval_configs_253.json.gz"), chosen)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["AC_IQN", "DDPG", "DQN"])
def test_all_published_episodes(name: str, shared_dir: Path) -> None:
    folder = shared_dir / "golden/marinenav"
    configs = [r for path in sorted(folder.glob("eval_configs_*.json.gz")) for r in load_json(path)]
    every = [r for path in sorted(folder.glob("*_eval_noisefree.json")) for r in load_json(path)]
    results = [r for r in every if r["agent"] == name]
    assert results
    check_noise_free(shared_dir / f"weights/marinenav/{name}_params.npz", configs, results)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUOUS)
def test_published_success_rates(name: str, shared_dir: Path) -> None:
    """On the saved configs: with our own noise within the spread of the recorded episodes, with theirs the same."""
    folder, params = shared_dir / "golden/marinenav", shared_dir / f"weights/marinenav/{name}_params.npz"
    every = load_json(folder / "pretrained_eval_episodes_public.json.gz")
    results = [result for result in every if result["agent"] == name]
    configs = configs_of(load_json(folder / "eval_configs_public.json.gz"), results)
    assert len(configs) == (120 if name == "AC_IQN" else 60)
    rates = [float(roll_out(params, configs, seed).episodes["success"].double().mean()) for seed in range(4)]
    low, high = wilson_interval(int(column(results, "success").sum()), len(results))
    print(name, rates, (low, high))
    assert low < sum(rates) / len(rates) < high
    if name == "AC_IQN":
        facts = load_json(shared_dir / "facts/marinenav_pretrained_eval.json")["agents"][name]
        low, high = facts["overall"]["success_ci95"]
        assert low - 0.02 < sum(rates) / len(rates) < high + 0.02
    if name in ("AC_IQN", "DDPG", "DQN"):
        episodes = roll_out(params, configs, noise=published_noise).episodes
        for key in ("success", "collision", "length"):
            assert torch.equal(episodes[key].double(), column(results, key)), key
