"""The losses of SAC (Haarnoja et al. 2018, arXiv 1812.05905), also with categorical critics (Palenicek et al. 2025,
arXiv 2509.25174), and of discrete SAC (Christodoulou 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss, softplus

from rlstack.config.options import Squash
from rlstack.networks.actors import squashed
from rlstack.networks.distributions import legal, masked_logits
from rlstack.networks.values import Critics

from .base import Loss, Metrics, frozen, required
from .dqn import target_distribution

ENTROPY_SHARE = 0.89
"""The share of the entropy of uniform choices that discrete policies aim for unless ``target_entropy`` is given."""


class Temperature(nn.Module):
    """``alpha = exp(log_alpha)``.

    Args:
        alpha: initial value.
        dtype: dtype of the parameter.
    """

    def __init__(self, alpha: float, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._first = math.log(alpha)
        self.log_alpha = nn.Parameter(torch.tensor(self._first, dtype=dtype))

    def reset_parameters(self) -> None:
        """Returns to the initial value."""
        nn.init.constant_(self.log_alpha, self._first)

    def forward(self) -> Tensor:
        """Returns alpha, 0-d."""
        return self.log_alpha.exp()


class SACLoss(Loss):
    """Squared error of both critics to ``r + gamma (min Qbar(s', a') - alpha log pi(a' | s'))``, for bounded vectors.

    The actor's loss is ``alpha log pi(a | s) - min Q(s, a)``; that of the temperature raises alpha while the entropy is
    below its target.

    Args:
        actor: observation -> mean and log std ``[..., D]`` of a Gaussian that is squashed into (-1, 1), or a
            ``ProbabilisticActor`` whose distribution can be sampled with gradients.
        critics: two of (observation, action) -> value ``[..., 1]``, or ``ValueOperator``s.
        gamma: see :class:`Loss`.
        alpha: initial temperature.
        target_entropy: the entropy to which the temperature is tuned; None for ``-D``.
        action_size: D, needed if ``target_entropy`` is None.
        squash: squash of a plain actor's actions, see :func:`rlstack.networks.actors.squashed`.
        correction: how the log density accounts for the squash: by its ``exact`` slope, or always by the slope of
            ``tanh``, as in MarineNav's published agent.
        target_actor: the next action is that of a target of the actor.
        joint: use no targets, see :meth:`Loss.joint_values`; for critics that normalise over the batch.
        joint_targets: with ``joint``, use targets nevertheless, which see both states as one batch, too.

    ``forward`` returns ``loss_critic``, ``loss_actor``, ``loss_alpha``, the loss of each critic, ``entropy``,
    ``alpha``, and the means ``value`` and ``target``.
    """

    TWO_CRITICS = JOINT = True
    RESULTS = ["loss_critic", "loss_actor", "loss_alpha", "critic_1", "critic_2", "entropy", "alpha", "value", "target"]

    def __init__(
        self,
        actor: nn.Module,
        critics: Sequence[nn.Module],
        gamma: float = 0.99,
        alpha: float = 1.0,
        target_entropy: float | None = None,
        action_size: int | None = None,
        squash: Squash = "tanh",
        correction: Literal["exact", "tanh"] = "exact",
        target_actor: bool = False,
        joint: bool = False,
        joint_targets: bool = False,
    ) -> None:
        super().__init__(gamma)
        if self.TWO_CRITICS and len(critics) != 2:
            raise ValueError(f"two critics are needed, got {len(critics)}")
        if joint_targets and not joint:
            raise ValueError("joint_targets is for joint=True")
        if joint and not self.JOINT:
            raise ValueError(f"joint: {type(self).__name__} needs target critics; SACLoss can do without")
        if alpha <= 0:
            raise ValueError(f"alpha: {alpha:g} is not positive")
        self.add_network("actor", actor, target=target_actor)
        self.add_network("critics", Critics(critics), target=joint_targets or not joint)
        self.joint, self.joint_targets = joint, joint_targets
        if joint:
            self.critics.eval()  # only a joint pass normalises by the batch
        dtype = next((parameter.dtype for parameter in actor.parameters()), None)
        self.add_network("temperature", Temperature(alpha, dtype))
        self.squash: Squash = squash
        self.correction, self.target_actor_acts = correction, target_actor
        self.usual_target = target_entropy is None
        if target_entropy is None:
            if action_size is None:
                raise ValueError("give target_entropy, or action_size for the usual one")
            target_entropy = self.usual_entropy(action_size)
        self.target_entropy = target_entropy

    def usual_entropy(self, action_size: int) -> float:
        """Returns the target entropy where none is given."""
        return -float(action_size)

    # -- actions -------------------------------------------------------------------------------------------------

    def action_and_log_prob(self, tensordict: TensorDictBase, target: bool = False) -> tuple[Tensor, Tensor]:
        """Samples an action ``[..., D]`` in a state, and returns it with its log density ``[..., 1]``."""
        actor = self.target_actor if target else self.actor
        if isinstance(actor, TensorDictModuleBase):
            distribution = actor.get_dist(tensordict.select(*actor.in_keys, strict=False))
            action = distribution.rsample()
            return action, distribution.log_prob(action).reshape(*tensordict.batch_size, 1)
        dtype = self.temperature.log_alpha.dtype
        mean, log_std = (part.to(dtype) for part in actor(required(tensordict, self.tensor_keys.observation)))
        noise = self.draw(mean)
        raw = mean + log_std.exp() * noise
        action = squashed(raw, self.squash)
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        if self.correction == "tanh":
            log_slope = torch.log(1 - action.square() + 1e-6)
        elif self.squash == "tanh":
            log_slope = 2 * (math.log(2) - raw - softplus(-2 * raw))
        else:
            log_slope = math.log(2 / math.pi) - torch.log1p(raw.square())
        return action, (gaussian - log_slope).sum(-1, keepdim=True)

    def draw(self, like: Tensor) -> Tensor:
        """Draws standard normal numbers."""
        return torch.randn_like(like)

    def taken_values(self, tensordict: TensorDictBase) -> list[Tensor]:
        """Returns ``Q(s, a) [..., 1]`` of both critics for the action that was taken."""
        action = required(tensordict, self.tensor_keys.action)
        return self.values_of_all(self.critics, tensordict, action)

    def soft_value(self, following: TensorDictBase) -> Tensor:
        """Returns ``min Qbar(s', a') - alpha log pi(a' | s') [..., 1]``."""
        action, log_prob = self.action_and_log_prob(following, self.target_actor_acts)
        least = torch.minimum(*self.values_of_all(self.target_critics, following, action))
        return least - self.temperature() * log_prob

    # -- losses --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def target_value(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the target of ``Q(s, a)``, ``[..., 1]``."""
        return self.bootstrapped(tensordict, self.soft_value(required(tensordict, "next")))

    def predictions(self, tensordict: TensorDictBase) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Returns what both critics predict for ``(s, a)``, what their targets (or, without any, they themselves)
        predict for ``(s', a')``, and ``log pi(a' | s') [..., 1]``.
        """
        following = required(tensordict, "next")
        with torch.no_grad():
            action, log_prob = self.action_and_log_prob(following, self.target_actor_acts)
            if not self.joint:
                then = self.values_of_all(self.target_critics, following, action)
        if not self.joint:
            return self.taken_values(tensordict), then, log_prob
        now, then = self.joint_values(self.critics, tensordict, action)
        if self.joint_targets:
            with torch.no_grad():
                _, then = self.joint_values(self.target_critics, tensordict, action)
        return now, then, log_prob

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the sum of both critics' losses, and its metrics."""
        if self.joint:
            values, following, log_prob = self.predictions(tensordict)
            soft = torch.minimum(*following) - self.temperature().detach() * log_prob
            target = self.bootstrapped(tensordict, soft)
        else:
            target, values = self.target_value(tensordict), self.taken_values(tensordict)
        losses, metrics = self.regression(mse_loss, values, target, tensordict)
        metrics |= {"critic_1": losses[0].detach(), "critic_2": losses[1].detach()}
        return losses[0] + losses[1], metrics

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar whose gradients also reach the critics, and the policy's ``entropy``."""
        if self.joint:
            self.critics.eval()
        action, log_prob = self.action_and_log_prob(tensordict)
        least = torch.minimum(*self.expected_values(tensordict, action))
        loss = (self.temperature().detach() * log_prob - least).mean()
        return loss, {"entropy": -log_prob.detach().mean()}

    def expected_values(self, tensordict: TensorDictBase, action: Tensor) -> list[Tensor]:
        """Returns ``Q(s, a) [..., 1]`` of both critics."""
        return self.values_of_all(self.critics, tensordict, action)

    def alpha_loss(self, gap: Tensor) -> Tensor:
        """Returns ``log alpha`` times the gap by which the entropy is above its target."""
        return self.temperature.log_alpha * gap

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        """Returns all losses and metrics; the gradient of the actor's loss does not reach the critics."""
        critic, metrics = self.critic_loss(tensordict)
        with frozen(self.critics):
            actor, acted = self.actor_loss(tensordict)
        wanted = acted.pop("target_entropy", self.target_entropy)
        losses = {"loss_critic": critic, "loss_actor": actor, "loss_alpha": self.alpha_loss(acted["entropy"] - wanted)}
        return losses, metrics | acted | {"alpha": self.temperature().detach()}


class CategoricalSACLoss(SACLoss):
    """SAC with critics that predict the distribution of returns over fixed atoms, as in XQC (arXiv 2509.25174).

    The target is the distribution of ``r + gamma (z - alpha log pi(a' | s'))``, where ``z`` is distributed as the
    critic with the smaller mean predicts for ``(s', a')``. It is projected onto the atoms (Bellemare et al. 2017,
    algorithm 1), and each critic minimises its cross entropy. The actor's loss has the means of the distributions.

    Args:
        critics: two of (observation, action) -> logits ``[..., K]``.
        atoms: the returns ``[K]`` that the logits belong to, evenly spaced, K at least 2.
        options: see :class:`SACLoss`.

    ``forward`` returns what that of :class:`SACLoss` does, without the loss of each critic, and ``clipped``, the mean
    probability that targets give to the first and the last atom: it is large where the atoms span too small a range.
    """

    atoms: Tensor
    RESULTS = ["loss_critic", "loss_actor", "loss_alpha", "entropy", "alpha", "value", "target", "clipped"]

    def __init__(self, actor: nn.Module, critics: Sequence[nn.Module], atoms: Tensor, **options: Any) -> None:
        super().__init__(actor, critics, **options)
        self.register_buffer("atoms", atoms)

    def expected(self, logits: Tensor) -> Tensor:
        """Returns the mean returns ``[..., 1]`` of logits ``[..., K]``, in the precision of the atoms."""
        return (logits.softmax(-1, dtype=self.atoms.dtype) * self.atoms).sum(-1, keepdim=True)

    def expected_values(self, tensordict: TensorDictBase, action: Tensor) -> list[Tensor]:
        return [self.expected(logits) for logits in self.values_of_all(self.critics, tensordict, action)]

    @torch.no_grad()
    def target_distribution(self, tensordict: TensorDictBase, following: Sequence[Tensor], log_prob: Tensor) -> Tensor:
        """Returns the target probabilities ``[..., K]``.

        Args:
            following: logits ``[..., K]`` of both critics for ``(s', a')``.
            log_prob: ``log pi(a' | s') [..., 1]``.
        """
        first, second = (logits.softmax(-1, dtype=self.atoms.dtype) for logits in following)
        first_is_least = (first * self.atoms).sum(-1, keepdim=True) <= (second * self.atoms).sum(-1, keepdim=True)
        probabilities = torch.where(first_is_least, first, second)
        values = self.atoms - self.temperature() * log_prob
        return target_distribution(self, tensordict, probabilities, values, self.atoms)

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the sum of both critics' losses, and its metrics."""
        predicted, following, log_prob = self.predictions(tensordict)
        target = self.target_distribution(tensordict, following, log_prob)
        logits = torch.stack(tuple(predicted)).to(self.atoms.dtype)
        errors = -(target * logits.log_softmax(-1)).sum(-1).sum(0)
        with torch.no_grad():
            values, wanted = self.expected(logits[0]), (target * self.atoms).sum(-1)
            metrics = {"clipped": (target[..., 0] + target[..., -1]).mean()}
        loss, others = self.distributional(errors, values, wanted, tensordict)
        return loss, metrics | others


class DiscreteSACLoss(SACLoss):
    """The loss of SAC for one discrete choice, with expectations over all choices instead of samples.

    Args:
        actor: observation -> logits ``[..., n]``, or a ``TensorDictModule`` that writes them under ``logits``.
        critics: two of observation -> values ``[..., n]``, or ``TensorDictModule``s that write them under
            ``action_value``.
        action_size: n, needed if ``target_entropy`` is None; the target is then 89 % of the entropy of uniform legal
            choices.
        options: see :class:`SACLoss`; ``joint`` is not among them.
    """

    JOINT = False

    def usual_entropy(self, action_size: int) -> float:
        return ENTROPY_SHARE * math.log(action_size)

    def log_probabilities(self, tensordict: TensorDictBase, target: bool = False) -> Tensor:
        """Returns the log probabilities ``[..., n]`` of all choices in a state."""
        logits = self.output(self.target_actor if target else self.actor, tensordict, "logits")
        return masked_logits(logits, tensordict.get(self.tensor_keys.action_mask, None)).log_softmax(-1)

    def values(self, critic: nn.Module, tensordict: TensorDictBase) -> Tensor:
        """Returns ``Q(s, .) [..., n]``."""
        return self.output(critic, tensordict, self.tensor_keys.action_value)

    def taken_values(self, tensordict: TensorDictBase) -> list[Tensor]:
        values = [self.values(critic, tensordict) for critic in self.critics]
        chosen = self.chosen(tensordict, values[0].shape[-1])
        return [value.gather(-1, chosen) for value in values]

    def soft_value(self, following: TensorDictBase) -> Tensor:
        mask = following.get(self.tensor_keys.action_mask, None)
        if mask is not None:
            following = following.copy().set(self.tensor_keys.action_mask, legal(mask))
        log_prob = self.log_probabilities(following, self.target_actor_acts)
        least = torch.minimum(*(self.values(critic, following) for critic in self.target_critics))
        return (log_prob.exp() * (least - self.temperature() * log_prob)).sum(-1, keepdim=True)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and the policy's ``entropy``; with masks also the legal ``target_entropy``."""
        alpha, log_prob = self.temperature().detach(), self.log_probabilities(tensordict)
        with torch.no_grad():
            least = torch.minimum(*(self.values(critic, tensordict) for critic in self.critics))
        probabilities = log_prob.exp()
        loss = (probabilities * (alpha * log_prob - least)).sum(-1).mean()
        metrics = {"entropy": -(probabilities * log_prob).detach().sum(-1).mean()}
        mask = tensordict.get(self.tensor_keys.action_mask, None)
        if mask is not None and self.usual_target:
            # The entropy of few legal choices is small: no temperature could raise it to that of all choices.
            metrics["target_entropy"] = ENTROPY_SHARE * legal(mask).sum(-1).to(log_prob.dtype).log().mean()
        return loss, metrics
