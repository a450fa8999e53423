"""Running statistics of observations and rewards, ours and the published ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from rlstack.adapters.arena.agents import load_statistics, statistics_to_json
from rlstack.config import ConfigError
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler, RunningMoments
from tests.agents.arena_recordings import Recording
from tests.agents.small_agents import Decisions, small
from tests.exhaustive import recordings
from tests.refusals import refused


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), shift=st.floats(-1e4, 1e4)
)
def test_moments_equal_those_of_all_data(seed: int, sizes: list[int], shift: float) -> None:
    rng = np.random.default_rng(seed)
    parts, moments = [rng.normal(shift, 3.0, (size, 2)) for size in sizes], RunningMoments(torch.Size([2]))
    for part in parts:
        moments.update(torch.from_numpy(part))
    data = np.concatenate(parts)
    assert float(moments.count) == len(data)
    if len(data):
        np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-10)
        np.testing.assert_allclose(moments.var, data.var(0), rtol=1e-6, atol=1e-9)
    else:
        assert (moments.mean == 0).all() and (moments.var == 1).all()


def test_vectors_are_scaled_and_clipped_in_their_own_dtype() -> None:
    normalizer, data = ObservationNormalizer(Unbounded((3,))), 5 + 2 * torch.randn(50, 3)
    assert torch.equal(normalizer(data), data.clamp(-10, 10)), "nothing seen yet"
    normalizer.update(data)
    mean, std = data.double().numpy().mean(0), data.double().numpy().std(0)
    np.testing.assert_allclose(normalizer(data), (data.numpy() - mean) / std, rtol=1e-4, atol=1e-5)
    assert normalizer(data).dtype == torch.float32 and normalizer(data + 1e6).max() == 10
    assert torch.equal(normalizer(data.view(5, 10, 3)), normalizer(data).view(5, 10, 3))


def test_objects_share_statistics_of_their_filled_slots() -> None:
    leaves = {"self": Unbounded((2,)), "objects": Unbounded((4, 3)), "mask": Binary(4, dtype=torch.bool)}
    normalizer, mask = ObservationNormalizer(Composite(leaves)), torch.rand(30, 4) < 0.4
    objects = torch.where(mask[..., None], 3 + torch.randn(30, 4, 3), 1e6)
    data = TensorDict({"self": torch.randn(30, 2), "objects": objects, "mask": mask}, [30])
    normalizer.update(data)
    seen, scaled = objects[mask].double().numpy(), normalizer(data)
    expected = (objects.double().numpy() - seen.mean(0)) / seen.std(0)
    np.testing.assert_allclose(scaled["objects"][mask], expected[mask.numpy()], rtol=1e-4, atol=1e-4)
    assert torch.equal(scaled["mask"], mask) and (data["objects"] == objects).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_stay(dtype: torch.dtype) -> None:
    spec = {"objects": Unbounded((2, 1)), "mask": Bounded(0, 1, shape=(2,), dtype=torch.float32).to(dtype)}
    if dtype == torch.bool:
        spec["mask"] = Binary(2, dtype=torch.bool)
    data = TensorDict({"objects": torch.randn(9, 2, 1), "mask": (torch.rand(9, 2) < 0.5).to(dtype)}, [9])
    normalizer = ObservationNormalizer(Composite(spec))
    normalizer.update(data)
    assert torch.equal(normalizer(data)["mask"], data["mask"])


def test_masks_that_encoders_read_stay() -> None:
    spec = {"things": Unbounded((4, 2)), "inner": Composite({"present": Bounded(0, 1, shape=(4,))})}
    encoder = {"kind": "set", "hidden": [8], "mask": "inner.present", "pool": "mean"}
    env = Decisions(Composite(spec), Categorical(3, shape=()))
    agent = small(env, name="dqn", normalize_observations=True, encoders={"things": encoder})
    present = (torch.rand(50, 4) < 0.9).float()
    data = TensorDict({"things": torch.randn(50, 4, 2), "inner": {"present": present}}, [50])
    agent.normalizer.update(data)
    assert torch.equal(agent.normalized(data)["inner", "present"], present)
    empty = (present < 0.5).unsqueeze(-1)
    assert empty.any()
    values, others = (
        agent.action_values(data.clone().set("things", things))
        for things in (data["things"], data["things"] + 3 * empty)
    )
    assert torch.equal(values, others), "empty slots do not count"


def test_images_stay() -> None:
    image = torch.randint(0, 255, (4, 3, 40, 40), dtype=torch.uint8)
    pictures = ObservationNormalizer(Bounded(0, 255, shape=(3, 40, 40), dtype=torch.uint8))
    pictures.update(image)
    assert torch.equal(pictures(image), image)


def rewards(generator: torch.Generator, rows: int, time: int) -> TensorDict:
    done = torch.rand(rows, time, 1, generator=generator) < 0.2
    following = {"reward": torch.randn(rows, time, 1, generator=generator) * 7 + 1, "done": done}
    return TensorDict({"next": following, "active": torch.rand(rows, time, generator=generator) < 0.8}, [rows, time])


def test_rewards_are_divided_by_the_spread_of_the_running_return() -> None:
    generator, gamma = torch.Generator().manual_seed(0), 0.9
    scaler, parts = RewardScaler(gamma), [rewards(generator, 3, time) for time in (4, 1, 7)]
    for part in parts:
        scaler.update(part)
    data, returns = torch.cat(parts, 1), []
    for row in range(3):
        running = 0.0
        for t in range(12):
            if data["active"][row, t]:
                running = gamma * running + float(data["next", "reward"][row, t])
                returns.append(running)
            if data["next", "done"][row, t]:
                running = 0.0
    values = torch.tensor([-2.0, 0.0, 3.0])
    np.testing.assert_allclose(scaler(values), values.numpy() / np.std(returns), rtol=1e-6)
    assert float(scaler(torch.tensor(1e9))) == 10


def test_rewards_of_no_steps_change_nothing() -> None:
    """An offline run collects batches without a step."""
    generator = torch.Generator().manual_seed(0)
    scaler = RewardScaler(0.9)
    scaler.update(rewards(generator, 3, 5))
    before = {key: value.clone() for key, value in scaler.state_dict().items()}
    scaler.update(rewards(generator, 3, 5)[:, :0])
    assert all(torch.equal(value, before[key]) for key, value in scaler.state_dict().items())


# -- Running statistics compared with recordings of the Arena game's own training stack, and their JSON form ---------


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
    observations, rewards = ObservationNormalizer(Unbounded((FEATURES,))), RewardScaler(GAMMA)
    (seen,), returns = observations.moments, rewards.moments
    seen.unbiased = returns.unbiased = True
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
    seen = torch.randn(5, FEATURES)
    assert other(seen).dtype == torch.float32 and torch.equal(other(seen), normalizer(seen))


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
    refused(ConfigError, "object slots, or .* have no JSON form", statistics_to_json, ObservationNormalizer(spec), None)
