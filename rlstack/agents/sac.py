"""SAC (Haarnoja et al. 2018), with learned temperature; for discrete actions that of Christodoulou 2019.

``agent=sac`` is our recipe, ``agent=sac_published`` that of MarineNav's SAC with its quirks (arctangent squash with
tanh's correction, target actor in the target, fixed temperature, sampled evaluation), whose recorded updates the tests
repeat; on the same batch the losses equal those of TorchRL's ``SACLoss`` and ``DiscreteSACLoss``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus

from rlstack.config import ConfigError
from rlstack.config.agents import SACConfig
from rlstack.networks.actors import GaussianActor, squashed
from rlstack.networks.distributions import masked_logits
from rlstack.networks.draws import drawn, own, whole
from rlstack.networks.values import ActionValue, StateNetwork

from .interface import Interface, chosen_by, legal
from .off_policy import OffPolicy, greedy, next_mask
from .optimizer import Info

CRITICS = ("critic_1", "critic_2")
ENTROPY_SHARE = 0.89
"""Of the entropy of uniform choices: what discrete policies aim at unless ``target_entropy`` is set."""

LOG_ALPHA_RANGE = (-20.0, 10.0)
"""Of the learned temperature: an entropy that cannot reach its target would move it without end."""


class SAC(OffPolicy):
    """Soft actor-critic."""

    Config = SACConfig

    def __init__(self, config: SACConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c = config
        self.choices = interface.choices[0] if interface.choices else None
        self.actor = self.add_network("actor", self._new_actor(), c.target_tau if c.target_actor else None)
        self.critics = [self.add_network(name, self._new_critic(), c.target_tau) for name in CRITICS]
        self.temperature = self.add_network("temperature", _Temperature(c.alpha))
        usual = -float(interface.action.shape[-1]) if self.choices is None else ENTROPY_SHARE * math.log(self.choices)
        self.target_entropy: float = usual if c.target_entropy is None else c.target_entropy
        self.actor_optimizer = self.add_optimizer("lr_actor", self.actor, max_grad_norm=c.max_grad_norm)
        self.critic_optimizer = self.add_optimizer("lr_critic", *self.critics, max_grad_norm=c.max_grad_norm)
        self.alpha_optimizer = self.add_optimizer("lr_alpha", self.temperature, max_grad_norm=None)

    @classmethod
    def check(cls, interface: Interface) -> None:
        if not interface.continuous and (interface.choices is None or len(interface.choices) != 1):
            raise ConfigError(
                "agent=sac needs continuous actions or one discrete action, the env has "
                f"{interface.describe_action()}; ppo and a2c take several discrete actions"
            )

    def _new_actor(self) -> nn.Module:
        c = self.config
        if self.choices is not None:
            return StateNetwork(self.encoder(), self.choices, c.hidden, c.activation)
        return GaussianActor(self.encoder(), self.interface.action.shape[-1], c.hidden, c.activation)

    def _new_critic(self) -> nn.Module:
        c = self.config
        if self.choices is not None:
            return StateNetwork(self.encoder(), self.choices, c.hidden, c.activation, c.layer_norm)
        size = self.interface.action.shape[-1]
        return ActionValue(self.encoder(), size, c.hidden, c.activation, c.layer_norm, c.join)

    # -- acting --------------------------------------------------------------------------------------------------

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        if self.config.greedy == "sample":
            return self._sample(observation, mask)
        out = self.actor(self.normalized(observation))
        return greedy(out, mask) if self.choices is not None else squashed(out[0], self.config.squash)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        action = self._sample(observation, mask)
        if self.unused("epsilon"):
            return action
        random = self.interface.random_action(self.interface.lead(observation), self.device, mask)
        chosen = own(torch.rand(whole(self.interface.lead(observation)), device=self.device)) < self.now("epsilon")
        return torch.where(chosen if self.choices is not None else chosen.unsqueeze(-1), random, action)

    def _sample(self, observation: Any, mask: Tensor | None) -> Tensor:
        out = self.actor(self.normalized(observation))
        if self.choices is None:
            return squashed(out[0] + out[1].exp() * drawn(torch.randn_like, out[0]), self.config.squash)
        return chosen_by(_log_probabilities(out, mask).exp())

    def action_and_log_prob(self, actor: nn.Module, observation: Any) -> tuple[Tensor, Tensor]:
        """A sampled continuous action ``[N, D]`` and its log density ``[N, 1]``."""
        mean, log_std = (part.to(self.interface.dtype) for part in actor(observation))
        noise = self.draw(mean)
        raw = mean + log_std.exp() * noise
        action = squashed(raw, self.config.squash)
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return action, (gaussian - self._log_slope(raw, action)).sum(-1, keepdim=True)

    def _log_slope(self, raw: Tensor, action: Tensor) -> Tensor:
        """Log derivative of the squash; ``correction=tanh`` is the published one, whatever the squash."""
        if self.config.correction == "tanh":
            return torch.log(1 - action.square() + 1e-6)
        if self.config.squash == "tanh":
            return 2 * (math.log(2) - raw - softplus(-2 * raw))
        return math.log(2 / math.pi) - torch.log1p(raw.square())

    def draw(self, like: Tensor) -> Tensor:
        """Standard normal numbers."""
        return drawn(torch.randn_like, like)

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """One step of the critics, one of the actor against the new critics, one of the temperature."""
        critic_loss, critic_norm, info = self.critic_optimizer.minimize(self.critic_loss, batch)
        actor_loss, actor_norm, acted = self.actor_optimizer.minimize(self.actor_loss, batch)
        if self.config.learn_alpha:
            wanted = acted.get("target_entropy", self.target_entropy)
            gap = (acted["entropy"] - wanted).expand(len(batch))
            self.alpha_optimizer.minimize(self._alpha_loss, batch.empty().set("gap", gap))
            self.temperature.log_alpha.data.clamp_(*LOG_ALPHA_RANGE)
        return {
            "loss/critic": critic_loss,
            "loss/actor": actor_loss,
            "grad/critic": critic_norm,
            "grad/actor": actor_norm,
            "value/predicted": info["value"],
            "value/target": info["target"],
            "policy/entropy": acted["entropy"],
            "policy/alpha": self.temperature().detach(),
        }

    def critic_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Squared error of both critics to the soft value target; their sum."""
        target = self.value_target(batch)
        observation, action = batch.get("observation"), batch.get("action")
        if self.choices is None:
            values = [critic(observation, action) for critic in self.critics]
        else:
            values = [critic(observation).gather(-1, action.unsqueeze(-1)) for critic in self.critics]
        losses = [mse_loss(value, target) for value in values]
        self.critic_losses = [loss.detach() for loss in losses]
        return losses[0] + losses[1], {"value": values[0].detach().mean(), "target": target.mean()}

    @torch.no_grad()
    def value_target(self, batch: TensorDictBase) -> Tensor:
        """r + gamma (min Qbar(s', a') - alpha log pi(a' | s')), ``[N, 1]``."""
        following = batch.get("next")
        observation = following.get("observation")
        actor = self.targets["actor"].network if self.config.target_actor else self.actor
        critics = [self.targets[name].network for name in CRITICS]
        if self.choices is None:
            action, log_prob = self.action_and_log_prob(actor, observation)
            least = torch.minimum(*(critic(observation, action) for critic in critics))
            soft = least - self.temperature() * log_prob
        else:
            log_prob = _log_probabilities(actor(observation), next_mask(batch))
            least = torch.minimum(*(critic(observation) for critic in critics))
            soft = (log_prob.exp() * (least - self.temperature() * log_prob)).sum(-1, keepdim=True)
        return self.bootstrapped(batch, soft)

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """alpha log pi(a | s) - min Q(s, a)."""
        observation, alpha = batch.get("observation"), self.temperature().detach()
        if self.choices is None:
            action, log_prob = self.action_and_log_prob(self.actor, observation)
            least = torch.minimum(*(critic(observation, action) for critic in self.critics))
            return (alpha * log_prob - least).mean(), {"entropy": -log_prob.detach().mean()}
        mask = batch.get("action_mask", None)
        log_prob = _log_probabilities(self.actor(observation), mask)
        with torch.no_grad():
            least = torch.minimum(*(critic(observation) for critic in self.critics))
        probabilities = log_prob.exp()
        loss = (probabilities * (alpha * log_prob - least)).sum(-1).mean()
        info = {"entropy": -(probabilities * log_prob).detach().sum(-1).mean()}
        if mask is not None and self.config.target_entropy is None:
            # Few legal choices have little entropy, which no temperature could raise to that of all.
            info["target_entropy"] = ENTROPY_SHARE * legal(mask).sum(-1).to(log_prob.dtype).log().mean()
        return loss, info

    def _alpha_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Raises the temperature while the entropy is below its target (Haarnoja et al. 2018, arXiv 1812.05905)."""
        return self.temperature.log_alpha * batch.get("gap")[0], {}

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of choices; squared difference to the squashed mean of continuous actions."""
        out = self.actor(observation)
        if self.choices is not None:
            return cross_entropy(masked_logits(out, mask), action)
        return mse_loss(squashed(out[0], self.config.squash), action)


class _Temperature(nn.Module):
    """``alpha = exp(log_alpha)``."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha), dtype=torch.float64))  # cast with its agent

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


def _log_probabilities(logits: Tensor, mask: Tensor | None) -> Tensor:
    """``[..., n]``."""
    return masked_logits(logits, mask).log_softmax(-1)
