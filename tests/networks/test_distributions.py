"""Our action distributions against those of torch.distributions."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from rlstack.networks.distributions import Choices, Gaussian, Hybrid

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
    mean, log_std = torch.randn(6, 7, 3, dtype=DOUBLE), torch.randn(3, dtype=DOUBLE)
    logits = torch.randn(6, 7, sum(counts), dtype=DOUBLE)
    mask = torch.cat([torch.arange(n) != 1 for n in counts]).expand_as(logits)
    ours = Hybrid(Gaussian(mean, log_std), Choices(logits, counts, mask))
    parts = logits.masked_fill(~mask, -torch.inf).split(list(counts), -1)
    theirs = [Categorical(logits=part) for part in parts]
    numbers = Independent(Normal(mean, log_std.exp().expand(6, 7, 3)), 1)
    action = ours.sample()
    assert action.shape == (6, 7, 3 + len(counts))
    chosen = action[..., 3:]
    assert torch.equal(chosen, chosen.round()) and not (chosen == 1).any()
    log_prob = numbers.log_prob(action[..., :3]) + sum(each.log_prob(chosen[..., k]) for k, each in enumerate(theirs))
    torch.testing.assert_close(ours.log_prob(action), log_prob)
    torch.testing.assert_close(ours.entropy(), numbers.entropy() + sum(each.entropy() for each in theirs))
    modes = torch.stack([each.probs.argmax(-1) for each in theirs], -1)
    assert torch.equal(ours.mode(), torch.cat((mean, modes.to(DOUBLE)), -1))
