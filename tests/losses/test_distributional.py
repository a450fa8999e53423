"""Losses of categorical and quantile critics."""

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
from rlstack.losses.dqn import project_distribution
from rlstack.losses.quantile import TQCLoss, quantile_huber_loss
from rlstack.losses.sac import CategoricalSACLoss


def slowly(probabilities: list[float], returns: list[float], low: float, high: float) -> list[float]:
    count = len(probabilities)
    spacing = (high - low) / (count - 1)
    projected = [0.0] * count
    for probability, value in zip(probabilities, returns):
        b = (min(max(value, low), high) - low) / spacing
        below, above = math.floor(b), math.ceil(b)
        if below == above:  # an exact hit, whose mass the published algorithm would lose
            projected[below] += probability
        else:
            projected[below] += probability * (above - b)
            projected[above] += probability * (b - below)
    return projected


@pytest.mark.parametrize(("low", "high", "count"), [(-1.0, 1.0, 51), (-10.0, 100.0, 51), (-2.0, 3.0, 6), (0.0, 1.0, 2)])
def test_projection_equals_the_loop(low: float, high: float, count: int) -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(low, high, count, dtype=torch.float64)
    probabilities = torch.rand(20, count, dtype=torch.float64)
    probabilities /= probabilities.sum(1, keepdim=True)
    reward, discount = torch.randn(20, 1, dtype=torch.float64) * (high - low), torch.rand(20, 1, dtype=torch.float64)
    moved = reward / 2 + discount * atoms
    moved[:5] = atoms  # exact hits
    moved[5:7], moved[7:9] = high + 1, low - 1
    moved[9] = 0.5 * (low + high)  # a terminal state: one return
    projected = project_distribution(probabilities, moved, atoms)
    expected = [slowly(p.tolist(), r.tolist(), low, high) for p, r in zip(probabilities, moved)]
    torch.testing.assert_close(projected, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(projected.sum(1), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(projected[:5], probabilities[:5])
    assert (projected[5:7, -1] > 1 - 1e-12).all() and (projected[7:9, 0] > 1 - 1e-12).all()


def test_low_precision_forward_passes_do_not_round_the_target() -> None:
    atoms = torch.linspace(-10.0, 100.0, 51)
    probabilities, returns = torch.rand(9, 51).softmax(1), torch.rand(9, 51) * 100
    exact = project_distribution(probabilities, returns, atoms)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(project_distribution(probabilities, returns, atoms), exact)


# -- soft targets ------------------------------------------------------------------------------------------------------


def soft(atoms: Tensor, gamma: float, alpha: float) -> CategoricalSACLoss:
    critics = [nn.Linear(1, len(atoms)) for _ in range(2)]
    return CategoricalSACLoss(nn.Linear(1, 2), critics, atoms, gamma=gamma, alpha=alpha, action_size=1)


def following(reward: Tensor, ended: Tensor) -> TensorDict:
    return TensorDict({"next": {"reward": reward, "terminated": ended}}, [len(reward)])


def test_a_soft_target_worked_out_by_hand() -> None:
    """The first critic has the smaller mean, -0.5; its returns -1, 0 and 1 become 0, 0.5 and 1."""
    loss = soft(torch.tensor([-1.0, 0.0, 1.0]), gamma=0.5, alpha=1.0)
    logits = [torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.zeros(1, 3)]
    for critics, ended in ((logits, False), (logits[::-1], False), (logits, True)):
        step = following(torch.tensor([[0.25]]), torch.tensor([[ended]]))
        found = loss.target_distribution(step, critics, torch.tensor([[-0.5]]))
        torch.testing.assert_close(found, torch.tensor([[0.0, 0.75, 0.25]]))


@pytest.mark.parametrize(("low", "high", "count"), [(-5.0, 5.0, 101), (-1.0, 2.0, 7), (0.0, 1.0, 2)])
def test_soft_targets_equal_the_loop(low: float, high: float, count: int) -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(low, high, count, dtype=torch.float64)
    loss, gamma = soft(atoms, gamma=0.9, alpha=1.0).double(), 0.9
    first, second = torch.randn(2, 20, count, dtype=torch.float64)
    reward, log_prob = torch.randn(20, 1, dtype=torch.float64) * (high - low), torch.randn(20, 1, dtype=torch.float64)
    ended = torch.arange(20).unsqueeze(-1) < 3
    log_prob[:3] = torch.nan
    found = loss.target_distribution(following(reward, ended), [first, second], log_prob)
    for row in range(20):
        ways = [logits[row].softmax(-1) for logits in (first, second)]
        least = min(ways, key=lambda chances: float(chances @ atoms)).tolist()
        r, lp = float(reward[row]), float(log_prob[row])
        returns = [r if ended[row] else r + gamma * (z - lp) for z in atoms.tolist()]
        expected = torch.tensor(slowly(least, returns, low, high), dtype=torch.float64)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)


def test_a_return_that_is_no_number_has_a_target_that_is_none() -> None:
    loss = soft(torch.linspace(-1.0, 1.0, 5), gamma=0.9, alpha=1.0)
    step = following(torch.tensor([[torch.nan], [0.1]]), torch.tensor([[False], [False]]))
    found = loss.target_distribution(step, [torch.zeros(2, 5)] * 2, torch.zeros(2, 1))
    assert found[0].isnan().any() and not found[1].isnan().any()


# -- losses of quantiles: the quantile Huber loss, and the targets of TQC ----------------------------------------------


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
