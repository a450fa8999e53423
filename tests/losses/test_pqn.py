"""PQN's returns compared with hand-computed numbers and TorchRL's estimator; its loss."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.objectives.value import TDLambdaEstimator

from rlstack.losses.dqn import PQNLoss


class Shown(nn.Module):
    """Action values: the observation, times a weight of one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:
        return self.weight * observation


def sequence(after: list[list[float]], reward: list[float], ends: dict[str, list[bool]]) -> TensorDict:
    column = {"reward": torch.tensor(reward, dtype=torch.float64).view(1, -1, 1)}
    flags = {name: torch.tensor(value).view(1, -1, 1) for name, value in ends.items()}
    seen = torch.tensor([after], dtype=torch.float64)
    return TensorDict({"next": {"observation": seen, **column, **flags}}, [1, len(reward)])


@pytest.mark.parametrize(
    ("terminated", "expected"),
    [
        (True, [4.0, 2.0, 8.0]),  # 4 + 8/2; 2 alone; 1 + (10/2 + 2/2)/2
        (False, [6.5, 12.0, 8.0]),  # a time limit: 2 + 20/2; 1 + (10/2 + 12/2)/2
    ],
)
def test_returns_by_hand(terminated: bool, expected: list[float]) -> None:
    """Gamma and lambda are 1/2, the best values after the steps 10, 20 and 8; the second step ends an episode."""
    ends = {"done": [False, True, False], "terminated": [False, terminated, False]}
    data = sequence([[10.0, 3.0], [-1.0, 20.0], [8.0, 8.0]], [1.0, 2.0, 4.0], ends)
    returns = PQNLoss(Shown(), gamma=0.5, td_lambda=0.5).returns(data)
    assert returns.flatten().tolist() == expected and not returns.requires_grad


def test_a_forbidden_action_is_never_the_best() -> None:
    data = sequence([[10.0, 3.0]], [1.0], {"done": [False], "terminated": [False]})
    data["next", "action_mask"] = torch.tensor([[[False, True]]])
    assert PQNLoss(Shown(), gamma=0.5).returns(data).item() == 2.5


@pytest.mark.parametrize("td_lambda", [0.0, 0.65, 1.0])
def test_returns_are_torchrls(td_lambda: float) -> None:
    torch.manual_seed(0)
    done = torch.rand(3, 7, 1) < 0.3
    terminated = done & (torch.rand(3, 7, 1) < 0.5)
    following = {"observation": torch.randn(3, 7, 2, dtype=torch.float64), "done": done, "terminated": terminated}
    following["reward"] = torch.randn(3, 7, 1, dtype=torch.float64)
    data = TensorDict({"observation": torch.randn(3, 7, 2, dtype=torch.float64), "next": following}, [3, 7])
    found = PQNLoss(Shown(), gamma=0.875, td_lambda=td_lambda).returns(data)
    for part in (data, data["next"]):
        part["state_value"] = part["observation"].amax(-1, keepdim=True)
    estimator = TDLambdaEstimator(gamma=0.875, lmbda=td_lambda, value_network=None, vectorized=False)
    wanted = estimator.value_estimate(data, next_value=data["next", "state_value"])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_the_loss_is_half_the_squared_error() -> None:
    """Predictions 3 and -1, targets 5 and 2: (4 + 9) / 2 / 2."""
    seen = torch.tensor([[3.0, 9.0], [7.0, -1.0]], dtype=torch.float64)
    wanted = torch.tensor([5.0, 2.0], dtype=torch.float64)
    data = TensorDict({"observation": seen, "action": torch.tensor([0, 1]), "value_target": wanted}, [2])
    out = PQNLoss(Shown())(data)
    assert out["loss_critic"].item() == 3.25 and (out["value"].item(), out["target"].item()) == (1.0, 3.5)
