"""TQC's truncation, and the worst part of QR-DQN's quantiles, computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rlstack.agents.qrdqn import worst_mean
from rlstack.losses.quantile import TQCLoss


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
