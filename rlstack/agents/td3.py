"""TD3 (Fujimoto et al. 2018): DDPG with two critics, smoothed target actions and a delayed actor.

On the same batch the losses equal those of TorchRL's ``TD3Loss``.
"""

from __future__ import annotations

from tensordict import TensorDictBase
from torch import Tensor

from rlstack.config.agents import TD3Config
from rlstack.losses import TD3Loss

from .ddpg import DDPG


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
        )

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """One step of both critics; the actor's, and that of the targets, comes with every ``actor_every``-th."""
        critic_loss, critic_norm, info = self.critic_optimizer.minimize(self.loss.critic_loss, batch)
        self.reprioritize(batch, info)
        metrics: dict[str, Tensor | float] = {
            "loss/critic": critic_loss,
            "grad/critic": critic_norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
        }
        if self.updates % self.config.actor_every == 0:
            loss, norm, _ = self.actor_optimizer.minimize(self.loss.actor_loss, batch)
            metrics |= {"loss/actor": loss, "grad/actor": norm}
        return metrics

    def _update_targets(self, frames: int) -> None:
        if (self.updates - 1) % self.config.actor_every == 0:
            super()._update_targets(frames)
