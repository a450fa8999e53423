"""TD3 (Fujimoto et al. 2018): DDPG with two critics, smoothed target actions and a delayed actor.

On the same batch the losses equal those of TorchRL's ``TD3Loss``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlstack.config.options import Count, Noise, NonNegative
from rlstack.losses.ddpg import TD3Loss

from .ddpg import DDPG, DDPGConfig


@dataclass
class TD3Config(DDPGConfig):
    """The options of TD3."""

    # targets
    target_noise: Noise = 0.2  # std of the noise on target actions ...
    target_noise_clip: NonNegative = 0.5  # ... which is clipped to this

    # optimisation
    actor_every: Count = 2  # critic updates per update of actor and targets


class TD3(DDPG):
    """Twin delayed deep deterministic policy gradient."""

    Config = TD3Config
    CRITICS = ("critic_1", "critic_2")

    def make_loss(self) -> TD3Loss:
        c = self.config
        return TD3Loss(
            self.actor,
            self.critics,
            gamma=c.gamma,
            error=c.critic_loss,
            raw_penalty=c.raw_penalty,
            target_noise=c.target_noise,
            target_noise_clip=c.target_noise_clip,
            joint=c.critic_norm == "batch",
        )

    def _targets_due(self, frames: int) -> bool:
        return self.updates % self.config.actor_every == 0 and super()._targets_due(frames)
