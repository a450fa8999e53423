"""Options of losses, against values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.losses.ddpg import DDPGLoss
from rlstack.losses.quantile import ACIQNLoss, QuantileLoss


class Known(QuantileLoss):
    """Two quantiles of two actions: the network prefers the second action, its target the first."""

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        return torch.tensor([[[5.0, 2.0], [7.0, 4.0]]]) if target else torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])


@pytest.mark.parametrize(("double", "chosen"), [(False, (5.0, 7.0)), (True, (2.0, 4.0))])
def test_with_double_the_network_chooses_and_its_target_values(double: bool, chosen: tuple[float, float]) -> None:
    never = torch.zeros(1, 1, dtype=torch.bool)
    following = {"observation": torch.zeros(1, 1), "reward": torch.ones(1, 1), "terminated": never, "done": never}
    loss = Known(nn.Linear(1, 1), gamma=0.5, double=double)
    target = loss.target_quantiles(TensorDict({"next": following}, [1]), torch.zeros(1, 2))
    assert target.tolist() == [[1 + 0.5 * value for value in chosen]]


class Actor(nn.Module):
    """Outputs 3 and -1 before squashing, whatever it observes; their mean square is 5."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.tensor([3.0, -1.0]))

    def raw(self, observation: Tensor) -> Tensor:
        return self.output.expand(len(observation), 2)

    def squashed(self, raw: Tensor) -> Tensor:
        return raw.tanh()

    def forward(self, observation: Tensor) -> Tensor:
        return self.squashed(self.raw(observation))


class Critic(nn.Module):
    """Values every action with zero."""

    def forward(self, observation: Tensor, action: Tensor, tau: Tensor | None = None) -> Tensor:
        return 0.0 * action.sum(-1, keepdim=True).expand(-1, 1 if tau is None else tau.shape[-1])


@pytest.mark.parametrize("make", [ACIQNLoss, DDPGLoss])
def test_an_actor_pays_for_large_outputs_before_squashing(make: Any) -> None:
    data = TensorDict({"observation": torch.zeros(4, 1), "action": torch.zeros(4, 2)}, [4])
    costs = [make(Actor(), Critic(), raw_penalty=weight).actor_loss(data)[0].item() for weight in (0.0, 0.1)]
    assert costs == pytest.approx([0.0, 0.1 * 5])
