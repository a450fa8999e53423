"""PPO with a clipped objective (Schulman et al. 2017) and generalised advantages (Schulman et al. 2016).

On the same batch the loss equals that of TorchRL's ``ClipPPOLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import mse_loss

from rlstack.config import Interval

from .base import Count, Positive, Scheduled
from .on_policy import OnPolicy, OnPolicyConfig
from .optimizer import Info


@dataclass
class PPOConfig(OnPolicyConfig):
    """See ``conf/agent/ppo.yaml`` for what each number does."""

    epochs: Count
    minibatch_size: Annotated[int, Interval(low=2)]
    clip: Scheduled
    clip_value: Positive | None
    target_kl: Positive | None


class PPO(OnPolicy):
    """Proximal policy optimisation."""

    Config = PPOConfig
    SCHEDULED = {
        "lr": Interval(low=0),
        "clip": Interval(low=0, open_low=True),
        "entropy_coefficient": Interval(low=0),
    }

    _reporting = True
    """Of most minibatches nobody reads the report, which costs as much as a small network's forward pass."""

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Epochs of minibatches in random order.

        It stops early once the policy has moved by ``target_kl``, as estimated on an epoch's last minibatch.
        """
        metrics: dict[str, Tensor | float] = {}
        if len(batch) < 2:
            return metrics
        sizes = _nearly_equal(len(batch), self.config.minibatch_size)
        for _ in range(self.config.epochs):
            minibatches = batch[torch.randperm(len(batch), device=self.device)].split(sizes)
            for minibatch in minibatches:
                self._reporting = minibatch is minibatches[-1]
                loss, norm, info = self.step(minibatch)
            metrics = {
                "loss/total": loss,
                "loss/policy": info["policy"],
                "loss/value": info["value"],
                "grad/all": norm,
                "policy/entropy": info["entropy"],
                "policy/kl": info["kl"],
                "policy/clipped": info["clipped"],
            }
            if self.config.target_kl is not None and info["kl"] > self.config.target_kl:
                break
        return metrics

    def loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """-min(r A, clip(r) A) + value loss - entropy bonus."""
        c, clip = self.config, self.scheduled["clip"]
        observation, advantage = batch.get("observation"), batch.get("advantage")
        distribution = self.distribution(observation, batch.get("action_mask", None))
        log_ratio = distribution.log_prob(batch.get("action")) - batch.get("log_prob")
        ratio = log_ratio.exp()
        policy = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        value = self._value_loss(batch)
        loss = policy + c.value_coefficient * value
        if self.scheduled["entropy_coefficient"]:
            loss = loss - self.scheduled["entropy_coefficient"] * distribution.entropy().mean()
        if not self._reporting:
            return loss, {}
        with torch.no_grad():
            info = {
                "policy": policy.detach(),
                "value": value.detach(),
                "entropy": distribution.entropy().mean(),
                "kl": (ratio - 1 - log_ratio).mean(),
                "clipped": ((ratio - 1).abs() > clip).to(ratio.dtype).mean(),
            }
        return loss, info

    def _value_loss(self, batch: TensorDictBase) -> Tensor:
        """Mean squared error, of values kept within ``clip_value`` of the old ones where that is set."""
        value, target = self.critic(batch.get("observation")).squeeze(-1), batch.get("return")
        if self.config.clip_value is None:
            return mse_loss(value, target)
        old = batch.get("value")
        near = old + (value - old).clamp(-self.config.clip_value, self.config.clip_value)
        return torch.maximum((value - target).square(), (near - target).square()).mean()


def _nearly_equal(count: int, size: int) -> list[int]:
    """``count`` (>= 2) in parts of about ``size``, none of them a small remainder whose gradient is mostly noise.

    Every part has two entries at least: an advantage by itself cannot be normalised.
    """
    parts = min(max(1, round(count / size)), count // 2)
    least, more = divmod(count, parts)
    return [least + 1] * more + [least] * (parts - more)
