"""DDPG (Lillicrap et al. 2016): a deterministic actor that ascends the gradient of its critic.

``agent=ddpg`` is our recipe, ``agent=ddpg_published`` that of MarineNav's DDPG, whose recorded updates the tests
reproduce; on the same batch the losses equal those of TorchRL's ``DDPGLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from rlstack.config.options import Gain, LearningRate, NoiseScale, NonNegative, Positive, Probability, Whole
from rlstack.losses.ddpg import DDPGLoss

from .off_policy import ActorCritic, CriticsConfig


@dataclass
class DDPGConfig(CriticsConfig):
    """The options of DDPG."""

    # networks
    layer_norm: bool = False  # in actor and critics
    output_scale: Gain = 1.0  # shrinks the actor's first actions towards zero
    raw_penalty: NonNegative = 0.0
    #   weight of the squared actor output before squashing: a saturated actor stops learning

    # replay and cadence
    random_frames: Whole = 1000

    # optimisation
    critic_loss: Literal["mse", "smooth_l1"] = "mse"  # mse | smooth_l1
    lr_actor: LearningRate = 1.0e-3
    lr_critic: LearningRate = 1.0e-3
    max_grad_norm: Positive | None = None  # null: gradients are not clipped

    # exploration
    epsilon: Probability = 0.0  # probability of a uniform random action
    noise: NoiseScale = 0.1  # std of Gaussian noise on actions in [-1, 1]


class DDPG(ActorCritic):
    """Deep deterministic policy gradient."""

    Config: ClassVar[type] = DDPGConfig
    CRITICS: tuple[str, ...] = ("critic",)

    def build(self) -> None:
        self.actor = self.add_network("actor", self.deterministic_actor(self.config.layer_norm))
        self.critics = [self.add_network(name, self.continuous_critic()) for name in self.CRITICS]
        self.loss = self.make_loss()
        self.follow_and_optimize()

    def make_loss(self) -> DDPGLoss:
        """Returns a loss over the agent's networks."""
        c = self.config
        joint = c.critic_norm == "batch"
        return DDPGLoss(self.actor, self.critics, c.gamma, c.critic_loss, c.raw_penalty, joint)

    # -- acting --------------------------------------------------------------------------------------------------

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.actor(self.normalized(observation))

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Adds Gaussian noise to the greedy action; with probability ``epsilon``, acts uniformly at random."""
        action = self.exploit(observation)
        if not self.unused("noise"):
            action = (action + self.scheduled_value("noise") * torch.randn_like(action)).clamp(-1, 1)
        return self.mixed_with_random(action, observation)
