"""One step of our optimiser equals torch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.agents.optimizer import Adam, Optimizer


def small_network(outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def data(count: int = 8) -> list[TensorDict]:
    torch.manual_seed(1)
    return [TensorDict({"x": torch.randn(count, 3)}, [count]) for _ in range(6)]


def squares(network: nn.Module) -> Any:
    def loss(batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        return network(batch["x"]).square().mean(), {}

    return loss


@pytest.mark.parametrize("max_grad_norm", [None, 0.02])
@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_steps_are_those_of_torch(kind: Any, on_gpu: bool, max_grad_norm: float | None) -> None:
    ours, theirs = small_network(), small_network()
    optimizer = Optimizer([list(ours.parameters())], 0.01, max_grad_norm, kind, eps=1e-5)
    if on_gpu:  # where a recording reads the learning rate
        optimizer._live_lr = torch.tensor(0.01)
    of_torch: Any = torch.optim.Adam if kind == "adam" else torch.optim.RMSprop
    reference = of_torch(theirs.parameters(), lr=0.01, eps=1e-5)
    for step, batch in enumerate(data()):
        optimizer.lr = reference.param_groups[0]["lr"] = 0.01 / (step + 1)
        _, norm, _ = optimizer.minimize(squares(ours), batch)
        reference.zero_grad()
        squares(theirs)(batch)[0].backward()
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm or torch.inf)
        torch.testing.assert_close(norm, expected)
        assert expected > (max_grad_norm or 0.0)  # or nothing was clipped
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_moments_go_on_after_a_load() -> None:
    straight, stopped = small_network(), small_network()
    first = Optimizer([list(straight.parameters())], lr=0.01)
    second = Optimizer([list(stopped.parameters())], lr=0.01)
    batches = data()
    for batch in batches[:3]:
        first.minimize(squares(straight), batch)
        second.minimize(squares(stopped), batch)
    third = Optimizer([list(stopped.parameters())], lr=0.01)
    kept = {name: value.clone() for name, value in stopped.state_dict().items()}
    for batch in batches[:2]:
        third.minimize(squares(stopped), batch)  # moments of its own, which the load replaces
    stopped.load_state_dict(kept)
    third.load_state_dict(second.state_dict())
    for batch in batches[3:]:
        first.minimize(squares(straight), batch)
        third.minimize(squares(stopped), batch)
    for mine, other in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_parameter_without_a_gradient_stays() -> None:
    network, unused = small_network(), nn.Parameter(torch.ones(2))
    optimizer = Optimizer([[*network.parameters(), unused]], lr=0.01, max_grad_norm=1.0)
    before = network[0].weight.detach().clone()
    for batch in data():
        optimizer.minimize(squares(network), batch)
    assert torch.equal(unused, torch.ones(2)) and not torch.equal(network[0].weight, before)


def test_unequal_parts_count_by_their_size() -> None:
    """256 entries in 7 parts (six of 37, one of 34) give the gradients, loss and metrics of the whole."""
    (batch, *_), found = data(256), []
    for accumulate in (1, 7):
        network = small_network()
        optimizer = Optimizer([list(network.parameters())], lr=0.0, max_grad_norm=1e9, accumulate=accumulate)

        def loss(part: TensorDictBase, network: nn.Module = network) -> tuple[Tensor, dict[str, Tensor]]:
            each = network(part["x"]).square().mean(-1)
            return each.mean(), {"mean": each.detach().mean(), "each": each.detach()}

        value, norm, info = optimizer.minimize(loss, batch)
        found.append([value, norm, info["mean"], info["each"], *(p.grad for p in network.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_counting_steps_together_changes_nothing() -> None:
    found = []
    for quick in (False, True):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 3))]
        adam = Adam(parameters, lr=0.1, eps=1e-8)
        for k in range(6):
            for index, parameter in enumerate(parameters):
                parameter.grad = None if (k, index) == (4, 0) else torch.full_like(parameter, k - 2.0)
            adam.quick_step(0.1) if quick else adam.step()
            if k == 2:  # what is saved has a count for each parameter, and other optimisers can go on from it
                adam.load_state_dict(copy.deepcopy(adam.state_dict()))
        found.append([*parameters, *(adam.state[parameter]["step"] for parameter in parameters)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert [count.item() for count in found[1][2:]] == [5, 6]
    steps = [state["step"] for state in adam.state_dict()["state"].values()]
    assert steps[0] is not steps[1]
