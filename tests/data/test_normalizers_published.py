"""Running statistics compared with recordings of the Arena game's own training stack, and their JSON form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded

from rlstack.config import ConfigError
from rlstack.data.normalizers import (
    ObservationNormalizer,
    RewardScaler,
    RunningMoments,
    load_statistics,
    statistics_to_json,
)
from tests.agents.arena_recordings import Recording
from tests.exhaustive import recordings
from tests.refusals import refused

FEATURES, GAMMA = 32, 0.99
ROUNDING = 1e-5
"""Relative rounding of the recorded statistics, which are stored in float32."""


def step_of(reward: Tensor, done: Tensor) -> TensorDict:
    """Returns one step ``[N]`` of all worlds as sequences ``[N, 1]``."""
    lead = [len(reward), 1]
    following = {"reward": reward.view(*lead, 1), "done": done.view(*lead, 1)}
    return TensorDict({"next": following, "active": torch.ones(lead, dtype=torch.bool)}, lead)


@recordings("arena_training/normaliser_2env.npz", "golden/arena/training/normaliser_[!1]*env.npz", least=2)
def test_recorded_statistics(path: Path) -> None:
    """Compares, step by step, the updated statistics and the scaled observations and rewards."""
    recording = Recording(path)
    observations, rewards = ObservationNormalizer(Unbounded((FEATURES,)), True), RewardScaler(GAMMA, True)
    (seen,), returns = observations.moments, rewards.moments
    assert recording["done"].any(), "returns begin anew"
    for t, raw in enumerate(recording["raw_obs"]):
        observations.update(raw)
        compare(seen, recording, "obs", t)
        torch.testing.assert_close(observations(raw), recording["norm_obs"][t], rtol=0, atol=1e-5)
        compare(returns, recording, "ret", t)
        if t < len(recording["raw_reward"]):
            reward = recording["raw_reward"][t]
            rewards.update(step_of(reward, recording["done"][t]))
            torch.testing.assert_close(rewards(reward).float(), recording["norm_reward"][t], rtol=0, atol=1e-5)


def compare(moments: Any, recording: Recording, kind: str, t: int) -> None:
    for name in ("mean", "var", "count"):
        theirs = recording[f"stat_{kind}_{name}"][t].double()
        torch.testing.assert_close(
            getattr(moments, name).reshape(theirs.shape), theirs, rtol=ROUNDING, atol=1e-7, equal_nan=False
        )


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_variance_of_batches(unbiased: bool, count: int) -> None:
    """The divisor is N - 1 or N; a batch of one gives no variance in either case."""
    torch.manual_seed(0)
    moments, values = RunningMoments(torch.Size([3]), unbiased), 4 + torch.randn(count, 3)
    moments.update(values)
    squares = (values.double() - values.double().mean(0)).square().sum(0)
    expected = squares / (count - 1 if unbiased and count > 1 else count)
    torch.testing.assert_close(moments.var, expected)
    assert torch.isfinite(moments.var).all()


@pytest.mark.parametrize("unbiased", [False, True])
def test_one_world_gives_numbers(unbiased: bool) -> None:
    torch.manual_seed(0)
    normalizer, scaler = ObservationNormalizer(Unbounded((4,)), unbiased), RewardScaler(GAMMA, unbiased)
    for _ in range(50):
        observation, reward = 3 + torch.randn(1, 4), torch.randn(1)
        normalizer.update(observation)
        scaler.update(step_of(reward, torch.zeros(1, dtype=torch.bool)))
        assert torch.isfinite(normalizer(observation)).all() and torch.isfinite(scaler(reward)).all()
    assert (normalizer.moments[0].var > 0.3).all()


def test_who_looks_does_not_change_them() -> None:
    normalizer, scaler = ObservationNormalizer(Unbounded((3,))), RewardScaler(GAMMA)
    normalizer.update(torch.randn(9, 3))
    before = {name: value.clone() for name, value in normalizer.state_dict().items()}
    normalizer(torch.randn(100, 3) + 50)
    scaler(torch.randn(100))
    assert all(torch.equal(value, normalizer.state_dict()[name]) for name, value in before.items())
    assert float(scaler.moments.count) == 0


# -- JSON --------------------------------------------------------------------------------------------------------


def filled(spec: Any = None) -> tuple[ObservationNormalizer, RewardScaler]:
    torch.manual_seed(0)
    normalizer, scaler = ObservationNormalizer(Unbounded((FEATURES,)) if spec is None else spec), RewardScaler(GAMMA)
    seen = torch.randn(20, FEATURES) if spec is None else spec.expand(20).rand()
    normalizer.update(seen)
    scaler.update(step_of(torch.randn(20), torch.zeros(20, dtype=torch.bool)))
    return normalizer, scaler


def test_the_published_layout() -> None:
    normalizer, scaler = filled()
    entries = json.loads(json.dumps(statistics_to_json(normalizer, scaler)))
    assert list(entries) == ["obs_mean", "obs_var", "obs_count", "ret_mean", "ret_var", "ret_count"]
    assert len(entries["obs_mean"]) == len(entries["obs_var"]) == FEATURES
    assert len(entries["ret_mean"]) == len(entries["ret_var"]) == 1
    assert entries["obs_count"] == entries["ret_count"] == 20.0
    other, another = ObservationNormalizer(Unbounded((FEATURES,))), RewardScaler(GAMMA)
    load_statistics(entries, other, another)
    for one, two in ((normalizer, other), (scaler, another)):
        for name, value in one.state_dict().items():
            if name != "returns":
                assert torch.equal(value, two.state_dict()[name]), name


def test_numbers_of_a_file_scale_in_the_precision_of_what_is_seen() -> None:
    normalizer, _ = filled()
    other = ObservationNormalizer(Unbounded((FEATURES,)))
    load_statistics(json.loads(json.dumps(statistics_to_json(normalizer, None))), other, None)
    observation = torch.randn(5, FEATURES)
    assert other(observation).dtype == torch.float32
    torch.testing.assert_close(other(observation), normalizer(observation), rtol=0, atol=0)


def test_parts_of_an_observation_are_joined() -> None:
    spec = Composite({"b": Unbounded((2, 2)), "a": Unbounded((3,)), "flag": Binary(1, dtype=torch.bool)})
    normalizer, _ = filled(spec)
    entries = statistics_to_json(normalizer, None)
    assert len(entries["obs_mean"]) == 7 and "ret_mean" not in entries
    other = ObservationNormalizer(spec)
    load_statistics(entries, other, None)
    seen = spec.expand(6).rand()
    assert (other(seen) == normalizer(seen)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_mean": [0.0] * 3}, "obs_mean must be a list of 32 numbers"),
        ({"obs_var": 1.0}, "obs_var must be a list of 32 numbers"),
        ({"obs_var": [math.nan] * FEATURES}, "obs_var must be .* all finite"),
        ({"obs_var": [-1.0] * FEATURES}, "obs_var and obs_count must not be negative"),
        ({"obs_count": None}, "obs_count must be a number"),
        ({"ret_var": ["1"]}, "ret_var must be a list of 1 numbers"),
    ],
)
def test_statistics_of_something_else(change: dict[str, Any], message: str) -> None:
    normalizer, scaler = filled()
    entries = statistics_to_json(normalizer, scaler) | change
    refused(ConfigError, f"statistics: {message}", load_statistics, entries, normalizer, scaler)


def test_object_slots_have_no_json_form() -> None:
    spec = Composite({"objects": Unbounded((4, 3)), "mask": Binary(4, dtype=torch.bool)})
    refused(ConfigError, "object slots have no JSON form", statistics_to_json, ObservationNormalizer(spec), None)
