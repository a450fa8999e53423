"""DDPG (Lillicrap et al. 2016): a deterministic actor that climbs its critic.

``agent=ddpg`` is our recipe, ``agent=ddpg_published`` that of MarineNav's DDPG, whose recorded updates the tests
repeat; on the same batch the losses equal those of TorchRL's ``DDPGLoss``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import mse_loss, smooth_l1_loss

from rlstack.config.agents import DDPGConfig
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.draws import drawn
from rlstack.networks.values import ActionValue

from .interface import Interface, require_continuous
from .off_policy import OffPolicy
from .optimizer import Info


class DDPG(OffPolicy):
    """Deep deterministic policy gradient."""

    Config: ClassVar[type] = DDPGConfig
    CRITICS: ClassVar[tuple[str, ...]] = ("critic",)

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, size = config, interface.action.shape[-1]
        actor = DeterministicActor(self.encoder(), size, c.hidden, c.squash, c.layer_norm, c.activation)
        with torch.no_grad():
            actor.output.weight.mul_(c.output_scale)
        self.actor = self.add_network("actor", actor, c.target_tau)
        self.critics = [
            self.add_network(
                name,
                ActionValue(self.encoder(), size, c.hidden, c.activation, c.layer_norm, c.join),
                c.target_tau,
            )
            for name in self.CRITICS
        ]
        self.actor_optimizer = self.add_optimizer("lr_actor", self.actor, max_grad_norm=c.max_grad_norm)
        self.critic_optimizer = self.add_optimizer("lr_critic", *self.critics, max_grad_norm=c.max_grad_norm)

    @classmethod
    def check(cls, interface: Interface) -> None:
        require_continuous(cls.__name__.lower(), interface)

    # -- acting --------------------------------------------------------------------------------------------------

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.actor(self.normalized(observation))

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Gaussian noise, and now and then a uniform random action."""
        action = self.exploit(observation)
        if not self.unused("noise"):
            action = (action + self.now("noise") * drawn(torch.randn_like, action)).clamp(-1, 1)
        if self.unused("epsilon"):
            return action
        random = drawn(torch.rand_like, action) * 2 - 1
        return torch.where(drawn(torch.rand_like, action[..., :1]) < self.now("epsilon"), random, action)

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """One critic step, then one actor step against the new critic."""
        critic_loss, critic_norm, info = self.critic_optimizer.minimize(self.critic_loss, batch)
        actor_loss, actor_norm, _ = self.actor_optimizer.minimize(self.actor_loss, batch)
        return {
            "loss/critic": critic_loss,
            "loss/actor": actor_loss,
            "grad/critic": critic_norm,
            "grad/actor": actor_norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
        }

    def critic_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Q(s, a) against r + gamma Qbar(s', mubar(s')), the least of the critics; summed over the critics."""
        target = self.value_target(batch)
        values = [critic(batch.get("observation"), batch.get("action")) for critic in self.critics]
        error = mse_loss if self.config.critic_loss == "mse" else smooth_l1_loss
        loss = torch.stack([error(value, target) for value in values]).sum()
        return loss, {"value": values[0].detach().mean(), "target": target.mean()}

    @torch.no_grad()
    def value_target(self, batch: TensorDictBase) -> Tensor:
        """``[N, 1]``."""
        following = batch.get("next")
        observation = following.get("observation")
        action = self.target_action(observation)
        values = [self.targets[name].network(observation, action) for name in self.CRITICS]
        least = values[0] if len(values) == 1 else torch.minimum(*values)
        return self.bootstrapped(batch, least)

    def target_action(self, observation: Any) -> Tensor:
        """``[N, D]``."""
        return self.targets["actor"].network(observation)

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """-Q(s, mu(s)), and a penalty on outputs before squashing, which keeps the actor from saturating."""
        observation = batch.get("observation")
        raw = self.actor.raw(observation)
        loss = -self.critics[0](observation, self.actor.squashed(raw)).mean()
        if self.config.raw_penalty:
            loss = loss + self.config.raw_penalty * raw.square().mean()
        return loss, {}

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Mean squared difference of the actions."""
        return mse_loss(self.actor(observation), action)
