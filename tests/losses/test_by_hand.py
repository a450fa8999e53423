"""Losses and targets worked out by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rlstack.data.flatten import NStepWindows, n_step_windows, transitions
from rlstack.losses.ddpg import DDPGLoss, TD3Loss
from rlstack.losses.dqn import PQNLoss
from rlstack.losses.ppo import estimate, vtrace
from rlstack.losses.quantile import ACIQNLoss, QRDQNLoss, QuantileLoss
from rlstack.losses.retrace import RetraceLoss, greedy_returns, retrace
from rlstack.losses.sac import DiscreteSACLoss, SACLoss
from rlstack.networks.actors import squashed


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
    """Gamma and lambda are 1/2, the best values after the steps 10, 20 and 8; the second step ends an episode.

    What is predicted after a termination does not count, not even an infinite value.
    """
    ends = {"done": [False, True, False], "terminated": [False, terminated, False]}
    data = sequence([[10.0, 3.0], [-1.0, math.inf if terminated else 20.0], [8.0, 8.0]], [1.0, 2.0, 4.0], ends)
    returns = PQNLoss(Shown(), gamma=0.5, td_lambda=0.5).returns(data)
    assert returns.flatten().tolist() == expected and not returns.requires_grad


def test_values_are_not_rounded_to_the_whole_rewards_of_a_world_that_counts() -> None:
    data = sequence([[0.5, 1.5]], [2.0], {"done": [False], "terminated": [False]})
    data["next", "reward"] = data["next", "reward"].long()
    assert PQNLoss(Shown(), gamma=0.5).returns(data).item() == 2.75


def test_a_forbidden_action_is_never_the_best() -> None:
    data = sequence([[10.0, 3.0]], [1.0], {"done": [False], "terminated": [False]})
    data["next", "action_mask"] = torch.tensor([[[False, True]]])
    assert PQNLoss(Shown(), gamma=0.5).returns(data).item() == 2.5


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


# -- Options of losses, against values computed by hand --------------------------------------------------------------


class Known(QuantileLoss):
    """Two quantiles of two actions: the network prefers the second action, its target the first."""

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        return torch.tensor([[[5.0, 2.0], [7.0, 4.0]]]) if target else torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])


@pytest.mark.parametrize(("double", "chosen"), [(False, (5.0, 7.0)), (True, (2.0, 4.0))])
def test_with_double_the_network_chooses_and_its_target_values(double: bool, chosen: tuple[float, float]) -> None:
    loss = Known(nn.Linear(1, 1), gamma=0.5, double=double)
    target = loss.target_quantiles(transition(torch.zeros(1)), torch.zeros(1, 2))
    assert target.tolist() == [[1 + 0.5 * value for value in chosen]]


def test_qrdqn_by_hand() -> None:
    """Two quantiles, one action each, kappa 1; levels 1/4 and 3/4.

    The prediction is (0, 1), the target 1 + 0.5 (0, 2) = (1, 2). Errors by prediction: 0: 1, 2; 1: 0, 1. Huber: 0.5,
    1.5; 0, 0.5. No error is negative, so weights are the levels: 1/4 (0.5 + 1.5)/2 + 3/4 (0 + 0.5)/2 = 0.25 + 0.1875.
    """
    data = transition(torch.zeros(1, dtype=torch.int64))
    data["observation"], data["next", "observation"] = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]])
    network = nn.Sequential(Shown(), nn.Unflatten(-1, (2, 1)))
    assert QRDQNLoss(network, gamma=0.5, num_quantiles=2)(data)["loss_critic"].item() == pytest.approx(0.4375)


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


# -- Corrections of returns for older policies: Retrace and V-trace --------------------------------------------------


def column(*values: float) -> Tensor:
    return torch.tensor(values).view(1, -1, 1)


def only(step: int | None) -> Tensor:
    """Returns three flags, of which that of this step is true."""
    return column(*(number == step for number in range(3)))


@pytest.mark.parametrize(
    ("done", "terminated", "wanted"),
    [(None, False, 3.0), (0, False, 2.0), (0, True, 1.0), (1, False, 2.375), (1, True, 2.25)],
)
def test_three_steps_by_hand(done: int | None, terminated: bool, wanted: float) -> None:
    """Backwards, discount 1/2: 4 + 8/2 = 8; 2 + (1 + 1 (8 - 3))/2 = 5; 1 + (2 + 1/2 (5 - 1))/2 = 3.

    An episode that ends with step 0 leaves 1 + 2/2, or 1; with step 1: 2 + 1/2 = 2.5 (or 2) there, and so
    1 + (2 + 1/2 (2.5 - 1))/2 (or 2 - 1).
    """
    ends = only(done)
    value, taken, trace = column(2, 1, 8), column(1, 3, 99), column(0.5, 1, 99)
    found = retrace(0.5, column(1, 2, 4), value, taken, trace, ends, ends & terminated)
    assert found.item() == pytest.approx(wanted)


class Table(nn.Module):
    """Values of two actions in four states, observed as one-hot vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor([[0.0, 1.0], [1.0, 2.0], [3.0, 0.0], [4.0, 8.0]]))

    def forward(self, observation: Tensor) -> Tensor:
        return observation @ self.values


def with_steps(*rewards: float, probability: float) -> TensorDict:
    """Returns a step with action 0 from state 0 to 1 with the steps after it, one state after the other."""
    n = len(rewards)
    ends = torch.zeros(1, n, 1, dtype=torch.bool)
    following = {"observation": torch.eye(4)[None, 1 : 1 + n], "reward": column(*rewards), "done": ends}
    following |= {"terminated": ends, "action": torch.zeros(1, n, dtype=torch.int64)}
    following["log_prob"] = torch.full((1, n), probability).log()
    start = {"observation": torch.eye(4)[:1], "action": torch.zeros(1, dtype=torch.int64)}
    return TensorDict({**start, "next": following}, [1])


@pytest.mark.parametrize(("double", "target"), [(True, 2.25), (False, 2.0)])
def test_retrace_follows_the_network_or_its_target(double: bool, target: float) -> None:
    """One state after the other, values of the target (1, 2), (4, 0); the network prefers action 0 in the first.

    With it, the action 0 goes on: 1 + (1 + (1 + 4/2 - 1))/2 - 1/2; by the target's choice the return ends with 1 + 2/2.
    """
    loss = RetraceLoss(Table(), gamma=0.5, double=double)
    loss.target_network.values.data = torch.tensor([[0.0, 0.0], [1.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
    loss.network.values.data = torch.tensor([[0.0, 0.0], [9.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
    assert loss(with_steps(1, 0.5, probability=1.0))["target"].item() == pytest.approx(target)


@pytest.mark.parametrize(("epsilon", "target"), [(0.5, 2.96875), (0.0, 2.0)])
def test_the_loss_by_hand(epsilon: float, target: float) -> None:
    """States 0 to 3, actions 0, 0, 0, each with probability 1/2; the best ones are 1, 1, 0, 1.

    A policy that takes them with 3/4 has V = 1.75, 2.25, 7 in states 1 to 3; the traces are (1/4)/(1/2) = 1/2 and
    min(1, (3/4)/(1/2)) = 1. Backwards: 4 + 3.5 = 7.5; 2 + (2.25 + 7.5 - 3)/2 = 5.375; 1 + (1.75 + (5.375 - 1)/2)/2.
    The greedy policy never takes action 0 in state 1: 1 + 2/2.
    """
    out = RetraceLoss(Table(), gamma=0.5, epsilon=epsilon)(with_steps(1, 2, 4, probability=0.5))
    assert out["target"].item() == pytest.approx(target)
    assert out["loss_critic"].item() == pytest.approx(target - 0.5), "Huber's, of an error beyond one"


@pytest.mark.parametrize(
    ("follows", "done", "reward", "state", "gamma"),
    [
        ((1, 1, 0), None, 1 + 1 + 1, 3, 0.125),
        ((1, 0, 1), None, 1 + 1, 2, 0.25),
        ((0, 1, 1), None, 1, 1, 0.5),
        ((1, 1, 1), 1, 1 + 1, 2, 0.25),
        ((1, 1, 1), 0, 1, 1, 0.5),
    ],
)
def test_returns_end_with_the_greedy_actions(
    follows: tuple[int, ...], done: int | None, reward: float, state: float, gamma: float
) -> None:
    """Rewards 1, 2 and 4 with a discount of 1/2: 1 each, up to the first action that is not greedy."""
    ends = only(done)
    steps = {"observation": column(1, 2, 3), "reward": column(1, 2, 4), "done": ends, "terminated": ends}
    steps |= {"action": torch.zeros(1, 3, dtype=torch.int64)}
    data = TensorDict({"observation": torch.zeros(1, 1), "next": steps}, [1])
    found = greedy_returns(data, column(*follows).bool(), 0.5)
    assert found["next", "reward"].tolist() == [[reward]] and found["gamma"].tolist() == [[gamma]]
    assert found["next", "observation"].tolist() == [[state]]
    assert found["next", "terminated"].tolist() == [[done is not None]]


def test_returns_of_several_agents_hold_structured_observations() -> None:
    """Rewards 0, 1 and 2 with a discount of 1/2; the first action is followed by a greedy one, the others are not."""
    data = numbered(3)
    for entries in (data, data["next"]):  # as of a group, whose observations have a size of their own
        entries["observation"] = TensorDict({"own": entries["observation"]}, [1, 3])
    windows = transitions(n_step_windows(data, 3))
    greedy = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0]]).bool().unsqueeze(-1)
    found = greedy_returns(windows, greedy, 0.5)
    assert found["next", "reward"][:, 0].tolist() == [0 + 1 / 2, 1, 2]
    assert found["gamma"][:, 0].tolist() == [0.25, 0.5, 0.5]
    assert found["next", "observation", "own"][:, 0].tolist() == [1.5, 1.5, 2.5]


def numbered(time: int, ends: tuple[int, ...] = ()) -> TensorDict:
    """Returns a row of steps whose entries are their numbers; the steps in ``ends`` end episodes."""
    count = torch.arange(time, dtype=torch.float32).view(1, time, 1)
    done = torch.zeros(1, time, 1, dtype=torch.bool)
    done[:, list(ends)] = True
    following = {"observation": count + 0.5, "reward": count, "done": done, "terminated": done}
    entries = {"observation": count, "action": count[..., 0].long(), "log_prob": -count[..., 0], "next": following}
    return TensorDict({**entries, "active": torch.ones(1, time, dtype=torch.bool)}, [1, time])


def test_windows_hold_what_followed_and_what_was_done_there() -> None:
    windows = n_step_windows(numbered(5, ends=(1,)), 3)
    assert windows["action"].tolist() == [[0, 1, 2, 3, 4]] and "log_prob" not in windows.keys()  # noqa: SIM118
    assert windows["next", "reward"][0, :, :, 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4]]
    assert windows["next", "observation"][0, 2, :, 0].tolist() == [2.5, 3.5, 4.5]
    assert windows["next", "action"][0].tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 4], [4, 4, 4], [4, 4, 4]]
    assert windows["next", "log_prob"][0, 0].tolist() == [-1, -2, -3]
    ends = windows["next", "done"][0, :, :, 0].int().tolist()
    assert ends == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]


def test_a_stream_gives_the_windows_of_the_whole() -> None:
    data, step = numbered(9, ends=(4,)), NStepWindows(3, 0.9)
    parts = []
    for piece in data.split([2, 1, 4, 2], 1):
        state, step = step.state_dict(), NStepWindows(3, 0.9)
        step.load_state_dict(state)
        parts.append(step(piece))
    found, whole = torch.cat(parts, 1), n_step_windows(data, 3)[:, :7]
    assert found.shape == (1, 7)
    for key in ("reward", "observation", "terminated", "action", "log_prob"):
        used = slice(0, 2) if key in ("action", "log_prob") else slice(None)  # the last action is not used
        assert torch.equal(found["next", key][:, :, used], whole["next", key][:, :, used])
    assert torch.equal(found["next", "done"][:, :, :2], whole["next", "done"][:, :, :2])


# -- V-trace (Espeholt et al. 2018): examples computed by hand, and its values for on-policy data --------------------


DOUBLE = torch.float64
REWARD, VALUE, LAST = [2.0, 1.0, -1.0, 4.0], [2.0, 1.0, 3.0, 0.0], 2.0
"""For four steps: rewards, values of their states, and the value of the state after them; the discount is 1/2."""


def in_sequence(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE).view(1, -1, 1)


def four_steps(**ends: int) -> list[list[float]]:
    """Returns advantages and targets; ``done`` is the last step of an episode, ``terminated`` whether it terminates.

    The ratios are 4, .5, 1, .25, bounded by 2 (rho) and 1 (c), and lambda is 1/2.
    """
    done, following = torch.zeros(1, 4, 1, dtype=torch.bool), in_sequence([*VALUE[1:], LAST])
    if "done" in ends:
        done[0, ends["done"]] = True
        following[0, ends["done"]] = 8.0
    terminated = done & ends.get("terminated", False)
    log_ratio = in_sequence([4.0, 0.5, 1.0, 0.25]).log()
    found = vtrace(0.5, 0.5, 2.0, 1.0, log_ratio, in_sequence(VALUE), following, in_sequence(REWARD), done, terminated)
    return [part.flatten().tolist() for part in found]


def test_bounds_and_decay_by_hand() -> None:
    """``rho = 2, .5, 1, .25``, ``c = .5, .25, .5, .125``: ``v - V`` is 1.25; -4 + .25 * 1.25; .75 - .125 * 3.6875;
    1 + .25 * .2890625."""
    advantage, target = four_steps()
    assert target == pytest.approx([2 + 1.072265625, 1.2890625, -0.6875, 1.25])
    assert advantage == pytest.approx([2 * 0.64453125, 0.5 * -0.34375, -3.375, 1.25])


@pytest.mark.parametrize(("terminated", "second"), [(True, 0.0), (False, 2.0)])
def test_an_episode_that_ends_has_nothing_of_the_next_one(terminated: bool, second: float) -> None:
    """An episode ends with step 1, whose error is ``.5 (1 - 1)``; cut off before a state of value 8 ``.5 (1 + 4 - 1)``.

    Step 0: ``2 (2 + .5 - 2) + .25`` times that.
    """
    advantage, target = four_steps(done=1, terminated=terminated)
    assert target == pytest.approx([2 + 1 + 0.25 * second, 1 + second, -0.6875, 1.25])
    assert advantage == pytest.approx([2 * (2 + 0.5 * (1 + second) - 2), second, -3.375, 1.25])


def test_of_the_present_policy_it_is_the_return_of_generalised_advantages() -> None:
    torch.manual_seed(0)
    value, last, reward = torch.randn(3, 7, 1), torch.randn(3, 1, 1), torch.randn(3, 7, 1)
    done, same = torch.zeros(3, 7, 1, dtype=torch.bool), torch.zeros(3, 7, 1)
    told = value, torch.cat((value[:, 1:], last), 1), reward, done, done
    for decay in (1.0, 0.9):
        advantage, target = vtrace(0.9, decay, 1.0, 1.0, same, *told)
        wanted_advantage, wanted = estimate(0.9, decay, *told)
        torch.testing.assert_close(target, wanted)
        if decay == 1.0:
            torch.testing.assert_close(advantage, wanted_advantage)


@pytest.mark.parametrize(
    ("gamma", "decay"), [(0.9, 0.0), (0.0, 0.9), (1e-3, 1e-6), (0.9, 0.5), (1.0, 1e-4), (1.0, 0.29), (1.0, 0.31)]
)
def test_advantages_of_long_sequences_are_those_of_short_ones(gamma: float, decay: float) -> None:
    """Also where the trace vanishes; checked against the recursion of Schulman et al. 2016."""
    torch.manual_seed(0)
    value, following, reward = (torch.randn(3, 130, 1, dtype=torch.float64) for _ in range(3))
    done = torch.rand(3, 130, 1) < 0.1
    terminated = done & (torch.rand(3, 130, 1) < 0.5)  # others are cut off
    found, returns = estimate(gamma, decay, value, following, reward, done, terminated)
    running, wanted = torch.zeros(3, 1, dtype=torch.float64), torch.zeros_like(value)
    for t in reversed(range(130)):
        error = reward[:, t] + gamma * ~terminated[:, t] * following[:, t] - value[:, t]
        running = error + gamma * decay * ~done[:, t] * running
        wanted[:, t] = running
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(returns, wanted + value, rtol=1e-5, atol=1e-6)
