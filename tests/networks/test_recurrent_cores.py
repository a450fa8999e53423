"""Recurrent cores: step by step and as whole sequences they are the same, and episodes are apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlstack.networks import recurrent
from rlstack.networks.recurrent import Core, GRUSequence, LSTMSequence, Remembering, Segments

KINDS: list[Any] = ["lstm", "gru"]
ROWS, STEPS = 6, 9


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["padded", "packed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of an LSTM; a GRU on the CPU is always packed."""
    monkeypatch.setattr(recurrent, "_WASTE", 1e9 if request.param == "padded" else 0.0)
    return request.param


def made(kind: Any, layers: int = 1) -> Remembering:
    return Remembering(nn.Linear(4, 3), Core(kind, 3, 5, layers))


def one_by_one(
    network: Remembering, observation: Tensor, memory: Tensor, starts: Tensor, active: Tensor
) -> tuple[Tensor, Tensor]:
    """Features ``[N, L, H]`` and the states after each step ``[N, L, M]``, as a policy would have them."""
    outputs, states = [], []
    for t in range(observation.shape[1]):
        out, memory = network.step(observation[:, t], memory.masked_fill(starts[:, t, None], 0.0))
        memory = memory.masked_fill(~active[:, t, None], 0.0)
        outputs.append(out)
        states.append(memory)
    return torch.stack(outputs, 1), torch.stack(states, 1)


def drawn(network: Remembering, ends: float = 0.25, gaps: float = 0.15) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    observation, memory = torch.randn(ROWS, STEPS, 4), torch.randn(ROWS, network.core.memory_size)
    return observation, memory, torch.rand(ROWS, STEPS) < ends, torch.rand(ROWS, STEPS) >= gaps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("ends", "gaps"), [(0.0, 0.0), (0.25, 0.0), (0.25, 0.3), (1.0, 0.0)])
def test_sequences_give_what_steps_give(kind: Any, layers: int, ends: float, gaps: float, way: str) -> None:
    network = made(kind, layers)
    observation, memory, starts, active = drawn(network, ends, gaps)
    wanted, _ = one_by_one(network, observation, memory, starts, active)
    features, _ = network.unroll(observation, memory, Segments(starts, active))
    torch.testing.assert_close(features[active], wanted[active], rtol=0, atol=1e-12)
    weight = torch.randn(ROWS, STEPS, 5) * active[..., None]
    gradients = [
        torch.autograd.grad((values * weight).sum(), list(network.parameters())) for values in (features, wanted)
    ]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_in_single_precision_they_agree_to_1e_6(kind: Any, way: str) -> None:
    network = Remembering(nn.Identity(), Core(kind, 4, 64)).float()
    observation, memory, starts, active = drawn(network)
    observation, memory = observation.float(), torch.tanh(memory).float()
    wanted, _ = one_by_one(network, observation, memory, starts, active)
    features, _ = network.unroll(observation, memory, Segments(starts, active))
    torch.testing.assert_close(features[active], wanted[active], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ends", "gaps"), [(0.0, 0.0), (0.25, 0.3)])
def test_the_next_step_belongs_to_the_same_episode(kind: Any, ends: float, gaps: float, way: str) -> None:
    network = made(kind)
    observation, memory, starts, active = drawn(network, ends, gaps)
    following = torch.randn(ROWS, STEPS, 4)
    segments = Segments(starts, active, extended=True)
    goes_on = active[:, :-1] & active[:, 1:] & ~starts[:, 1:]
    following[:, :-1][goes_on] = observation[:, 1:][goes_on]  # elsewhere something that is seen at the end only
    _, after = network.unroll(observation, memory, segments, following[segments.ends])
    _, states = one_by_one(network, observation, memory, starts, active)
    wanted, _ = network.step(following, states)
    assert after is not None
    torch.testing.assert_close(after[active], wanted[active], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_crosses_the_end_of_an_episode(kind: Any, way: str) -> None:
    network = Remembering(nn.Identity(), Core(kind, 4, 5))
    observation, memory, _, _ = drawn(network)
    observation, memory = observation.requires_grad_(), memory.requires_grad_()
    starts = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    starts[::2, 4] = True
    features, _ = network.unroll(observation, memory, Segments(starts, torch.ones_like(starts)))
    to_observation, to_memory = torch.autograd.grad(features[:, -1].sum(), (observation, memory))
    assert (to_observation[::2, :4] == 0).all() and (to_memory[::2] == 0).all()
    assert (to_observation[1::2] != 0).all() and (to_memory[1::2] != 0).any(1).all()
    assert (to_observation[::2, 4:] != 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_following_gives_the_states_of_steps(kind: Any) -> None:
    network = made(kind, 2)
    observation, memory, starts, active = drawn(network)
    _, states = one_by_one(network, observation, memory, starts, active)
    before, last = network.follow(observation, memory, starts, active)
    torch.testing.assert_close(last, states[:, -1])
    torch.testing.assert_close(before[3], states[:, 2].masked_fill(starts[:, 3, None], 0.0))
    assert torch.equal(before[0], memory.masked_fill(starts[:, 0, None], 0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_core_is_the_module_of_torch(kind: Any) -> None:
    core = Core(kind, 3, 5, 2)
    module = (nn.LSTM if kind == "lstm" else nn.GRU)(3, 5, 2)
    module.load_state_dict(core.cells.state_dict())
    x = torch.randn(7, 4, 3)
    wanted, _ = module(x)
    memory = torch.zeros(4, core.memory_size)
    for sizes in (None, [4] * 7):
        found = core.unroll(x.flatten(0, 1), memory, sizes).view_as(wanted)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_written_out_gradients_are_those_of_finite_differences() -> None:
    sizes = [3, 3, 2, 1]

    def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
        return [torch.randn(shape, requires_grad=True) for shape in shapes]

    gru = tensors((9, 6), (3, 2), (6, 2), (6,))
    assert torch.autograd.gradcheck(lambda *a: GRUSequence.apply(*a, sizes), gru)
    lstm = tensors((9, 8), (3, 2), (3, 2), (8, 2))
    assert torch.autograd.gradcheck(lambda *a: LSTMSequence.apply(*a, sizes), lstm)
