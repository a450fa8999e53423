"""The loss of PPO with a clipped objective (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor, nn

from .a2c import PolicyGradientLoss, entropy_of
from .base import Metrics


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

    def critic_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, Metrics]:
        """Returns the value function's loss alone: the policy gets no gradient and stays as it is."""
        distribution, values = self.evaluate(tensordict)
        value = self.value_loss(tensordict, values)
        still = torch.zeros_like(value.detach())
        metrics = {"policy": still, "value": value.detach(), "kl": still, "clipped": still}
        return self.value_coefficient * value, metrics | {"entropy": entropy_of(distribution).mean().detach()}
