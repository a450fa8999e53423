"""Every loss keeps what TorchRL's modules promise, beyond what ``tests/losses/test_loss_modules.py`` checks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rlstack.losses.base import Loss
from rlstack.losses.ppo import A2CLoss, PPOLoss
from tests.losses.test_loss_modules import LOSSES, Net, Policy, S, batch

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
