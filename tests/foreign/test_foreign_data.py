"""Storages, samplers, buffers and the collector keep what TorchRL's parts promise, beside TorchRL's own ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, SamplerWithoutReplacement

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.data.collector import make_collector
from rlstack.data.replay import MemmapRows, TensorRows
from rlstack.data.samplers import SumTreeSampler

PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "torchrl": lambda _: {"storage": LazyTensorStorage(8)},
    "rows": lambda _: {"storage": TensorRows(8)},
    "files": lambda folder: {"storage": MemmapRows(8, directory=folder)},
    "rows without replacement": lambda _: {"storage": TensorRows(8), "sampler": SamplerWithoutReplacement()},
    "sum tree": lambda _: {"storage": LazyTensorStorage(8), "sampler": SumTreeSampler(8)},
    "sum tree of rows": lambda _: {"storage": TensorRows(8), "sampler": SumTreeSampler(8)},
}
every_part = pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)


def entries(*lead: int, first: int = 0) -> TensorDict:
    count = torch.arange(first, first + torch.Size(lead).numel(), dtype=torch.float32).view(lead)
    return TensorDict({"a": count.clone(), "next": TensorDict({"b": -count.unsqueeze(-1)}, lead)}, lead)


@every_part
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("inner", [(), (3,)], ids=["rows", "sequences"])
def test_a_buffer_of_these_parts_is_one(
    kind: type[Any], parts: Callable[[Path], dict[str, Any]], inner: tuple[int, ...], tmp_path: Path
) -> None:
    buffer = kind(**parts(tmp_path), batch_size=6)
    assert len(buffer) == 0
    for first in (0, 100):  # the second does not fit beside the first
        index = buffer.extend(entries(6, *inner, first=first))
        assert len(index) == 6
    buffer.add(entries(*inner, first=200))
    assert len(buffer) == 8
    held = buffer[:]
    assert held.batch_size == (8, *inner) and (held["a"] == -held["next", "b"].squeeze(-1)).all()
    sample = buffer.sample()
    assert sample.batch_size == (6, *inner) and torch.isin(sample["a"], held["a"]).all()
    assert (sample["a"] == -sample["next", "b"].squeeze(-1)).all()
    buffer.empty()
    assert len(buffer) == 0


@every_part
def test_its_state_goes_into_another_one(parts: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    ours, other = (ReplayBuffer(**parts(tmp_path), batch_size=4) for _ in range(2))
    ours.extend(entries(11))
    other.load_state_dict(deepcopy(ours.state_dict()))
    samples = []
    for buffer in (ours, other):
        buffer.extend(entries(2, first=50))
        torch.manual_seed(0)
        samples.append(buffer.sample())
    assert len(other) == 8 and (samples[0] == samples[1]).all()


@pytest.mark.parametrize("sampler", [RandomSampler, lambda: SumTreeSampler(8)])
def test_samplers_and_storages_can_be_pickled(sampler: Callable[[], Any]) -> None:
    buffer = ReplayBuffer(storage=TensorRows(8), sampler=sampler(), batch_size=4)
    buffer.extend(entries(5))
    copy = pickle.loads(pickle.dumps(buffer))
    assert (copy[:] == buffer[:]).all() and torch.isin(copy.sample()["a"], buffer[:]["a"]).all()


def test_a_collector_goes_on_from_its_state() -> None:
    def made() -> Any:
        env = envs.make("cartpole", num_worlds=2, seed=1)
        torch.manual_seed(0)
        return make_collector(env, make_agent("dqn", env).policy(), 4)

    first, second = made(), made()
    batch = next(iter(first))
    assert batch.batch_size == (2, 4) and "next" in batch.keys()  # noqa: SIM118
    with torch.no_grad():
        for value in first.policy.parameters():
            value.add_(1.0)
    second.load_state_dict(first.state_dict())
    pairs = zip(first.policy.parameters(), second.policy.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    for collector in (first, second):
        collector.shutdown()
