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
from rlstack.losses.quantile import ACIQNLoss, TQCLoss, quantile_huber_loss
from rlstack.losses.sac import CategoricalSACLoss
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.encoders import FlatEncoder
from rlstack.networks.quantile import LateQuantileCritic
from tests.losses.test_by_hand import Always, Gaussian, transition


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


@pytest.mark.parametrize("shape", [(5, 1, 3), (5, 5, 3), (4, 3)])
def test_a_target_of_other_entries_is_refused(shape: tuple[int, ...]) -> None:
    prediction, tau = torch.zeros(5, 2), torch.tensor([0.25, 0.75])
    with pytest.raises(ValueError, match="all but the last must agree"):
        quantile_huber_loss(prediction, torch.zeros(shape), tau)


# -- TQC's truncation, and the worst part of QR-DQN's quantiles, computed by hand ------------------------------------


def made(drop: int) -> TQCLoss:
    """At zero, the policy has mean 0 and log std 0."""
    critics = [Always(0.0, 8.0, 4.0), Always(6.0, 2.0, 9.0)]
    loss = TQCLoss(Gaussian().float(), critics, drop=drop, gamma=0.5, action_size=1)
    loss.draw = lambda like: torch.zeros_like(like)  # type: ignore[method-assign]
    return loss


@pytest.mark.parametrize(("drop", "left"), [(0, [0, 2, 4, 6, 8, 9]), (1, [0, 2, 4, 6]), (2, [0, 2])])
def test_the_largest_of_all_critics_together_are_dropped(drop: int, left: list[float]) -> None:
    """Of one critic 0, 4, 8, of the other 2, 6, 9; the log density of an action at the mean is -log(2 pi) / 2."""
    wanted = [1 + 0.5 * (value + math.log(2 * math.pi) / 2) for value in left]
    torch.testing.assert_close(made(drop).target_value(transition(torch.zeros(1, 1))), torch.tensor([wanted]))


def test_the_actor_climbs_the_mean_of_all() -> None:
    assert made(1).actor_loss(transition(torch.zeros(1, 1)))[0].item() == pytest.approx(
        -math.log(2 * math.pi) / 2 - 29 / 6
    )


@pytest.mark.parametrize(
    ("level", "expected"), [(1.0, 2.5), (0.5, 1.5), (0.25, 1.0), (0.1, 1.0), (0.375, (1 + 0.5 * 2) / 1.5)]
)
def test_the_worst_part_of_returns(level: float, expected: float) -> None:
    """Quantiles 1 to 4 in any order: the worst three eighths are the first and half of the second."""
    quantiles = torch.tensor([[3.0, 1.0, 4.0, 2.0]]).unsqueeze(-1)
    assert worst_mean(quantiles, torch.tensor([level])).item() == pytest.approx(expected)


# -- AC-IQN's levels and noise -----------------------------------------------------------------------------------------


def test_low_precision_reaches_neither_discounts_nor_levels() -> None:
    actor, critic = DeterministicActor(FlatEncoder(3), 1, (4,)), LateQuantileCritic(FlatEncoder(3), 1, (4,))
    loss, seen = ACIQNLoss(actor, critic, gamma=0.995), []
    loss.quantiles = lambda tensordict, action, tau, target=False: seen.append(tau) or torch.full_like(tau, 1000.0)
    following = {"observation": torch.rand(7, 3), "reward": torch.ones(7, 1), "terminated": torch.zeros(7, 1).bool()}
    batch = TensorDict({"observation": torch.rand(7, 3), "action": torch.rand(7, 1), "next": following}, [7])
    with torch.autocast("cpu", torch.bfloat16):
        assert actor(batch["observation"]).dtype == torch.bfloat16
        torch.testing.assert_close(loss.target_quantiles(batch, torch.rand(7, 8)), torch.full((7, 8), 996.0))
        loss.actor_loss(batch)
    assert seen[-1].dtype == torch.float32


def test_levels_are_uniform_and_shared_ones_stratified() -> None:
    actor, critic = DeterministicActor(FlatEncoder(3), 1, (4,)), LateQuantileCritic(FlatEncoder(3), 1, (4,))
    drawn = ACIQNLoss(actor, critic).draw_levels(torch.empty(5000, 1)).sort(0).values
    torch.testing.assert_close(drawn, torch.linspace(0, 1, 5000).unsqueeze(-1).expand(-1, 8), rtol=0, atol=0.05)
    loss = ACIQNLoss(actor, critic, num_quantiles=10, shared_levels=True)
    for _ in range(20):
        levels = loss.draw_levels(torch.empty(7, 1))
        assert levels.shape == (1, 10)
        assert torch.equal((levels[0] * 10).floor(), torch.arange(10.0))
    entries = {"observation": torch.rand(7, 3), "action": torch.rand(7, 1)}
    following = {"observation": torch.rand(7, 3), "reward": torch.rand(7, 1), "terminated": torch.rand(7, 1) > 0.5}
    batch = TensorDict({**entries, "next": following}, batch_size=[7])
    found = []
    for drawn in (levels, levels.expand(7, 10)):
        loss.draw_levels = lambda like, drawn=drawn: drawn
        found.append([loss.critic_loss(batch)[0], loss.actor_loss(batch)[0]])
    torch.testing.assert_close(*found)


def test_target_noise_is_clipped_and_of_the_given_size() -> None:
    class Identity(nn.Module):
        def forward(self, observation: Tensor) -> Tensor:
            return observation * self.one

    class ActionAsValue(Identity):
        def forward(self, observation: Tensor, action: Tensor, tau: Tensor) -> Tensor:
            return (self.one * action).expand(-1, tau.shape[-1])

    def parametrised(module: nn.Module) -> nn.Module:
        module.one = nn.Parameter(torch.ones(()))
        return module

    loss = ACIQNLoss(parametrised(Identity()), parametrised(ActionAsValue()), gamma=1.0, target_noise=0.1)
    count = 20_000
    where = torch.zeros(count, 1)
    where[-1000:] = 0.95
    following = {"observation": where, "reward": torch.zeros(count, 1), "terminated": torch.zeros(count, 1).bool()}
    batch = TensorDict({"action": where, "observation": where, "next": following}, batch_size=[count])
    smoothed = loss.target_quantiles(batch, torch.rand(count, 2))
    inner = smoothed[:-1000, 0]
    assert inner.abs().max() == pytest.approx(0.2) and abs(float(inner.mean())) < 0.005
    assert float(inner.std()) == pytest.approx(0.0938, abs=0.003)  # of a normal clipped at two deviations: 0.938
    assert smoothed.max() == 1.0
