"""Running statistics compared with NumPy's over all data at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, Unbounded

from rlstack.data.normalizers import ObservationNormalizer, RewardScaler, RunningMoments


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
def test_masks_and_images_stay(dtype: torch.dtype) -> None:
    spec = {"objects": Unbounded((2, 1)), "mask": Bounded(0, 1, shape=(2,), dtype=torch.float32).to(dtype)}
    if dtype == torch.bool:
        spec["mask"] = Binary(2, dtype=torch.bool)
    data = TensorDict({"objects": torch.randn(9, 2, 1), "mask": (torch.rand(9, 2) < 0.5).to(dtype)}, [9])
    normalizer = ObservationNormalizer(Composite(spec))
    normalizer.update(data)
    assert torch.equal(normalizer(data)["mask"], data["mask"])
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


def test_a_restored_scaler_goes_on() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = rewards(generator, 3, 5), rewards(generator, 3, 5)
    scaler, other = RewardScaler(0.9), RewardScaler(0.9)
    scaler.update(first)
    state: dict[str, Any] = {key: value.clone() for key, value in scaler.state_dict().items()}
    scaler.update(second)
    other.load_state_dict(state)
    other.update(second)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in scaler.state_dict().items())
