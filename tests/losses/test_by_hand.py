"""Losses and targets worked out by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.objectives.value import TDLambdaEstimator

from rlstack.losses.ddpg import DDPGLoss, TD3Loss
from rlstack.losses.dqn import PQNLoss
from rlstack.losses.quantile import ACIQNLoss, QuantileLoss
from rlstack.losses.retrace import RetraceLoss
from rlstack.losses.sac import DiscreteSACLoss, SACLoss
from rlstack.networks.actors import squashed
from tests.losses.test_retrace import Table


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


# -- losses worked out by hand -----------------------------------------------------------------------------------------


class Gaussian(nn.Module):
    """The observation, whose parts are the mean and log std of one action."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = (self.one * observation).chunk(2, -1)
        return mean, log_std


class Always(nn.Module):
    """The same outputs for every input."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        return self.outputs.expand(len(observation), -1)


def transition(action: Tensor, reward: float = 1.0) -> TensorDict:
    following = {"observation": torch.zeros(1, 2), "reward": torch.full((1, 1), reward)}
    following["terminated"] = torch.zeros(1, 1, dtype=torch.bool)
    return TensorDict({"observation": torch.zeros(1, 2), "action": action, "next": following}, [1])


@pytest.mark.parametrize(("double", "target"), [(True, 2.25), (False, 2.0)])
def test_retrace_follows_the_network_or_its_target(double: bool, target: float) -> None:
    """One state after the other, values of the target (1, 2), (4, 0); the network prefers action 0 in the first.

    With it, the action 0 goes on: 1 + (1 + (1 + 4/2 - 1))/2 - 1/2; by the target's choice the return ends with 1 + 2/2.
    """
    loss = RetraceLoss(Table(), gamma=0.5, double=double)
    loss.target_network.values.data = torch.tensor([[0.0, 0.0], [1.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
    loss.network.values.data = torch.tensor([[0.0, 0.0], [9.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
    states, ends = torch.eye(4), torch.zeros(1, 2, 1, dtype=torch.bool)
    following = {
        **{
            "observation": states[None, 1:3],
            "reward": torch.tensor([[[1.0], [0.5]]]),
            "done": ends,
            "terminated": ends,
        },
        **{"action": torch.zeros(1, 2, dtype=torch.int64), "log_prob": torch.zeros(1, 2)},
    }
    data = {"observation": states[:1], "action": torch.zeros(1, dtype=torch.int64), "next": following}
    assert loss(TensorDict(data, [1]))["target"].item() == pytest.approx(target)


@pytest.mark.parametrize("squash", ["tanh", "arctan"])
def test_the_density_of_a_squashed_action_is_exact(squash: Literal["tanh", "arctan"]) -> None:
    """That of the Gaussian over the derivative of the squash, which autograd knows."""
    loss = SACLoss(Gaussian(), [Always(0.0), Always(0.0)], action_size=1, squash=squash)
    noise = torch.linspace(-3, 3, 13, dtype=torch.float64).unsqueeze(-1)
    loss.draw = lambda like: noise  # type: ignore[method-assign]
    observation = torch.tensor([0.3, -0.7], dtype=torch.float64).expand(13, -1)
    action, found = loss.action_and_log_prob(TensorDict({"observation": observation}, [13]))
    raw = (0.3 + math.exp(-0.7) * noise).requires_grad_()
    (slope,) = torch.autograd.grad(squashed(raw, squash).sum(), raw)
    gaussian = torch.distributions.Normal(0.3, math.exp(-0.7)).log_prob(raw.detach())
    torch.testing.assert_close(action, squashed(raw.detach(), squash))
    torch.testing.assert_close(found, gaussian - slope.log(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("target_actor", [False, True])
def test_discrete_sac_may_take_the_next_action_from_a_target_actor(target_actor: bool) -> None:
    """The actor is sure of the first choice, worth 2; its target of the second, worth 4."""
    critics = [Always(2.0, 4.0), Always(3.0, 5.0)]
    loss = DiscreteSACLoss(Always(50.0, 0.0), critics, 0.5, target_entropy=0.0, target_actor=target_actor)
    if target_actor:
        loss.target_actor.outputs.data = torch.tensor([0.0, 50.0])
    found = loss.target_value(transition(torch.zeros(1, dtype=torch.int64)))
    assert found.item() == pytest.approx(1 + 0.5 * (4 if target_actor else 2))


def test_the_priority_of_an_entry_is_the_mean_error_of_both_critics() -> None:
    """The target is 1 + 2/2, the predictions 2 and 6."""
    loss: Any = TD3Loss(Always(0.0), [Always(2.0), Always(6.0)], gamma=0.5, target_noise=0.0)
    data = transition(torch.zeros(1, 1)).set("priority_weight", torch.ones(1))
    loss(data)
    assert data["td_error"].tolist() == [2.0]


def test_what_pqn_predicts_after_an_end_does_not_count() -> None:
    ends = {"done": [False, True], "terminated": [False, True]}
    data = sequence([[10.0, 3.0], [math.inf, 0.0]], [1.0, 2.0], ends)
    returns = PQNLoss(Shown(), gamma=0.5, td_lambda=0.5).returns(data)
    assert returns.flatten().tolist() == [1 + 0.5 * (10 + 2) / 2, 2.0]


# -- Options of losses, against values computed by hand --------------------------------------------------------------


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
