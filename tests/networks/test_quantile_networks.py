"""Implicit quantile networks: the embedding's formula, both critics, level shapes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rlstack.networks.encoders import FlatEncoder
from rlstack.networks.quantile import COSINES, CosineEmbedding, LateQuantileCritic, QuantileCritic


@pytest.mark.parametrize("relu", [True, False])
def test_embedding_formula(relu: bool) -> None:
    embedding, tau = CosineEmbedding(3, relu).double(), torch.rand(2, 4, dtype=torch.float64)
    ours = embedding(tau)
    assert ours.shape == (2, 4, 3)
    weight, bias = embedding.linear.weight.detach(), embedding.linear.bias.detach()
    for b in range(2):
        for j in range(4):
            level = float(tau[b, j])
            for k in range(3):
                terms = (float(weight[k, i]) * math.cos(math.pi * i * level) for i in range(COSINES))
                value = float(bias[k]) + sum(terms)
                assert ours[b, j, k].item() == pytest.approx(max(value, 0.0) if relu else value, abs=1e-12)


def critics() -> list[nn.Module]:
    torch.manual_seed(0)
    return [
        QuantileCritic(FlatEncoder(5), 2, 7).double(),
        LateQuantileCritic(FlatEncoder(5), 2, (7, 8)).double(),
        LateQuantileCritic(FlatEncoder(5), 2, (7, 8), layer_norm=False).double(),
    ]


def inputs(*batch: int, levels: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    sizes = ((*batch, 5), (*batch, 2), (*batch, levels))
    state, action, tau = (torch.rand(size, dtype=torch.float64) for size in sizes)
    return state, action, tau


@pytest.mark.parametrize("critic", critics())
def test_every_quantile_depends_on_its_own_level_alone(critic: nn.Module) -> None:
    state, action, tau = inputs(6)
    values = critic(state, action, tau)
    assert values.shape == (6, 4)
    for j in range(4):
        torch.testing.assert_close(values[:, j : j + 1], critic(state, action, tau[:, j : j + 1]))
    changed = tau.clone()
    changed[:, 1] = 1 - tau[:, 1]
    moved = (critic(state, action, changed) - values).abs() > 1e-12
    assert moved[:, 1].any() and not moved[:, [0, 2, 3]].any()


@pytest.mark.parametrize("critic", critics())
def test_shared_levels_equal_the_same_levels_repeated(critic: nn.Module) -> None:
    for batch in ((6,), (1,)):
        state, action, _ = inputs(*batch)
        tau = torch.rand(1, 4, dtype=torch.float64)
        torch.testing.assert_close(critic(state, action, tau), critic(state, action, tau.expand(*batch, 4)))


@pytest.mark.parametrize("critic", critics())
def test_batch_dimensions_do_not_matter(critic: nn.Module) -> None:
    state, action, tau = inputs(3, 4)
    values = critic(state, action, tau)
    assert values.shape == (3, 4, 4)
    folded = critic(state.view(12, 5), action.view(12, 2), tau.view(12, 4))
    torch.testing.assert_close(values, folded.view(3, 4, 4))


@pytest.mark.parametrize("critic", critics())
def test_gradients_reach_the_action_and_every_parameter(critic: nn.Module) -> None:
    state, action, tau = inputs(16)
    action.requires_grad_()
    critic(state, action, tau).sum().backward()
    assert (action.grad != 0).any()
    assert all((parameter.grad != 0).any() for parameter in critic.parameters())


def test_late_critic_formula() -> None:
    critic = critics()[1]
    state, action, tau = inputs(3)
    hidden = critic.trunk(torch.cat((critic.encoder(state), action), -1))
    for b in range(3):
        for j in range(4):
            expected = critic.output(hidden[b] * critic.embedding(tau[b, j : j + 1])[0])
            torch.testing.assert_close(critic(state, action, tau)[b, j], expected[0])
