"""PPO with a clipped objective (Schulman et al. 2017) and generalised advantages (Schulman et al. 2016).

On the same batch the loss equals that of TorchRL's ``ClipPPOLoss``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.agents import PPOConfig
from rlstack.losses import PPOLoss

from .compilation import CannotCompile, Compiler
from .on_policy import OnPolicy
from .optimizer import Info

_METRICS = {
    "loss/total": "total",
    "loss/policy": "policy",
    "loss/value": "value",
    "grad/all": "norm",
    "policy/entropy": "entropy",
    "policy/kl": "kl",
    "policy/clipped": "clipped",
}


class PPO(OnPolicy):
    """Proximal policy optimisation."""

    Config = PPOConfig

    def make_loss(self, **options: Any) -> PPOLoss:
        return PPOLoss(
            self.actor, self.critic, clip=self.scheduled["clip"], clip_value=self.config.clip_value, **options
        )

    def compile(self, compiler: Compiler) -> None:
        if self.config.value_first:
            raise CannotCompile("agent.value_first trains some parameters for longer than others")
        super().compile(compiler)

    def expected_updates(self) -> float:
        return self.total_frames * self.config.epochs / self.config.minibatch_size

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Epochs of minibatches in random order.

        It stops after an epoch once the policy has moved by more than ``target_kl``, estimated as
        ``E[ratio - 1 - log ratio]`` (Schulman 2020) on what ``report_over`` says: the epoch's last minibatch, or the
        mean over all minibatches so far. The metrics are of the same.
        """
        c = self.config
        rows = self.least(len(batch))
        if rows * self.row_size < 2:
            return {}
        if c.normalize_advantage and not self.normalizes_steps:
            batch = self.with_normalized_advantages(batch)
        split = _with_remainder if c.short_minibatch else _nearly_equal
        sizes, seen = split(rows, max(c.minibatch_size // self.row_size, 1)), []
        metrics: dict[str, Tensor | float] = {}
        for _ in range(c.epochs):
            minibatches = batch[torch.randperm(len(batch), device=self.device)[:rows]].split(sizes)
            for minibatch in minibatches:
                report = c.report_over == "all" or minibatch is minibatches[-1]
                loss, norm, info = self.step(minibatch, report)
                if report:
                    seen.append({"total": loss, "norm": norm, **info})
            found = seen[-1] if c.report_over == "last" else _means(seen)
            metrics = {name: found[entry] for name, entry in _METRICS.items()}
            if c.target_kl is not None and found["kl"] > c.target_kl:
                break
        return metrics

    @property
    def normalizes_steps(self) -> bool:
        return super().normalizes_steps and self.config.normalize_over == "minibatch"

    def objective(self, batch: TensorDictBase, report: bool = True) -> tuple[Tensor, Info]:
        """The loss; with ``value_first`` at first that of the value function alone."""
        if self.config.value_first and self.frames < self.config.value_first:
            told: tuple[Tensor, Info] = self.loss.critic_loss(batch)
            return told
        return super().objective(batch, report)


def _nearly_equal(count: int, size: int) -> list[int]:
    """``count`` in parts of about ``size``, none of them a small remainder whose gradient is mostly noise.

    Every part has two entries, if there are: an advantage by itself cannot be normalised.
    """
    parts = max(1, min(round(count / size), count // 2))
    least, more = divmod(count, parts)
    return [least + 1] * more + [least] * (parts - more)


def _with_remainder(count: int, size: int) -> list[int]:
    """``count`` in parts of exactly ``size``, the last one with what is left."""
    whole, rest = divmod(count, size)
    return [size] * whole + [rest] * (rest > 0)


def _means(seen: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([entry[name] for entry in seen]).mean() for name in seen[0]}
