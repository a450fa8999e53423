"""Critics, quantile networks and distributions of actions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from rlstack.envs.foundation import tensors
from rlstack.networks.distributions import Choices, Gaussian, Hybrid
from rlstack.networks.encoders import FlatEncoder
from rlstack.networks.quantile import COSINES, CosineEmbedding, LateQuantileCritic, QuantileCritic
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


# -- implicit quantile networks: the embedding's formula, both critics, level shapes -----------------------------------


@pytest.mark.parametrize("relu", [True, False])
def test_embedding_formula(relu: bool) -> None:
    embedding, tau = CosineEmbedding(3, relu).double(), torch.rand(2, 4, dtype=torch.float64)
    ours = embedding(tau)
    assert ours.shape == (2, 4, 3)
    weight, bias = embedding.linear.weight.detach(), embedding.linear.bias.detach()
    for b in range(2):
        for j in range(4):
            level = float(tau[b, j])
            for k in range(3):
                terms = (float(weight[k, i]) * math.cos(math.pi * i * level) for i in range(COSINES))
                value = float(bias[k]) + sum(terms)
                assert ours[b, j, k].item() == pytest.approx(max(value, 0.0) if relu else value, abs=1e-12)


def critics() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        QuantileCritic(FlatEncoder(5), 2, 7).double(),
        LateQuantileCritic(FlatEncoder(5), 2, (7, 8)).double(),
        LateQuantileCritic(FlatEncoder(5), 2, (7, 8), layer_norm=False).double(),
    ]


def inputs(*batch: int, levels: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    sizes = ((*batch, 5), (*batch, 2), (*batch, levels))
    state, action, tau = (torch.rand(size, dtype=torch.float64) for size in sizes)
    return state, action, tau


@pytest.mark.parametrize("critic", critics())
def test_shared_levels_equal_the_same_levels_repeated(critic: nn.Module) -> None:
    for batch in ((6,), (1,)):
        state, action, _ = inputs(*batch)
        tau = torch.rand(1, 4, dtype=torch.float64)
        torch.testing.assert_close(critic(state, action, tau), critic(state, action, tau.expand(*batch, 4)))


@pytest.mark.parametrize("critic", critics())
def test_batch_dimensions_do_not_matter(critic: nn.Module) -> None:
    state, action, tau = inputs(3, 4)
    values = critic(state, action, tau)
    assert values.shape == (3, 4, 4)
    folded = critic(state.view(12, 5), action.view(12, 2), tau.view(12, 4))
    torch.testing.assert_close(values, folded.view(3, 4, 4))


@pytest.mark.parametrize("critic", critics())
def test_gradients_reach_the_action_and_every_parameter(critic: nn.Module) -> None:
    state, action, tau = inputs(16)
    action.requires_grad_()
    critic(state, action, tau).sum().backward()
    assert (action.grad != 0).any()
    assert all((parameter.grad != 0).any() for parameter in critic.parameters())


@pytest.mark.parametrize("critic", critics()[1:])
def test_late_critic_formula(critic: nn.Module) -> None:
    state, action, tau = inputs(3)
    hidden = critic.trunk(torch.cat((critic.encoder(state), action), -1))
    for b in range(3):
        for j in range(4):
            expected = critic.output(hidden[b] * critic.embedding(tau[b, j : j + 1])[0])
            torch.testing.assert_close(critic(state, action, tau)[b, j], expected[0])


# -- our action distributions against those of torch.distributions -----------------------------------------------------


DOUBLE = torch.float64


@pytest.mark.parametrize("counts", [(4,), (3, 2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_choices(counts: tuple[int, ...], masked: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 7, sum(counts), dtype=DOUBLE, requires_grad=True)
    mask = torch.cat([torch.arange(n) != 1 for n in counts]).expand_as(logits) if masked else None
    ours = Choices(logits, counts, mask)
    shown = logits if mask is None else logits.masked_fill(~mask, -torch.inf)
    theirs = [Categorical(logits=part) for part in shown.split(list(counts), -1)]
    action = ours.sample()
    assert action.shape == ((6, 7) if len(counts) == 1 else (6, 7, len(counts)))
    parts = [action] if len(counts) == 1 else list(action.unbind(-1))
    log_prob = torch.stack([each.log_prob(part) for each, part in zip(theirs, parts)]).sum(0)
    torch.testing.assert_close(ours.log_prob(action), log_prob)
    entropy = torch.stack([each.entropy() for each in theirs]).sum(0)
    torch.testing.assert_close(ours.entropy(), entropy)
    modes = [each.probs.argmax(-1) for each in theirs]
    assert torch.equal(ours.mode(), modes[0] if len(modes) == 1 else torch.stack(modes, -1))
    gradient = torch.autograd.grad(ours.log_prob(action).sum() + ours.entropy().sum(), logits)[0]
    assert gradient.isfinite().all()
    if not masked:
        expected = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)[0]
        torch.testing.assert_close(gradient, expected)


def test_samples_of_choices_come_as_often_as_they_should() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5, -1.0])
    mask = torch.tensor([True, True, True, True, False])
    drawn = Choices(logits.expand(40_000, -1), (3, 2), mask.expand(40_000, -1)).sample()
    frequencies = torch.bincount(drawn[:, 0], minlength=3) / 40_000
    torch.testing.assert_close(frequencies, logits[:3].softmax(0), rtol=0, atol=0.01)
    assert (drawn[:, 1] == 0).all()


@pytest.mark.parametrize("shared", [False, True])
def test_gaussian(shared: bool) -> None:
    torch.manual_seed(0)
    mean, log_std = torch.randn(6, 7, 3, dtype=DOUBLE), torch.randn(*(() if shared else (6, 7)), 3, dtype=DOUBLE)
    mean.requires_grad_()
    log_std.requires_grad_()
    ours, theirs = Gaussian(mean, log_std), Independent(Normal(mean, log_std.exp().expand(6, 7, 3)), 1)
    action = ours.sample().detach()
    assert action.shape == mean.shape and torch.equal(ours.mode(), mean)
    outcomes = []
    for each in (ours, theirs):
        value = each.log_prob(action), each.entropy()
        assert value[0].shape == value[1].shape == (6, 7)
        outcomes.append([*value, *torch.autograd.grad(sum(part.sum() for part in value), (mean, log_std))])
    torch.testing.assert_close(*outcomes)


def test_gaussian_samples_have_mean_and_spread() -> None:
    torch.manual_seed(0)
    drawn = Gaussian(torch.tensor([1.0, -2.0]).expand(20_000, 2), torch.tensor([0.0, -1.0])).sample()
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.0, -2.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.0, -1.0]).exp(), rtol=0.03, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_give_full_precision_probabilities(dtype: torch.dtype) -> None:
    logits = torch.randn(9, 4).to(dtype)
    mask = torch.tensor([True, False, True, True]).expand(9, 4)
    choices = Choices(logits, (4,), mask)
    expected = Categorical(logits=logits.float().masked_fill(~mask, -torch.inf))
    torch.testing.assert_close(choices.log_prob(choices.mode()), expected.log_prob(choices.mode()))


@pytest.mark.parametrize("counts", [(4,), (3, 2)])
def test_numbers_and_choices_together(counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    numbers = Gaussian(torch.randn(6, 7, 3, dtype=DOUBLE), torch.randn(3, dtype=DOUBLE))
    choices = Choices(torch.randn(6, 7, sum(counts), dtype=DOUBLE), counts)
    ours = Hybrid(numbers, choices)
    action = ours.sample()
    assert action.shape == (6, 7, 3 + len(counts)) and torch.equal(action[..., 3:], action[..., 3:].round())
    chosen = action[..., 3:].long()
    log_prob = choices.log_prob(chosen if len(counts) > 1 else chosen[..., 0])
    torch.testing.assert_close(ours.log_prob(action), numbers.log_prob(action[..., :3]) + log_prob)
    torch.testing.assert_close(ours.entropy(), numbers.entropy() + choices.entropy())
    assert torch.equal(ours.mode(), torch.cat((numbers.mode(), choices.mode().view(6, 7, -1).to(DOUBLE)), -1))
