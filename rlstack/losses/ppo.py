"""Advantages, the losses that learn from them, A2C (Mnih et al. 2016) and PPO (Schulman et al. 2017), and RND's.

Advantages and returns come with the data: from :func:`rlstack.losses.estimate`, or from TorchRL's ``GAE``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchrl.objectives.value.functional import (
    generalized_advantage_estimate,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)

from .base import Loss, Metrics, misshapen, required, weighted_mean

LONG = 64
"""Sequences up to this length are faster with a plain loop than with TorchRL's vectorised estimate."""
_LEAST = 0.3
"""With a smaller trace ``gamma * lambda`` the vectorised estimate leaves out terms, and without one it fails."""


def estimate(
    gamma: float, gae_lambda: float, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns generalised advantages (Schulman et al. 2016) and returns; all tensors are ``[B, T, 1]``."""
    long = value.shape[1] > LONG and gamma * gae_lambda > _LEAST
    function = vec_generalized_advantage_estimate if long else generalized_advantage_estimate
    return function(gamma, gae_lambda, value, next_value, reward, done=done, terminated=terminated)


def vtrace(
    gamma: float,
    trace_lambda: float,
    rho_clip: float,
    c_clip: float,
    log_ratio: Tensor,
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    *,
    weighted: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns advantages and value targets of data that an older policy gathered; all tensors are ``[B, T, 1]``.

    V-trace (Espeholt et al. 2018, eq. 1 and section 4.2) with ``rho = min(rho_clip, pi / mu)`` and
    ``c = lambda min(c_clip, pi / mu)`` (remark 2 there). The advantage is ``rho (r + gamma v' - V)``. With ``pi = mu``
    and ``lambda = 1`` both are those of :func:`estimate`.

    Args:
        gamma: discount.
        trace_lambda: decay of the traces.
        rho_clip, c_clip: bounds of the ratio as the weight of an error and as the weight of later errors.
        log_ratio: ``log pi(a | s) - log mu(a | s)``, with the present policy pi and the acting policy mu.
        value, next_value: values of each state and of the true next state.
        reward, done, terminated: those of each step; steps after ``done`` do not count.
        weighted: False leaves ``rho`` out of the advantage, for a loss that contains the ratio itself, as PPO's does.
    """
    # TorchRL's function has no lambda, so it goes into the bound of c, which may differ from step to step.
    bound = trace_lambda * log_ratio.exp().clamp_max(c_clip)
    still = torch.zeros_like(log_ratio)
    ends = {"done": done, "terminated": terminated, "rho_thresh": still.new_full((), rho_clip), "c_thresh": bound}
    advantage, target = vtrace_advantage_estimate(gamma, log_ratio, still, value, next_value, reward, **ends)
    if not weighted:
        later = torch.where(done, next_value, torch.cat((target[:, 1:], next_value[:, -1:]), 1))
        advantage = torch.where(terminated, reward, reward + gamma * later) - value
    return advantage, target


def normalized(advantage: Tensor, counts: Tensor | None = None) -> Tensor:
    """Returns advantages with zero mean and unit standard deviation over the batch; a single one is unchanged.

    Args:
        counts: which of them count, of the same shape (bool); None: all.
    """
    if advantage.numel() < 2:
        return advantage
    if counts is None:
        std, mean = torch.std_mean(advantage)
        return (advantage - mean) / (std + 1e-8)
    number = counts.sum()
    mean = advantage.where(counts, 0.0).sum() / number.clamp(min=1)
    distance = advantage - mean
    variance = distance.where(counts, 0.0).square().sum() / (number - 1).clamp(min=1)
    return torch.where(number > 1, distance / (variance.sqrt() + 1e-8), advantage)


class PolicyGradientLoss(Loss):
    """The common part of A2C and PPO: a policy objective, the value function's squared error and an entropy bonus."""

    @dataclass
    class _AcceptedKeys(Loss._AcceptedKeys):
        """``sample_log_prob [...]`` is the acting policy's; ``value`` is the value function's prediction at that time.

        ``value``, ``advantage`` and ``value_target`` are ``[...]`` or ``[..., 1]``. With ``priority_weight``, all means
        are weighted by it.
        """

        sample_log_prob: NestedKey = "action_log_prob"
        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"

    RESULTS = ["loss_objective", "loss_critic", "loss_entropy", "policy", "value", "entropy"]
    SCHEDULED: ClassVar[tuple[str, ...]] = ("entropy_coefficient",)
    """Attributes that may follow a schedule: numbers, or tensors (0-d)."""
    default_keys = _AcceptedKeys

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
            shapes = f"log probabilities have the shape {[*log_prob.shape]}, the batch {[*tensordict.batch_size]}"
            hint = "store a choice without a last dimension, and wrap a distribution of vectors in Independent(., 1)"
            raise ValueError(f"{shapes}: {hint}")
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
        target = self.entry(tensordict, self.tensor_keys.value_target)
        if self.weight(tensordict) is None:
            return mse_loss(value, target)
        return self.mean((value - target).square(), tensordict)

    def terms(self, tensordict: TensorDictBase, report: bool = True) -> tuple[Metrics, Metrics]:
        """Returns the losses by name, to be summed, and their metrics, of which there are fewer without ``report``."""
        distribution, values = self.evaluate(tensordict)
        objective, metrics = self.objective(tensordict, distribution, report)
        value = self.value_loss(tensordict, values)
        losses = {"loss_critic": self.value_coefficient * value, "loss_objective": objective}
        entropy = self.mean(entropy_of(distribution), tensordict) if self._bonus else None
        if entropy is not None:
            losses["loss_entropy"] = -self.entropy_coefficient * entropy
        metrics |= {"policy": objective.detach(), "value": value.detach()}
        if report:
            with torch.no_grad():
                known = entropy if entropy is not None else self.mean(entropy_of(distribution), tensordict)
                metrics["entropy"] = known.detach()
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
        options: ``value_coefficient``, ``entropy_coefficient``, ``normalize_advantage`` and ``evaluate``, see
            :class:`A2CLoss`.

    ``forward`` returns what :class:`A2CLoss` returns, and ``kl``, the estimate ``E[r - 1 - log r]`` (Schulman 2020),
    and ``clipped``, the share of ratios beyond the clip.
    """

    RESULTS = [*PolicyGradientLoss.RESULTS, "kl", "clipped"]
    SCHEDULED = ("clip", *PolicyGradientLoss.SCHEDULED)

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        clip: float | Tensor = 0.2,
        clip_value: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(actor, critic, **options)
        self.clip: Any = clip
        self.clip_value = clip_value

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        keys = self.tensor_keys
        return [*super()._required_keys(), keys.sample_log_prob, *([] if self.clip_value is None else [keys.value])]

    def objective(self, tensordict: TensorDictBase, distribution: Any, report: bool) -> tuple[Tensor, Metrics]:
        keys, advantage, clip = self.tensor_keys, self.advantage(tensordict), self.clip
        log_ratio = self.log_prob(tensordict, distribution) - self.entry(tensordict, keys.sample_log_prob)
        ratio, weight = log_ratio.exp(), self.weight(tensordict)
        # For a ratio > 0, clip(r) A is A + clip |A| wherever it is the smaller one: no gradient has to pass through it.
        surrogate = weighted_mean(torch.minimum(ratio * advantage, advantage + clip * advantage.abs()), weight)
        if not report:
            return -surrogate, {}
        with torch.no_grad():
            kl = weighted_mean(ratio - 1 - log_ratio, weight)
            clipped = weighted_mean(((ratio - 1).abs() > clip).to(ratio.dtype), weight)
        return -surrogate, {"kl": kl, "clipped": clipped}

    def value_loss(self, tensordict: TensorDictBase, value: Tensor) -> Tensor:
        """Returns the mean squared error of values ``[...]``, clipped by ``clip_value`` around the old ones if set."""
        if self.clip_value is None:
            return super().value_loss(tensordict, value)
        target = self.entry(tensordict, self.tensor_keys.value_target)
        old = self.entry(tensordict, self.tensor_keys.value)
        near = old + (value - old).clamp(-self.clip_value, self.clip_value)
        return self.mean(torch.maximum((value - target).square(), (near - target).square()), tensordict)


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


class A2CLoss(PolicyGradientLoss):
    """``-A log pi(a | s)``, squared error of the value function, and an entropy bonus.

    Args:
        actor: observation (and action mask, if there is one) -> a distribution with ``log_prob`` and ``entropy``, or a
            ``ProbabilisticActor``.
        critic: observation -> value ``[..., 1]``, or a ``ValueOperator``.
        value_coefficient: weight of the value function's error.
        entropy_coefficient: weight of the entropy bonus.
        normalize_advantage: normalise advantages over each batch.
        evaluate: replaces the calls of both networks, for networks that share layers: batch -> distribution, values
            ``[...]``.

    ``forward`` returns ``loss_objective``, ``loss_critic``, ``loss_entropy`` unless its coefficient is 0, and the
    metrics ``policy``, ``value`` and ``entropy``.
    """

    def objective(self, tensordict: TensorDictBase, distribution: Any, report: bool) -> tuple[Tensor, Metrics]:
        return -self.mean(self.advantage(tensordict) * self.log_prob(tensordict, distribution), tensordict), {}


class RNDLoss(Loss):
    """Random network distillation (Burda et al. 2018, arXiv 1810.12894), for an exploration bonus.

    It is the mean squared distance between predicted features of an observation and those of a fixed random network.
    The distance is small where the predictor has often been trained, so it measures how new an observation is.

    Args:
        predictor: observation -> features ``[..., F]``, or a ``TensorDictModule`` that writes them under ``features``.
        target: a network of the same kind with random weights, which stay fixed.

    ``forward`` returns ``loss_predictor``.
    """

    RESULTS = ["loss_predictor"]

    def __init__(self, predictor: nn.Module, target: nn.Module) -> None:
        super().__init__()
        self.add_network("predictor", predictor)
        self.add_network("target_features", target.requires_grad_(False))
        self._has_update_associated["features"] = True  # for TorchRL, a target that nothing moves

    def _required_keys(self) -> list[NestedKey]:
        """The required entries."""
        return [self.tensor_keys.observation]

    def distance(self, tensordict: TensorDictBase) -> Tensor:
        """Returns the distance ``[...]`` of each entry, its novelty."""
        with torch.no_grad():
            wanted = self.output(self.target_features, tensordict, "features")
        return (self.output(self.predictor, tensordict, "features") - wanted).square().mean(-1)

    def predictor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the loss, a scalar, and no metrics."""
        return self.mean(self.distance(tensordict), tensordict), {}

    def terms(self, tensordict: TensorDictBase) -> tuple[Metrics, Metrics]:
        return {"loss_predictor": self.predictor_loss(tensordict)[0]}, {}
