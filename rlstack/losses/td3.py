"""The loss of TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from .ddpg import DDPGLoss


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
