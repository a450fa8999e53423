"""Round trips: models made by Stable-Baselines3 here, read by rlstack, give the same actions."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlstack.adapters.protocols import callable_policy
from rlstack.adapters.sb3.model import VecNormalize, load_sb3, load_vecnormalize
from rlstack.adapters.sb3.native import sb3_policy
from rlstack.config import build
from tests.adapters.small_worlds import Noise, box
from tests.exhaustive import exhaustive

gymnasium = pytest.importorskip("gymnasium")
sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")

FLAT, STRUCTURED = 5, {"zeta": 2, "alpha": 3, "mid": 1}
BOUNDS = ((-2.0, 1.0), (0.0, 3.0))
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PPO": ("MlpPolicy", "n_steps", {"n_steps": 8, "batch_size": 8, "n_epochs": 1}),
    "A2C": ("MlpPolicy", "n_steps", {"n_steps": 8}),
    "DQN": ("MlpPolicy", "", {"learning_starts": 4, "buffer_size": 50}),
    "SAC": ("MlpPolicy", "", {"learning_starts": 4, "buffer_size": 50, "batch_size": 4}),
    "RecurrentPPO": ("MlpLstmPolicy", "n_steps", {"n_steps": 8, "batch_size": 8, "n_epochs": 1}),
}


def gym_env(structured: bool, continuous: bool) -> Any:
    spaces = gymnasium.spaces
    low, high = np.array(BOUNDS, dtype=np.float32).T

    class Random(gymnasium.Env):
        observation_space = spaces.Box(-3, 3, (FLAT,), np.float32)
        if structured:
            observation_space = spaces.Dict({key: spaces.Box(-3, 3, (n,), np.float32) for key, n in STRUCTURED.items()})
        action_space = spaces.Box(low, high) if continuous else spaces.Discrete(4)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.clock = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            self.clock += 1
            return self.observation_space.sample(), float(np.random.normal()), self.clock >= 5, False, {}

    env = Random()
    env.observation_space.seed(0)
    return env


def make(name: str, structured: bool, continuous: bool, tmp_path: Path, **network: Any) -> tuple[Any, Any, Path]:
    """Returns a trained model and its normaliser, saved as ``model.zip`` and ``stats.pkl``."""
    vec = sb3.common.vec_env
    env = vec.VecNormalize(vec.DummyVecEnv([lambda: gym_env(structured, continuous)]))
    policy, _, options = MODELS[name]
    policy = policy.replace("Mlp", "MultiInput") if structured else policy
    kind = getattr(contrib if name == "RecurrentPPO" else sb3, name)
    model = kind(policy, env, policy_kwargs={"net_arch": [8, 6], **network}, device="cpu", seed=0, **options)
    model.set_logger(sb3.common.logger.Logger(None, []))  # the default one leaves folders behind
    model.learn(24)
    with torch.no_grad():  # or all entries would get the same action
        for parameter in model.policy.parameters():
            parameter.mul_(3)
    model.save(tmp_path / "model")
    env.save(tmp_path / "stats.pkl")
    env.training = False
    return model, env, tmp_path


def observations(structured: bool, count: int) -> Any:
    rng = np.random.default_rng(1)
    if structured:
        return {key: rng.uniform(-3, 3, (count, n)).astype(np.float32) for key, n in STRUCTURED.items()}
    return rng.uniform(-3, 3, (count, FLAT)).astype(np.float32)


def world(structured: bool, continuous: bool, count: int) -> Noise:
    return Noise(STRUCTURED if structured else FLAT, box(*BOUNDS) if continuous else 4, num_worlds=count)


def as_td(seen: Any, count: int) -> TensorDict:
    entry = TensorDict(seen, [count]) if isinstance(seen, dict) else torch.from_numpy(seen)
    return TensorDict({"observation": entry}, [count])


QUICK = [("PPO", True, True), ("A2C", False, False), ("DQN", True, False), ("SAC", False, True)]
QUICK += [("RecurrentPPO", True, False)]
CASES = QUICK + [
    (name, structured, continuous)
    for name in MODELS
    for structured in (False, True)
    for continuous in (False, True)
    if not (name == "DQN" and continuous)
    and not (name == "SAC" and not continuous)
    and not (name == "RecurrentPPO" and structured and continuous)
    and (name, structured, continuous) not in QUICK
]


@exhaustive(("name", "structured", "continuous"), CASES, quick=len(QUICK))
def test_same_actions(name: str, structured: bool, continuous: bool, tmp_path: Path) -> None:
    model, env, folder = make(name, structured, continuous, tmp_path)
    ours = load_sb3(folder / "model.zip", folder / "stats.pkl")
    assert (
        ours.algorithm == name and ours.num_timesteps == model.num_timesteps and ours.hyperparameters["gamma"] == 0.99
    )
    policy = sb3_policy(ours, world(structured, continuous, 40))
    state, varied = None, []
    for step in range(3):
        seen = (
            {k: v + step for k, v in observations(True, 40).items()} if structured else observations(False, 40) + step
        )
        normalised = env.normalize_obs(seen)
        starts = np.full(40, step == 0)
        theirs, state = model.predict(normalised, state=state, episode_start=starts, deterministic=True)
        td = as_td(seen, 40).set("is_init", torch.from_numpy(starts)[:, None])
        action = policy(td)["action"].numpy()
        varied.append(theirs)
        if continuous:
            np.testing.assert_allclose(action, theirs, rtol=0, atol=2e-5)
        else:
            assert (action == theirs).mean() > 0.97  # a tie within rounding may fall either way
    assert np.unique(np.concatenate(varied), axis=0).shape[0] > 1


@pytest.mark.parametrize("network", [{"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False}])
def test_critics_without_an_lstm(network: dict[str, Any], tmp_path: Path) -> None:
    model, _, folder = make("RecurrentPPO", False, False, tmp_path, activation_fn=torch.nn.ELU, **network)
    ours = load_sb3(folder / "model.zip")
    assert ours.activation == "ELU"
    seen = torch.from_numpy(observations(False, 6))
    initial, starts = ours.network.initial_memory(6), torch.ones(6, dtype=torch.bool)
    outputs, _ = ours.network(seen, initial, starts)
    with torch.no_grad():
        zeros = torch.zeros(1, 6, 256)
        value = model.policy.predict_values(seen, (zeros, zeros), starts.float())
    torch.testing.assert_close(outputs["value"], value, rtol=1e-5, atol=1e-4)


def test_a_live_model_is_a_callable_policy(tmp_path: Path) -> None:
    """``predict`` of a recurrent model carries its state and resets it with every episode, as ours does."""
    model, _, folder = make("RecurrentPPO", False, False, tmp_path)
    env, rollouts = Noise(FLAT, 4, num_worlds=4), []
    for policy in (callable_policy(model, env), sb3_policy(load_sb3(folder / "model.zip"), env)):
        env.set_seed(3)
        rollouts.append(env.rollout(20, policy, break_when_any_done=False))
    assert (rollouts[0]["action"] == rollouts[1]["action"]).float().mean() > 0.97
    assert torch.equal(rollouts[0]["observation"], rollouts[1]["observation"])


@pytest.mark.parametrize("options", [{}, {"norm_obs_keys": ["alpha", "zeta"]}, {"norm_obs": False}, {"clip_obs": 0.7}])
def test_statistics_of_every_pickle_protocol(options: dict[str, Any], tmp_path: Path) -> None:
    vec = sb3.common.vec_env
    env = vec.VecNormalize(vec.DummyVecEnv([lambda: gym_env(True, False)]), **options)
    env.reset()
    for _ in range(9):
        env.step([0])
    env.training = False
    seen = observations(True, 5)
    theirs = env.normalize_obs(seen)
    expected = torch.from_numpy(np.concatenate([theirs[key] for key in sorted(STRUCTURED)], -1))
    joined = torch.from_numpy(np.concatenate([seen[key] for key in sorted(STRUCTURED)], -1))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "stats.pkl").write_bytes(pickle.dumps(env, protocol=protocol))
        ours = load_vecnormalize(tmp_path / "stats.pkl")
        torch.testing.assert_close(ours.normalise(joined), expected, rtol=0, atol=2e-6)
        assert build(VecNormalize, json.loads(json.dumps(asdict(ours)))) == ours
        assert ours.ret_mean == pytest.approx([float(env.ret_rms.mean)]) and ours.clip_obs == env.clip_obs
