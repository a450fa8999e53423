"""Projections of return distributions onto fixed atoms equal a loop of algorithm 1 in Bellemare et al. 2017."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack.losses.dqn import project_distribution
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


def test_the_mean_of_returns_within_the_range_stays() -> None:
    torch.manual_seed(0)
    atoms = torch.linspace(-3.0, 5.0, 17)
    probabilities, returns = torch.rand(9, 17).softmax(1), torch.rand(9, 17) * 8 - 3
    projected = project_distribution(probabilities, returns, atoms)
    torch.testing.assert_close(projected @ atoms, (probabilities * returns).sum(1), rtol=0, atol=1e-5)


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
    step = following(torch.tensor([[0.25]]), torch.tensor([[False]]))
    found = loss.target_distribution(step, logits, torch.tensor([[-0.5]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.75, 0.25]]))
    found = loss.target_distribution(step, logits[::-1], torch.tensor([[-0.5]]))
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.75, 0.25]]))
    step["next", "terminated"] = torch.tensor([[True]])
    found = loss.target_distribution(step, logits, torch.tensor([[-0.5]]))
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
