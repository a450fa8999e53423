"""What TorchRL promises of data and losses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import RandomSampler, SamplerWithoutReplacement

from rlstack import envs
from rlstack.agents import make_agent
from rlstack.data.collector import make_collector
from rlstack.data.replay import MemmapRows, TensorRows
from rlstack.data.samplers import SumTreeSampler
from rlstack.losses.base import Loss
from rlstack.losses.ppo import A2CLoss, PPOLoss
from tests.losses.test_loss_modules import LOSSES, Net, Policy, S, batch

PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
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


# -- every loss keeps what TorchRL's modules promise, beyond what ``tests/losses/test_loss_modules.py`` checks ---------


everyone = pytest.mark.parametrize("name", LOSSES)


def told(loss: Loss, data: TensorDict) -> Any:
    torch.manual_seed(1)
    return loss(data.clone())


def named(loss: Loss, data: TensorDict) -> dict[str, Tensor]:
    return {"_".join((key,) if isinstance(key, str) else key): data[key] for key in loss.in_keys}


@everyone
def test_its_entries_can_be_given_by_name_or_in_order(name: str) -> None:
    loss, data = LOSSES[name](), batch(name)
    expected, entries = told(loss, data), named(loss, data)
    for call in (lambda: loss(**entries), lambda: loss(*entries.values())):
        torch.manual_seed(1)
        answer = call()
        values = answer if isinstance(answer, tuple) else (answer,)
        assert dict(zip(loss.out_keys, values, strict=True)) == expected.to_dict()
    with pytest.raises(TypeError, match="observatoin"):
        loss(**entries, observatoin=entries["observation"])


def test_optional_entries_can_be_given_by_name() -> None:
    loss, data = LOSSES["dqn"](), batch("dqn")
    more = {"gamma": torch.rand(len(data), 1), "priority_weight": torch.rand(len(data))}
    more["next_action_mask"] = torch.tensor([[True, False, False, False]]).expand(len(data), -1)
    data.update({"gamma": more["gamma"], "priority_weight": more["priority_weight"]})
    data["next", "action_mask"] = more["next_action_mask"]
    assert loss(**named(loss, data), **more)[0] == told(loss, data)["loss_critic"]


@everyone
def test_some_of_its_results_can_be_selected(name: str) -> None:
    loss, data = LOSSES[name](), batch(name)
    first, expected = loss.out_keys[0], told(loss, data)
    loss.select_out_keys(first)
    torch.manual_seed(1)
    assert loss(**named(loss, data)) == told(loss, data)[first] == expected[first]
    assert list(told(loss, data).keys()) == [first]


@everyone
def test_all_weights_can_be_drawn_anew(name: str) -> None:
    loss = LOSSES[name]()
    parameters = dict(loss.named_parameters())
    before = {key: value.detach().clone() for key, value in parameters.items()}
    with torch.no_grad():
        for value in parameters.values():
            value += 100
    loss.reset_parameters_recursive()
    assert before and all((value < 50).all() for value in parameters.values())
    for held in loss._names:
        if target := vars(loss).get(f"target_{held}"):
            pairs = zip(target.parameters(), loss.get_stateful_net(held).parameters(), strict=True)
            assert all(torch.equal(copied, own) for copied, own in pairs)


@everyone
def test_its_networks_are_the_ones_it_calls(name: str) -> None:
    loss, data = LOSSES[name](), batch(name)
    twin = LOSSES[name]()
    for held in loss._names:
        twin.from_stateful_net(held, loss.get_stateful_net(held))
        if f"target_{held}" in vars(loss):
            vars(twin)[f"target_{held}"].load_state_dict(vars(loss)[f"target_{held}"].state_dict())
    assert (told(loss, data) == told(twin, data)).all()


@everyone
def test_it_can_be_pickled(name: str) -> None:
    loss, data = LOSSES[name](), batch(name)
    assert (told(loss, data) == told(pickle.loads(pickle.dumps(loss)), data)).all()


@pytest.mark.parametrize("kind", [A2CLoss, PPOLoss])
def test_its_keys_name_the_entropy_bonus_while_there_is_one(kind: Callable[..., Any]) -> None:
    loss, data = kind(Policy(), Net(S, 1)), batch("ppo")
    for coefficient in (0.0, 0.1, torch.tensor(0.0)):
        loss.entropy_coefficient = coefficient
        assert set(told(loss, data).keys()) == set(loss.out_keys)


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn"])
def test_it_can_be_called_with_other_parameters_of_its_networks(name: str) -> None:
    loss, data = LOSSES[name](), batch(name)
    network = vars(loss)[loss._names[0]]
    own = TensorDict.from_module(network).data

    def called(parameters: TensorDictBase) -> Tensor:
        with parameters.to_module(network, preserve_module_state=False):
            return told(loss, data)[loss.out_keys[0]]

    several = torch.stack([own, own.apply(lambda value: value + 1)])
    before = called(own)
    together = torch.vmap(called)(several)
    assert together[0] != together[1]
    torch.testing.assert_close(together, torch.stack([called(each) for each in several]))
    assert told(loss, data)[loss.out_keys[0]] == before
