"""Acting by the conditional value at risk, everywhere or only near obstacles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, Unbounded

from rlstack import envs
from rlstack.agents.interface import Interface
from rlstack.agents.iqn import AdaptiveLevel, levels
from tests.agents.small_agents import Decisions, small
from tests.exhaustive import exhaustive

ADAPTIVE = {"distance": 10.0, "low": 0.2, "high": 0.8}
DISCRETE = Categorical(2, shape=())
NUMBERS = Bounded(-1.0, 1.0, shape=(1,))


def first_number(observation: Tensor) -> Tensor:
    return observation[..., 0]


def world(action: Any, nearest: Any = first_number) -> Decisions:
    return Decisions(Unbounded(2), action, nearest=nearest)


def test_levels() -> None:
    interface: Any = Interface.of(world(DISCRETE))  # type: ignore[arg-type]
    tau, observation = torch.tensor([0.25, 0.75]).expand(4, 2), torch.zeros(4, 2)
    torch.testing.assert_close(levels(0.5, tau, interface, observation), tau / 2)
    observation[:, 0] = torch.tensor([0.0, 5.0, 9.0, torch.inf])
    expected = torch.tensor([[0.2], [0.5], [0.8], [0.8]]) * tau
    torch.testing.assert_close(levels(AdaptiveLevel(**ADAPTIVE), tau, interface, observation), expected)


class Gamble(nn.Module):
    """A stand-in network: action 0 always returns 0; action 1 returns 3 or, in the worst 40 %, -2."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor, tau: Tensor) -> Tensor:
        gamble = torch.where(tau < 0.4, -2.0, 3.0)
        return torch.stack((torch.zeros_like(tau), gamble), -1)


@exhaustive(("cvar", "gambles"), [(1.0, True), (0.9, True), (0.5, False), (0.1, False)])
def test_the_level_decides_about_a_gamble(cvar: float, gambles: bool) -> None:
    agent = small(world(DISCRETE), name="iqn", cvar=cvar)
    agent.network = Gamble()
    action = agent.policy(explore=False)(TensorDict({"observation": torch.randn(3, 5, 2)}, [3, 5]))["action"]
    assert (action == int(gambles)).all() and action.shape == (3, 5)


@pytest.mark.parametrize("act_levels", ["midpoints", "random"])
def test_near_an_obstacle_it_does_not_gamble(act_levels: str) -> None:
    agent = small(world(DISCRETE), name="iqn", cvar=ADAPTIVE, act_levels=act_levels, act_quantiles=400)
    agent.network = Gamble()
    observation = torch.zeros(2, 5, 2)
    observation[..., 0] = torch.tensor([0.0, 3.0, 9.0, 50.0, torch.inf])
    action = agent.policy(explore=False)(TensorDict({"observation": observation}, [2, 5]))["action"]
    assert action.tolist() == [[0, 0, 1, 1, 1]] * 2


def test_candidates_are_compared_more_cautiously_near_an_obstacle() -> None:
    agent = small(world(NUMBERS), name="acqn", cvar=ADAPTIVE, candidates=64, num_quantiles=100)

    class Quantiles(nn.Module):
        """A stand-in network: further to the right, returns are higher and more uncertain."""

        def forward(self, observation: Tensor, action: Tensor, tau: Tensor) -> Tensor:
            return (action + 1) * torch.where(tau < 0.4, -2.0, 3.0)

    vars(agent.loss)["target_critic_network"] = Quantiles()
    observation = torch.zeros(2, 4, 2)
    observation[..., 0] = torch.tensor([1.0, 3.0, 9.0, 100.0])
    action = agent.policy(explore=False)(TensorDict({"observation": observation}, [2, 4]))["action"]
    assert action.shape == (2, 4, 1)
    assert (action[:, :2] < -0.5).all() and (action[:, 2:] > 0.5).all()


@pytest.mark.parametrize(("name", "continuous"), [("iqn", False), ("acqn", True)])
def test_robots_near_obstacles_act_differently(name: str, continuous: bool) -> None:
    """With random weights: close by, at a low level, some act differently than by the mean; far away nobody does."""
    env = envs.make("marinenav", num_worlds=20, num_robots=3, continuous_actions=continuous, num_obstacles=4)
    seen = env.reset()
    near = env.nearest_obstacle(seen["agents", "observation"]) < 10.0
    assert near.any() and not near.all()
    actions = []
    edge: dict[str, float] = {"distance": 10.0, "low": 1e-3, "high": 1.0}
    for cvar in (edge, 1.0):
        more = {"candidates": 64} if name == "acqn" else {"act_quantiles": 8}
        agent: Any = small(env, name=name, cvar=cvar, hidden=[64, 64], **more)
        if name == "iqn":
            agent.network.embedding.linear.weight.data.mul_(20)  # returns that are far from certain
        actions.append(agent.policy(explore=False)(seen.clone())["agents", "action"].view(20, 3, -1))
    differ = (actions[0] != actions[1]).any(-1)
    assert not differ[~near].any() and differ[near].any()


def test_yaml_values_become_levels() -> None:
    agent = small(world(DISCRETE), name="iqn", cvar=ADAPTIVE)
    assert agent.config.cvar == AdaptiveLevel(10.0, 0.2, 0.8)
    assert small(world(DISCRETE), name="iqn", cvar={"distance": 5.0}).config.cvar == AdaptiveLevel(5.0, 0.1, 1.0)
    assert small(world(DISCRETE), name="iqn", cvar=1).config.cvar == 1.0
