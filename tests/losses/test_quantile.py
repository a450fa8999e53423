"""Losses of quantiles: the quantile Huber loss, and the targets of TQC."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack.agents.qrdqn import worst_mean
from rlstack.losses.quantile import TQCLoss, quantile_huber_loss


def by_loops(prediction: np.ndarray, target: np.ndarray, tau: np.ndarray, kappa: float) -> list[float]:
    result = []
    for b in range(len(prediction)):
        total = 0.0
        for i in range(prediction.shape[1]):
            for j in range(target.shape[1]):
                error = target[b, j] - prediction[b, i]
                size = abs(error)
                huber = error**2 / 2 if size <= kappa else kappa * (size - kappa / 2)
                level = tau[b, i] if len(tau) > 1 else tau[0, i]
                total += (1 - level if error < 0 else level) * huber / kappa / target.shape[1]
        result.append(total)
    return result


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(*[st.integers(1, 6)] * 3),
    kappa=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    shared=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_equals_the_loops(seed: int, sizes: tuple[int, int, int], kappa: float, shared: bool, spread: float) -> None:
    rng = np.random.default_rng(seed)
    batch, n, m = sizes
    prediction, target = rng.normal(0, spread, (batch, n)), rng.normal(0, spread, (batch, m))
    tau = rng.uniform(0, 1, (1 if shared else batch, n))
    ours = quantile_huber_loss(*(torch.from_numpy(x) for x in (prediction, target, tau)), kappa)
    assert ours.shape == (batch,)
    np.testing.assert_allclose(ours, by_loops(prediction, target, tau, kappa), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("prediction", "target", "tau", "kappa", "expected"),
    [
        ([0.0], [0.5], [0.3], 1.0, 0.3 * 0.125),  # below the target, inside the parabola
        ([0.5], [0.0], [0.3], 1.0, 0.7 * 0.125),  # above it
        ([0.0], [3.0], [0.9], 1.0, 0.9 * 2.5),  # on the straight part
        ([0.0], [3.0], [0.9], 2.0, 0.9 * 2 * (3 - 1) / 2),
        ([0.0], [0.0], [0.9], 1.0, 0.0),
        ([0.0], [1.0, -1.0], [0.25], 1.0, (0.25 * 0.5 + 0.75 * 0.5) / 2),  # mean over targets
        ([0.0, 0.0], [1.0], [0.25, 0.5], 1.0, 0.25 * 0.5 + 0.5 * 0.5),  # sum over predictions
    ],
)
def test_by_hand(prediction: list[float], target: list[float], tau: list[float], kappa: float, expected: float) -> None:
    inputs = (torch.tensor([x], dtype=torch.float64) for x in (prediction, target, tau))
    assert quantile_huber_loss(*inputs, kappa).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shape", [(5, 1, 3), (5, 5, 3), (4, 3)])
def test_a_target_of_other_entries_is_refused(shape: tuple[int, ...]) -> None:
    prediction, tau = torch.zeros(5, 2), torch.tensor([0.25, 0.75])
    with pytest.raises(ValueError, match="all but the last must agree"):
        quantile_huber_loss(prediction, torch.zeros(shape), tau)


def test_gradient() -> None:
    torch.manual_seed(0)
    prediction = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    target, tau = 2 * torch.randn(4, 3, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
    for kappa in (0.3, 1.0):
        assert torch.autograd.gradcheck(lambda x, k=kappa: quantile_huber_loss(x, target, tau, k), (prediction,))


def test_its_minimum_is_the_quantile() -> None:
    torch.manual_seed(0)
    sample = torch.randn(1, 4000, dtype=torch.float64).exp()
    tau = torch.tensor([[0.1, 0.5, 0.9]], dtype=torch.float64)
    found = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([found], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber_loss(found, sample, tau, kappa=0.01).sum().backward()
        optimizer.step()
    torch.testing.assert_close(found[0].detach(), sample[0].quantile(tau[0]), rtol=0.05, atol=0.02)


# -- TQC's truncation, and the worst part of QR-DQN's quantiles, computed by hand ------------------------------------


class Still(nn.Module):
    """A policy with mean 0 and log std 0 for one action."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        return self.zero.expand(len(observation), 1), self.zero.expand(len(observation), 1)


class Fixed(nn.Module):
    """A critic with the same three quantiles for all inputs."""

    def __init__(self, *quantiles: float) -> None:
        super().__init__()
        self.quantiles = nn.Parameter(torch.tensor(quantiles))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.quantiles.expand(len(observation), -1)


def made(drop: int) -> tuple[TQCLoss, TensorDict]:
    loss = TQCLoss(Still(), [Fixed(0.0, 8.0, 4.0), Fixed(6.0, 2.0, 9.0)], drop=drop, gamma=0.5, action_size=1)
    loss.draw = lambda like: torch.zeros_like(like)  # type: ignore[method-assign]
    following = {"observation": torch.zeros(1, 2), "reward": torch.ones(1, 1)}
    following["terminated"] = torch.zeros(1, 1, dtype=torch.bool)
    return loss, TensorDict({"observation": torch.zeros(1, 2), "action": torch.zeros(1, 1), "next": following}, [1])


@pytest.mark.parametrize(("drop", "left"), [(0, [0, 2, 4, 6, 8, 9]), (1, [0, 2, 4, 6]), (2, [0, 2])])
def test_the_largest_of_all_critics_together_are_dropped(drop: int, left: list[float]) -> None:
    """Of one critic 0, 4, 8, of the other 2, 6, 9; the log density of an action at the mean is -log(2 pi) / 2."""
    loss, data = made(drop)
    wanted = [1 + 0.5 * (value + math.log(2 * math.pi) / 2) for value in left]
    torch.testing.assert_close(loss.target_value(data), torch.tensor([wanted]))


def test_the_actor_climbs_the_mean_of_all() -> None:
    loss, data = made(1)
    assert loss.actor_loss(data)[0].item() == pytest.approx(-math.log(2 * math.pi) / 2 - 29 / 6)


@pytest.mark.parametrize(
    ("level", "expected"), [(1.0, 2.5), (0.5, 1.5), (0.25, 1.0), (0.1, 1.0), (0.375, (1 + 0.5 * 2) / 1.5)]
)
def test_the_worst_part_of_returns(level: float, expected: float) -> None:
    """Quantiles 1 to 4 in any order: the worst three eighths are the first and half of the second."""
    quantiles = torch.tensor([[3.0, 1.0, 4.0, 2.0]]).unsqueeze(-1)
    assert worst_mean(quantiles, torch.tensor([level])).item() == pytest.approx(expected)
