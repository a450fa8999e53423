"""PPO and A2C: on the same batch, losses and gradients equal those of TorchRL's loss modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torchrl.objectives import A2CLoss, ClipPPOLoss

from tests.agents.torchrl_sides import agent_and_batch, module, probabilistic, same


class Gaussian(nn.Module):
    """Computes mean and standard deviation from our actor and its parameter."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.actor(observation)
        return mean, self.actor.log_std.exp().expand_as(mean)


def _independent_normal(loc: Tensor, scale: Tensor) -> Distribution:
    return Independent(Normal(loc, scale), 1)


def on_policy(name: str, discrete: bool, **options: Any) -> tuple[Any, TensorDict, Any, Any]:
    """Returns an agent that has moved since the batch, the batch, and actor and critic as TorchRL modules."""
    agent, sequences = agent_and_batch(name, discrete, entropy_coefficient=0.015625, **options)
    batch = agent.rollout(sequences[None])
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    keys, distribution = (["logits"], Categorical) if discrete else (["loc", "scale"], _independent_normal)
    actor = probabilistic(agent.actor if discrete else Gaussian(agent.actor), keys, distribution)
    return agent, batch, actor, module(agent.critic, ["observation"], ["state_value"])


def as_theirs(batch: TensorDict) -> TensorDict:
    entries = {
        "observation": batch["observation"],
        "action": batch["action"],
        "action_log_prob": batch["log_prob"],
        "advantage": batch["advantage"][:, None],
        "value_target": batch["return"][:, None],
        "state_value": batch["value"][:, None],
    }
    return TensorDict(entries, batch.batch_size)


def total(losses: TensorDict) -> Tensor:
    return losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]


@pytest.mark.parametrize("discrete", [False, True])
@pytest.mark.parametrize("clip_value", [None, 0.0625])
def test_ppo(discrete: bool, clip_value: float | None) -> None:
    agent, batch, actor, critic = on_policy("ppo", discrete, clip=0.125, clip_value=clip_value)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.125,
        loss_critic_type="l2",
        critic_coeff=0.5,
        entropy_coeff=0.015625,
        normalize_advantage=False,
        clip_value=clip_value,
    )
    ours, info = agent.objective(batch)
    assert 0 < info["clipped"] < 1
    same(ours, total(loss(as_theirs(batch))), agent.parameters(), 1e-8)


@pytest.mark.parametrize("discrete", [False, True])
def test_a2c(discrete: bool) -> None:
    agent, batch, actor, critic = on_policy("a2c", discrete)
    loss = A2CLoss(actor, critic, loss_critic_type="l2", critic_coeff=0.5, entropy_coeff=0.015625)
    same(agent.objective(batch)[0], total(loss(as_theirs(batch))), agent.parameters())


def test_advantages_are_normalised_as_theirs() -> None:
    agent, batch, actor, critic = on_policy("ppo", True, normalize_advantage=True)
    loss = ClipPPOLoss(
        actor, critic, loss_critic_type="l2", critic_coeff=0.5, entropy_coeff=0.015625, normalize_advantage=True
    )
    same(agent.objective(agent.for_step(batch))[0], total(loss(as_theirs(batch))), agent.parameters(), 1e-7)
