"""The loss of AC-IQN: a deterministic actor trained by an implicit quantile critic (arXiv 2412.09466)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from .base import Loss, Metrics, frozen, required
from .quantile import quantile_huber_loss


class ACIQNLoss(Loss):
    """Quantile Huber loss of ``Z_tau(s, a)`` to ``r + gamma Zbar_tau'(s', mubar(s'))``, and ``-mean Z_tau(s, mu(s))``.

    Args:
        actor: observation -> action ``[..., D]`` in [-1, 1], or a ``TensorDictModule``.
        critic: (observation, action, tau ``[..., n]``) -> quantiles ``[..., n]``; or a ``TensorDictModule`` that reads
            the levels under ``tau`` and writes the quantiles under ``state_action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: n, the number of levels drawn for each of prediction, target and actor.
        kappa: Huber threshold.
        shared_levels: one set of levels for the whole batch, stratified over (0, 1), instead of one set per entry.
        target_noise: std of the Gaussian noise on the target action (Fujimoto et al. 2018), clipped at two std; 0 for
            none.
        raw_penalty: weight of the actor's mean squared output before squashing, which keeps it from saturating; needs
            an actor with ``raw`` and ``squashed``, such as ``rlstack.networks.actors.DeterministicActor``.

    ``forward`` returns ``loss_critic``, ``loss_actor``, the means ``value`` and ``target``, and ``saturation``, the
    share of actions beyond +-0.95.
    """

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        tau: NestedKey = "tau"

    default_keys = _AcceptedKeys
    actor_network_params: TensorDictParams
    target_actor_network_params: TensorDictParams
    critic_network_params: TensorDictParams
    target_critic_network_params: TensorDictParams
    RESULTS = ["loss_critic", "loss_actor", "value", "target", "saturation"]

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
        super().__init__(gamma)
        self.add_network("actor_network", actor, target=True)
        self.add_network("critic_network", critic, target=True)
        self.num_quantiles, self.kappa = num_quantiles, kappa
        self.shared_levels, self.target_noise, self.raw_penalty = shared_levels, target_noise, raw_penalty

    def act(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Returns the actor's action ``[..., D]`` in a state."""
        actor = self.target_actor_network if target else self.actor_network
        action: Tensor = self.output(actor, tensordict, self.tensor_keys.action)
        return action

    def quantiles(self, tensordict: TensorDictBase, action: Tensor, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, a) [..., n]``."""
        critic = self.target_critic_network if target else self.critic_network
        out: Tensor = self.output(critic, tensordict, self.tensor_keys.state_action_value, action=action, tau=tau)
        return out

    def draw_levels(self, like: Tensor) -> Tensor:
        """Draws quantile levels ``[..., n]`` for entries ``[..., k]``; ``[1, n]`` if shared."""
        n = self.num_quantiles
        if not self.shared_levels:
            return torch.rand((*like.shape[:-1], n), dtype=like.dtype, device=like.device)
        offset = torch.rand(1, n, dtype=like.dtype, device=like.device)
        return (torch.arange(n, dtype=like.dtype, device=like.device) + offset) / n

    @torch.no_grad()
    def target_quantiles(self, tensordict: TensorDictBase, tau: Tensor) -> Tensor:
        """Returns samples of the target distribution, ``[..., n]``."""
        following = required(tensordict, "next")
        action = self.act(following, target=True)
        if self.target_noise:
            noise = torch.randn_like(action) * self.target_noise
            action = (action + noise.clamp(-2 * self.target_noise, 2 * self.target_noise)).clamp(-1, 1)
        return self.bootstrapped(tensordict, self.quantiles(following, action, tau, target=True))

    def critic_loss(
        self, tensordict: TensorDictBase, tau: Tensor | None = None, tau_target: Tensor | None = None
    ) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics; levels not given are drawn, the target's first."""
        action = required(tensordict, self.tensor_keys.action)
        target = self.target_quantiles(tensordict, self.draw_levels(action) if tau_target is None else tau_target)
        tau = self.draw_levels(action) if tau is None else tau
        prediction = self.quantiles(tensordict, action, tau)
        errors = quantile_huber_loss(prediction, target, tau, self.kappa)
        return self.distributional(errors, prediction, target, tensordict)

    def actor_loss(self, tensordict: TensorDictBase, tau: Tensor | None = None) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critic, and its metrics."""
        penalty: Tensor | float = 0.0
        if self.raw_penalty and not isinstance(self.actor_network, TensorDictModuleBase):
            actor: Any = self.actor_network
            raw = actor.raw(required(tensordict, self.tensor_keys.observation))
            action, penalty = actor.squashed(raw), self.raw_penalty * raw.square().mean()
        else:
            action = self.act(tensordict)
        tau = self.draw_levels(required(tensordict, self.tensor_keys.action)) if tau is None else tau
        value = self.quantiles(tensordict, action, tau).mean()
        return penalty - value, {"saturation": (action.detach().abs() > 0.95).to(action.dtype).mean()}

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        """Returns both losses and metrics; the gradient of the actor's loss does not reach the critic."""
        critic, metrics = self.critic_loss(tensordict)
        with frozen(self.critic_network):
            actor, acted = self.actor_loss(tensordict)
        return {"loss_critic": critic, "loss_actor": actor}, metrics | acted
