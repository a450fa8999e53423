"""The losses of DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from rlstack.networks.values import Critics

from .base import Loss, Metrics, frozen, required

_ERRORS = {"mse": mse_loss, "smooth_l1": smooth_l1_loss}


class DDPGLoss(Loss):
    """Error of ``Q(s, a)`` to ``r + gamma Qbar(s', mubar(s'))``, and ``-Q(s, mu(s))`` for the actor.

    With two critics, the target is the smaller of their values, and the actor maximises the first.

    Args:
        actor: observation -> action ``[..., D]``, or a ``TensorDictModule``.
        critic: (observation, action) -> value ``[..., 1]``, or a ``ValueOperator``; or a sequence of one or two.
        gamma: see :class:`Loss`.
        error: error function of the critics.
        raw_penalty: weight of the actor's mean squared output before squashing, which keeps it from saturating; needs
            an actor with ``raw`` and ``squashed``, such as ``rlstack.networks.actors.DeterministicActor``.
        joint: use no targets, see :meth:`Loss.joint_values`; for critics that normalise over the batch.

    ``forward`` returns ``loss_critic``, ``loss_actor``, and the means ``value`` and ``target``.
    """

    RESULTS = ["loss_critic", "loss_actor", "value", "target"]

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module | Sequence[nn.Module],
        gamma: float = 0.99,
        error: Literal["mse", "smooth_l1"] = "mse",
        raw_penalty: float = 0.0,
        joint: bool = False,
    ) -> None:
        super().__init__(gamma)
        self.add_network("actor", actor, target=not joint)
        critics = [critic] if isinstance(critic, nn.Module) else list(critic)
        if len(critics) not in (1, 2):
            raise ValueError(f"one critic or two are needed, got {len(critics)}")
        self.add_network("critics", Critics(critics), target=not joint)
        self.joint = joint
        if joint:
            self.critics.eval()  # only a joint pass normalises by the batch
        self.error, self.raw_penalty = _ERRORS[error], raw_penalty

    def target_action(self, following: TensorDictBase) -> Tensor:
        """Returns the next action ``[..., D]``, whose value is in the target."""
        actor = self.actor if self.joint else self.target_actor
        return self.output(actor, following, self.tensor_keys.action)

    @torch.no_grad()
    def target_value(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the target of ``Q(s, a)``, ``[..., 1]``."""
        following = required(tensordict, "next")
        action = self.target_action(following)
        values = self.values_of_all(self.target_critics, following, action)
        return self.bootstrapped(tensordict, _least(values))

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the sum of the critics' losses, and its metrics."""
        if self.joint:
            with torch.no_grad():
                action = self.target_action(required(tensordict, "next"))
            values, following = self.joint_values(self.critics, tensordict, action)
            target = self.bootstrapped(tensordict, _least(following))
        else:
            target, action = self.target_value(tensordict), required(tensordict, self.tensor_keys.action)
            values = self.values_of_all(self.critics, tensordict, action)
        errors, metrics = self.regression(self.error, values, target, tensordict)
        return torch.stack(errors).sum(), metrics

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critic, and no metrics."""
        if self.joint:
            self.critics.eval()
        action, penalty = self.act_and_penalty(self.actor, tensordict, self.raw_penalty)
        return penalty - self.value(self.critics[0], tensordict, action).mean(), {}

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        """Returns both losses and metrics; the gradient of the actor's loss does not reach the critics."""
        critic, metrics = self.critic_loss(tensordict)
        with frozen(self.critics):
            actor, acted = self.actor_loss(tensordict)
        return {"loss_critic": critic, "loss_actor": actor}, metrics | acted


def _least(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.minimum(*values)


class TD3Loss(DDPGLoss):
    """The loss of DDPG with two critics and noise on the target action.

    TD3 updates its actor and its targets with every second step of the critics.

    Args:
        actor: observation -> action ``[..., D]`` in [-1, 1], or a ``TensorDictModule``.
        critics: two of (observation, action) -> value ``[..., 1]``.
        target_noise: std of the Gaussian noise on the target action.
        target_noise_clip: largest absolute value of that noise.
        options: see :class:`DDPGLoss`.
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: Sequence[nn.Module],
        *,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(actor, critics, **options)
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip

    def target_action(self, following: TensorDictBase) -> Tensor:
        """Returns the target actor's action with clipped Gaussian noise (smoothing)."""
        action = super().target_action(following)
        noise = torch.randn_like(action) * self.target_noise
        return (action + noise.clamp(-self.target_noise_clip, self.target_noise_clip)).clamp(-1, 1)
