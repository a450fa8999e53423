"""AC-IQN: a deterministic actor taught by an implicit quantile critic (arXiv 2412.09466)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.objectives.common import LossModule

from rlstack.networks.draws import drawn, own, whole

from .quantile import quantile_huber_loss


class ACIQNLoss(LossModule):
    """Critic and actor loss of AC-IQN, with target networks for both.

    Reads a flat batch ``[B]``: ``observation``, ``action``, and under ``next`` ``observation``, ``reward [B, 1]``,
    ``terminated [B, 1]``; optional ``gamma [B, 1]``, the discount of each entry's (n-step) bootstrap.

    critic: y_j = r + gamma (1 - terminated) Zbar_tau'_j(s', mubar(s')), quantile Huber loss of Z_tau_i(s, a) to y_j;
    actor: -mean Z_tau(s, mu(s)).

    Args:
        actor: observation -> action ``[B, D]``.
        critic: (observation, action, tau ``[B, n]``) -> quantiles ``[B, n]``.
        gamma: discount where the batch does not bring its own.
        num_quantiles: n, levels drawn for the prediction, the target and the actor.
        kappa: Huber threshold.
        shared_levels: one set of levels for the whole batch, stratified over (0, 1), instead of one set per entry.
        target_noise: std of the Gaussian noise on the target action (Fujimoto et al. 2018), clipped at two of them; 0
            for none.
        raw_penalty: weight of the actor's mean squared output before squashing, which keeps it from saturating; needs
            an actor with ``raw`` and ``squashed`` (``networks.actors``).
    """

    @dataclass
    class _AcceptedKeys:
        observation: NestedKey = "observation"
        action: NestedKey = "action"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"
        gamma: NestedKey = "gamma"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys

    actor_network: nn.Module
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    critic_network: nn.Module
    critic_network_params: TensorDictParams
    target_critic_network_params: TensorDictParams

    out_keys = ("loss_critic", "loss_actor")

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        gamma: float = 0.99,
        num_quantiles: int = 8,
        kappa: float = 1.0,
        shared_levels: bool = False,
        target_noise: float = 0.0,
        raw_penalty: float = 0.0,
    ) -> None:
        super().__init__()
        self.convert_to_functional(actor, "actor_network", create_target_params=True)
        self.convert_to_functional(critic, "critic_network", create_target_params=True)
        self.gamma, self.num_quantiles, self.kappa = gamma, num_quantiles, kappa
        self.shared_levels, self.target_noise, self.raw_penalty = shared_levels, target_noise, raw_penalty

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:
        pass

    def act(self, observation: Tensor | TensorDictBase, target: bool = False) -> Tensor:
        """Action ``[B, D]`` of the actor or of its target."""
        params = self.target_actor_network_params if target else self.actor_network_params
        with params.to_module(self.actor_network, preserve_module_state=False):
            return self.actor_network(observation)

    def quantiles(
        self, observation: Tensor | TensorDictBase, action: Tensor, tau: Tensor, target: bool = False
    ) -> Tensor:
        """``Z_tau(s, a) [B, n]`` of the critic or of its target."""
        params = self.target_critic_network_params if target else self.critic_network_params
        with params.to_module(self.critic_network, preserve_module_state=False):
            return self.critic_network(observation, action, tau)

    def draw_levels(self, like: Tensor) -> Tensor:
        """Quantile levels ``[B, n]``, or ``[1, n]`` when shared."""
        n = self.num_quantiles
        if not self.shared_levels:
            return own(torch.rand(whole((len(like), n)), dtype=like.dtype, device=like.device))
        offset = torch.rand(1, n, dtype=like.dtype, device=like.device)
        return (torch.arange(n, dtype=like.dtype, device=like.device) + offset) / n

    @torch.no_grad()
    def target(self, tensordict: TensorDictBase, tau: Tensor) -> Tensor:
        """Samples ``[B, n]`` of the target return distribution."""
        following = tensordict.get("next")
        observation = following.get(self.tensor_keys.observation)
        action = self.act(observation, target=True)
        if self.target_noise:
            noise = (drawn(torch.randn_like, action) * self.target_noise).clamp(
                -2 * self.target_noise, 2 * self.target_noise
            )
            action = (action + noise).clamp(-1, 1)
        gamma = tensordict.get(self.tensor_keys.gamma, None)
        reward = following.get(self.tensor_keys.reward)
        alive = (~following.get(self.tensor_keys.terminated)).to(reward.dtype)  # an action may be in low precision
        discount = alive * (self.gamma if gamma is None else gamma)
        return reward + discount * self.quantiles(observation, action, tau, True)

    def critic_loss(
        self, tensordict: TensorDictBase, tau: Tensor | None = None, tau_target: Tensor | None = None
    ) -> tuple[Tensor, TensorDict]:
        """Scalar loss and metrics; levels are drawn (target first) unless given."""
        action = tensordict.get(self.tensor_keys.action)
        tau_target = self.draw_levels(action) if tau_target is None else tau_target
        target = self.target(tensordict, tau_target)
        tau = self.draw_levels(action) if tau is None else tau
        prediction = self.quantiles(tensordict.get(self.tensor_keys.observation), action, tau)
        loss = quantile_huber_loss(prediction, target, tau, self.kappa).mean()
        return loss, TensorDict({"value": prediction.detach().mean(), "target": target.mean()})

    def actor_loss(self, tensordict: TensorDictBase, tau: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        """Scalar loss and metrics (the share of actions beyond +-0.95); gradients also reach the critic, clear them
        before its next step."""
        observation = tensordict.get(self.tensor_keys.observation)
        penalty: Tensor | float = 0.0
        if self.raw_penalty:
            with self.actor_network_params.to_module(self.actor_network, preserve_module_state=False):
                actor: Any = self.actor_network
                raw = actor.raw(observation)
                action = actor.squashed(raw)
            penalty = self.raw_penalty * raw.square().mean()
        else:
            action = self.act(observation)
        tau = self.draw_levels(tensordict.get(self.tensor_keys.action)) if tau is None else tau
        value = self.quantiles(observation, action, tau).mean()
        saturation = (action.detach().abs() > 0.95).to(action.dtype).mean()
        return penalty - value, TensorDict({"saturation": saturation})

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Both losses on one batch; training steps the critic before it asks for :meth:`actor_loss`."""
        critic, _ = self.critic_loss(tensordict)
        actor, _ = self.actor_loss(tensordict)
        return TensorDict({"loss_critic": critic, "loss_actor": actor})
