"""Critics that a GPU computes as one batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from rlstack.envs.foundation import tensors
from rlstack.networks.encoders import FlatEncoder
from rlstack.networks.values import ActionValue, Critics


@pytest.fixture(autouse=True)
def _like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "FREE", set())


def _critics(freeze: bool = False) -> Critics:
    torch.manual_seed(0)
    critics = Critics([ActionValue(FlatEncoder(3), 2, [8, 8]) for _ in range(2)])
    for network in critics if freeze else ():
        next(network.parameters()).requires_grad_(False)
    return critics


def _told(critics: Critics, judge: Callable[..., list[Tensor]]) -> list[Tensor | None]:
    torch.manual_seed(1)
    values = judge(torch.randn(5, 3), torch.randn(5, 2))
    critics.zero_grad()
    torch.stack(values).square().mean().backward()
    return [*values, *[None if part.grad is None else part.grad.clone() for part in critics.parameters()]]


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize(
    "changed", [lambda critics: critics, deepcopy, lambda critics: pickle.loads(pickle.dumps(critics))]
)
def test_a_batch_of_critics_is_each_of_them(freeze: bool, changed: Callable[[Critics], Critics]) -> None:
    critics = changed(_critics(freeze))
    with torch.no_grad():  # as steps of an optimiser and loaded states change them
        for parameter in critics.parameters():
            parameter.mul_(1.5)
    assert critics.batched
    one_by_one = _told(critics, lambda *given: [network(*given) for network in critics])
    torch.testing.assert_close(_told(critics, critics), one_by_one)


def test_parameters_stay_where_a_recording_reads_them() -> None:
    critics = _critics()
    places = [parameter.data_ptr() for parameter in critics.parameters()]
    assert [parameter.data_ptr() for parameter in critics.to("cpu").parameters()] == places
    critics.double()
    assert critics.batched and critics(torch.zeros(1, 3).double(), torch.zeros(1, 2).double())[0].dtype == torch.float64


def test_what_may_not_run_as_a_batch_is_computed_one_by_one() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = nn.LSTM(3, 1)  # for which vmap has no rule

        def forward(self, observation: Tensor) -> Tensor:
            return self.core(observation)[0]

    critics = Critics([Remembers(), Remembers()])
    assert not critics.batched and len(critics(torch.zeros(5, 3))) == 2
