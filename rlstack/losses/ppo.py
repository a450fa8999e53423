"""The loss of PPO with a clipped objective (Schulman et al. 2017), on the base of all losses with advantages.

Advantages and returns come with the data: from :func:`rlstack.losses.estimate`, or from TorchRL's ``GAE``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase, TensorDictParams
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from .advantage import normalized
from .base import Loss, Metrics, misshapen, required


class PolicyGradientLoss(Loss):
    """The common part of A2C and PPO: a policy objective, the value function's squared error and an entropy bonus."""

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        """``sample_log_prob [...]`` is the acting policy's; ``value`` is the value function's prediction at that time.

        ``value``, ``advantage`` and ``value_target`` are ``[...]`` or ``[..., 1]``.
        """

        sample_log_prob: NestedKey = "action_log_prob"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"

    RESULTS = ["loss_objective", "loss_critic", "loss_entropy", "policy", "value", "entropy"]
    default_keys = _AcceptedKeys
    actor_params: TensorDictParams
    critic_params: TensorDictParams

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        value_coefficient: float = 0.5,
        entropy_coefficient: float | Tensor = 0.0,
        normalize_advantage: bool = False,
        evaluate: Callable[[TensorDictBase], tuple[Any, Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self.add_network("actor", actor)
        self.add_network("critic", critic)
        self.value_coefficient, self.entropy_coefficient = value_coefficient, entropy_coefficient
        self.normalize_advantage, self._evaluate = normalize_advantage, evaluate

    @property
    def out_keys(self) -> list[NestedKey]:
        """The losses and metrics of a batch; ``loss_entropy`` is among them unless its coefficient is zero."""
        return [key for key in super().out_keys if key != "loss_entropy" or self._bonus]

    @out_keys.setter
    def out_keys(self, keys: list[NestedKey]) -> None:
        TensorDictModuleBase.out_keys.fset(self, keys)

    @property
    def _bonus(self) -> bool:
        return isinstance(self.entropy_coefficient, Tensor) or self.entropy_coefficient != 0

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        keys = self.tensor_keys
        return [*self.observed, keys.action, keys.advantage, keys.value_target]

    def evaluate(self, tensordict: TensorDictBase) -> tuple[Any, Tensor]:
        """Returns the policy's distribution in a state, and the state's value ``[...]``."""
        if self._evaluate is not None:
            return self._evaluate(tensordict)
        keys = self.tensor_keys
        value = _flat("the values", self.output(self.critic, tensordict, "state_value"), tensordict)
        if isinstance(self.actor, TensorDictModuleBase):
            return self.actor.get_dist(tensordict.select(*self.actor.in_keys, strict=False)), value
        mask = tensordict.get(keys.action_mask, None)
        return self.actor(required(tensordict, keys.observation), *(() if mask is None else (mask,))), value

    def entry(self, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
        """Returns an entry ``[...]`` or ``[..., 1]`` as ``[...]``.

        Raises:
            ValueError: it has further dimensions, such as one of agents.
        """
        return _flat(f"the entries {key!r}", required(tensordict, key), tensordict)

    def log_prob(self, tensordict: TensorDictBase, distribution: Any) -> Tensor:
        """Returns the log probability ``[...]`` of the actions.

        Raises:
            ValueError: it has another shape; broadcasting would weigh each entry with the advantages of all.
        """
        log_prob: Tensor = distribution.log_prob(required(tensordict, self.tensor_keys.action))
        if log_prob.shape != tensordict.batch_size:
            told = f"log probabilities have the shape {[*log_prob.shape]}, the batch {[*tensordict.batch_size]}"
            hint = "store a choice without a last dimension, and wrap a distribution of vectors in Independent(., 1)"
            raise ValueError(f"{told}: {hint}")
        return log_prob

    def advantage(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the advantages ``[...]``, normalised if ``normalize_advantage`` is set."""
        advantage = self.entry(tensordict, self.tensor_keys.advantage)
        return normalized(advantage) if self.normalize_advantage else advantage

    policy_learns = True
    """False minimises the value function's loss alone: the policy gets no gradient and stays as it is."""

    def objective(self, tensordict: TensorDictBase, distribution: Any, report: bool) -> tuple[Tensor, Metrics]:
        """Returns the policy's objective, a scalar to minimise, and its metrics."""
        raise NotImplementedError

    def value_loss(self, tensordict: TensorDictBase, value: Tensor) -> Tensor:
        """Returns the mean squared error of values ``[...]``."""
        return mse_loss(value, self.entry(tensordict, self.tensor_keys.value_target))

    def terms(self, tensordict: TensorDictBase, report: bool = True) -> tuple[Metrics, Metrics]:
        """Returns the losses by name, to be summed, and their metrics, of which there are fewer without ``report``."""
        distribution, values = self.evaluate(tensordict)
        objective, metrics = self.objective(tensordict, distribution, report)
        value = self.value_loss(tensordict, values)
        losses = {"loss_critic": self.value_coefficient * value, "loss_objective": objective}
        entropy = entropy_of(distribution).mean() if self._bonus else None
        if entropy is not None:
            losses["loss_entropy"] = -self.entropy_coefficient * entropy
        metrics |= {"policy": objective.detach(), "value": value.detach()}
        if report:
            with torch.no_grad():
                metrics["entropy"] = entropy_of(distribution).mean() if entropy is None else entropy.detach()
        return losses, metrics

    def total_loss(self, tensordict: TensorDictBase, report: bool = True) -> tuple[Tensor, Metrics]:
        """Returns the sum of all losses, and their metrics."""
        losses, metrics = self.terms(tensordict, report)
        critic, objective, *bonus = losses.values()
        if not self.policy_learns:
            return critic, metrics
        return (critic + objective + bonus[0] if bonus else critic + objective), metrics


class PPOLoss(PolicyGradientLoss):
    """``-min(r A, clip(r) A)`` with ``r = pi(a | s) / pi_old(a | s)``, the value function's error, an entropy bonus.

    Args:
        actor: observation (and action mask, if there is one) -> a distribution with ``log_prob`` and ``entropy``, or a
            ``ProbabilisticActor``.
        critic: observation -> value ``[..., 1]``, or a ``ValueOperator``.
        clip: largest distance of the probability ratio from one; can be changed later.
        clip_value: largest distance of predicted values from the old ones that lowers the loss; None for no limit.
        value_coefficient, entropy_coefficient, normalize_advantage, evaluate: see :class:`A2CLoss`.

    ``forward`` returns what :class:`A2CLoss` returns, and ``kl``, the estimate ``E[r - 1 - log r]`` (Schulman 2020),
    and ``clipped``, the share of ratios beyond the clip.
    """

    RESULTS = [*PolicyGradientLoss.RESULTS, "kl", "clipped"]

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        clip: float | Tensor = 0.2,
        clip_value: float | None = None,
        value_coefficient: float = 0.5,
        entropy_coefficient: float | Tensor = 0.0,
        normalize_advantage: bool = False,
        evaluate: Callable[[TensorDictBase], tuple[Any, Tensor]] | None = None,
    ) -> None:
        super().__init__(actor, critic, value_coefficient, entropy_coefficient, normalize_advantage, evaluate)
        self.clip: Any = clip
        self.clip_value = clip_value

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        keys = self.tensor_keys
        return [*super()._required_keys(), keys.sample_log_prob, *([] if self.clip_value is None else [keys.value])]

    def objective(self, tensordict: TensorDictBase, distribution: Any, report: bool) -> tuple[Tensor, Metrics]:
        keys, advantage, clip = self.tensor_keys, self.advantage(tensordict), self.clip
        log_ratio = self.log_prob(tensordict, distribution) - self.entry(tensordict, keys.sample_log_prob)
        ratio = log_ratio.exp()
        # For a ratio > 0, clip(r) A is A + clip |A| wherever it is the smaller one: no gradient has to pass through it.
        surrogate = torch.minimum(ratio * advantage, advantage + clip * advantage.abs()).mean()
        if not report:
            return -surrogate, {}
        with torch.no_grad():
            kl, clipped = (ratio - 1 - log_ratio).mean(), ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
        return -surrogate, {"kl": kl, "clipped": clipped}

    def value_loss(self, tensordict: TensorDictBase, value: Tensor) -> Tensor:
        """Returns the mean squared error of values ``[...]``, clipped by ``clip_value`` around the old ones if set."""
        if self.clip_value is None:
            return super().value_loss(tensordict, value)
        target = self.entry(tensordict, self.tensor_keys.value_target)
        old = self.entry(tensordict, self.tensor_keys.value)
        near = old + (value - old).clamp(-self.clip_value, self.clip_value)
        return torch.maximum((value - target).square(), (near - target).square()).mean()


def _flat(what: str, entry: Tensor, tensordict: TensorDictBase) -> Tensor:
    if entry.numel() != tensordict.numel():
        raise misshapen(what, entry, tensordict)
    return entry.reshape(tensordict.batch_size)


def entropy_of(distribution: Any) -> Tensor:
    """Returns the entropy of a distribution ``[...]``; without a formula, estimates it by one sample with gradients."""
    try:
        entropy: Tensor = distribution.entropy()
    except NotImplementedError:
        entropy = -distribution.log_prob(distribution.rsample())
    return entropy
