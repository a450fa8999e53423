"""Losses on quantiles of return distributions: QR-DQN, IQN (Dabney et al. 2018a, b), TQC (Kuznetsov et al. 2020), and
AC-IQN, a deterministic actor trained by an implicit quantile critic (arXiv 2412.09466).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from rlstack.networks.distributions import legal
from rlstack.networks.quantile import midpoints

from .base import Loss, Metrics, frozen, required
from .sac import SACLoss


def quantile_huber_loss(prediction: Tensor, target: Tensor, tau: Tensor, kappa: float = 1.0) -> Tensor:
    """Computes the quantile Huber loss of each batch entry (Dabney et al. 2018b, eq. 3).

    Args:
        prediction: quantiles ``[..., n]`` at levels ``tau`` (``[..., n]``, or of fewer dimensions if shared).
        target: samples or quantiles of the target distribution ``[..., m]``.
        kappa: Huber threshold.

    Returns ``[...]``: the sum over predicted quantiles of the mean over targets.

    Raises:
        ValueError: the entries of target and prediction differ in shape, apart from leading dimensions that only the
            prediction has.
    """
    entries = target.shape[:-1]
    if prediction.shape[max(prediction.dim() - target.dim(), 0) : -1] != entries:
        given = f"the quantiles {tuple(prediction.shape)}"
        raise ValueError(f"the target has the shape {tuple(target.shape)}, {given}; all but the last must agree")
    error = target.unsqueeze(-2) - prediction.unsqueeze(-1)  # [..., n, m]
    size = error.abs()
    huber = torch.where(size <= kappa, 0.5 * error * error, kappa * (size - 0.5 * kappa))
    weight = (tau.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber).mean(-1).sum(-1) / kappa


class QuantileLoss(Loss):
    """The base class of QR-DQN and IQN: quantile Huber loss of ``Z_tau(s, a)`` to ``r + gamma Zbar_tau'(s', a')``."""

    def __init__(
        self,
        network: nn.Module,
        gamma: float = 0.99,
        num_quantiles: int = 8,
        kappa: float = 1.0,
        double: bool = False,
        target_action: Literal["mean", "per_quantile"] = "mean",
    ) -> None:
        super().__init__(gamma)
        self.add_network("network", network, target=True)
        self.num_quantiles, self.kappa = num_quantiles, kappa
        self.double_targets, self.target_action = double, target_action

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, .)`` of all actions, ``[..., quantiles, actions]``."""
        raise NotImplementedError

    def draw_levels(self, like: Tensor) -> Tensor:
        """Returns levels ``[..., quantiles]`` for entries ``[..., 1]``."""
        raise NotImplementedError

    @torch.no_grad()
    def target_quantiles(self, tensordict: TensorDictBase, tau: Tensor) -> Tensor:
        """Returns samples of the target distribution, ``[..., quantiles]``."""
        following = required(tensordict, "next")
        quantiles = self.quantiles(following, tau, target=True)
        if self.target_action == "per_quantile":
            mask = following.get(self.tensor_keys.action_mask, None)
            if mask is not None:
                quantiles = quantiles.masked_fill(~legal(mask).unsqueeze(-2), -torch.inf)
            return self.bootstrapped(tensordict, quantiles.amax(-1))
        chooser = self.quantiles(following, tau) if self.double_targets else quantiles
        return self.bootstrapped(tensordict, _of_action(quantiles, self.greedy(chooser.mean(-2), following)))

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics; the target's levels are drawn first."""
        reward = required(required(tensordict, "next"), self.tensor_keys.reward)
        target = self.target_quantiles(tensordict, self.draw_levels(reward))
        tau = self.draw_levels(reward)
        quantiles = self.quantiles(tensordict, tau)
        value = _of_action(quantiles, self.chosen(tensordict, quantiles.shape[-1]))
        errors = quantile_huber_loss(value, target, tau, self.kappa)
        return self.distributional(errors, value, target, tensordict)


def _of_action(quantiles: Tensor, action: Tensor) -> Tensor:
    """Picks from ``[..., n, actions]`` the quantiles of the actions ``[..., 1]``: ``[..., n]``."""
    index = action.unsqueeze(-2).expand(*quantiles.shape[:-1], 1)
    return quantiles.gather(-1, index).squeeze(-1)


class QRDQNLoss(QuantileLoss):
    """The loss of QR-DQN (Dabney et al. 2018a): quantiles at fixed, evenly spaced levels.

    Args:
        network: observation -> quantiles ``[..., quantiles, actions]``, or a ``TensorDictModule`` that writes them
            under ``action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: the number of quantiles that the network returns.
        kappa: Huber threshold.
        double: the next action is the best according to the network, not its target.
        target_action: the next action has the best ``mean``; or ``per_quantile``, each quantile takes its own best.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z(s, .)`` of all actions, ``[..., quantiles, actions]``, at the network's fixed levels."""
        network = self.target_network if target else self.network
        out = self.output(network, tensordict, self.tensor_keys.action_value)
        if out.shape[-2] != self.num_quantiles:
            raise ValueError(f"num_quantiles is {self.num_quantiles}, the network returns {out.shape[-2]} per action")
        return out

    def draw_levels(self, like: Tensor) -> Tensor:
        """Returns the midpoints ``[n]`` of ``n`` equal parts of (0, 1)."""
        return midpoints(self.num_quantiles, like)


class IQNLoss(QuantileLoss):
    """The loss of IQN (Dabney et al. 2018b): quantiles at levels that are drawn for each entry.

    Args:
        network: (observation, tau ``[..., n]``) -> quantiles ``[..., n, actions]``; or a ``TensorDictModule`` that
            reads the levels under ``tau`` and writes the quantiles under ``action_value``.
        gamma: see :class:`Loss`.
        num_quantiles: the number of levels drawn for the prediction, and for the target.
        kappa: Huber threshold.
        double: the next action is the best according to the network, not its target.
        target_action: the next action has the best ``mean``; or ``per_quantile``, each quantile takes its own best.

    ``forward`` returns ``loss_critic``, and the means ``value`` and ``target``.
    """

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        tau: NestedKey = "tau"

    default_keys = _AcceptedKeys

    def quantiles(self, tensordict: TensorDictBase, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, .)`` of all actions, ``[..., n, actions]``."""
        network = self.target_network if target else self.network
        return self.output(network, tensordict, self.tensor_keys.action_value, tau=tau)

    def draw_levels(self, like: Tensor) -> Tensor:
        """Draws uniform levels ``[..., n]`` for entries ``[..., 1]``."""
        return torch.rand((*like.shape[:-1], self.num_quantiles), dtype=like.dtype, device=like.device)


class TQCLoss(SACLoss):
    """Quantile Huber losses of all critics to ``r + gamma (z' - alpha log pi(a' | s'))``.

    ``z'`` are the pooled quantiles of all target critics without the largest ones; leaving these out keeps values from
    being overestimated. The actor's loss is ``alpha log pi(a | s)`` minus the mean of all quantiles.

    Args:
        actor: see :class:`SACLoss`.
        critics: any number of (observation, action) -> quantiles ``[..., n]`` at the midpoints of n equal parts of
            (0, 1); or ``TensorDictModule``s that write them under ``state_action_value``.
        drop: number of quantiles left out per critic.
        kappa: Huber threshold.
        options: see :class:`SACLoss`; ``joint`` is not among them.

    ``forward`` returns ``loss_critic``, ``loss_actor``, ``loss_alpha``, ``entropy``, ``alpha``, and the means ``value``
    and ``target``.
    """

    TWO_CRITICS = JOINT = False
    RESULTS = ["loss_critic", "loss_actor", "loss_alpha", "entropy", "alpha", "value", "target"]

    def __init__(
        self, actor: nn.Module, critics: Sequence[nn.Module], *, drop: int = 2, kappa: float = 1.0, **options: Any
    ) -> None:
        super().__init__(actor, critics, **options)
        self.drop, self.kappa = drop, kappa

    def soft_value(self, following: TensorDictBase) -> Tensor:
        """Returns the quantiles of the next state's value that are kept, ``[..., k]``, in ascending order."""
        action, log_prob = self.action_and_log_prob(following, self.target_actor_acts)
        quantiles = torch.cat(self.values_of_all(self.target_critics, following, action), -1).sort(-1).values
        if (count := quantiles.shape[-1] - self.drop * len(self.critics)) < 1:
            raise ValueError(f"drop: {self.drop} quantiles left out per critic leave none of {quantiles.shape[-1]}")
        kept = quantiles[..., :count]
        return kept - self.temperature() * log_prob

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the sum over the critics of the mean over their quantiles, and its metrics."""
        target = self.target_value(tensordict)
        predicted = torch.stack(self.taken_values(tensordict))
        n = predicted.shape[-1]
        errors = quantile_huber_loss(predicted, target, midpoints(n, predicted), self.kappa).sum(0) / n
        return self.distributional(errors, predicted, target, tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critics, and the policy's ``entropy``."""
        action, log_prob = self.action_and_log_prob(tensordict)
        value = torch.stack(self.expected_values(tensordict, action)).mean()
        return (self.temperature().detach() * log_prob).mean() - value, {"entropy": -log_prob.detach().mean()}


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

    def quantiles(self, tensordict: TensorDictBase, action: Tensor, tau: Tensor, target: bool = False) -> Tensor:
        """Returns ``Z_tau(s, a) [..., n]``."""
        critic = self.target_critic_network if target else self.critic_network
        return self.output(critic, tensordict, self.tensor_keys.state_action_value, action=action, tau=tau)

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
        action = self.output(self.target_actor_network, following, self.tensor_keys.action)
        if self.target_noise:
            noise = torch.randn_like(action) * self.target_noise
            action = (action + noise.clamp(-2 * self.target_noise, 2 * self.target_noise)).clamp(-1, 1)
        return self.bootstrapped(tensordict, self.quantiles(following, action, tau, target=True))

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and its metrics; the target's levels are drawn first."""
        action = required(tensordict, self.tensor_keys.action)
        target = self.target_quantiles(tensordict, self.draw_levels(action))
        tau = self.draw_levels(action)
        prediction = self.quantiles(tensordict, action, tau)
        errors = quantile_huber_loss(prediction, target, tau, self.kappa)
        return self.distributional(errors, prediction, target, tensordict)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critic, and its metrics."""
        action, penalty = self.act_and_penalty(self.actor_network, tensordict, self.raw_penalty)
        tau = self.draw_levels(required(tensordict, self.tensor_keys.action))
        value = self.quantiles(tensordict, action, tau).mean()
        return penalty - value, {"saturation": (action.detach().abs() > 0.95).to(action.dtype).mean()}

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        """Returns both losses and metrics; the gradient of the actor's loss does not reach the critic."""
        critic, metrics = self.critic_loss(tensordict)
        with frozen(self.critic_network):
            actor, acted = self.actor_loss(tensordict)
        return {"loss_critic": critic, "loss_actor": actor}, metrics | acted
