"""Projection of return distributions onto fixed atoms, compared with a loop of algorithm 1 in Bellemare et al. 2017."""

from __future__ import annotations

import math

import pytest
import torch

from rlstack.losses.dqn import project_distribution


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
