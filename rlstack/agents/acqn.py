"""AC-IQN: an off-policy actor trained by an implicit quantile critic (arXiv 2412.09466).

``agent=acqn`` is our recipe, ``agent=acqn_published`` the published one; the yaml files hold all the numbers. The
update rule was checked against recordings of the reference learner (losses, gradient norms and parameters, in
``tests/losses``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlstack.config.agents import ACQNConfig
from rlstack.losses import ACIQNLoss
from rlstack.networks.quantile import LateQuantileCritic, QuantileCritic

from .base import Target
from .iqn import check_level, levels
from .off_policy import ActorCritic


class ACQN(ActorCritic):
    """Actor-critic implicit quantile network."""

    Config = ACQNConfig
    config: ACQNConfig

    def build(self) -> None:
        c, interface = self.config, self.interface
        size = interface.action.shape[-1]
        check_level(c.cvar, interface)
        actor, encoder = self.deterministic_actor(), self.encoder("critic")
        critic: nn.Module
        if c.critic == "gated":
            critic = QuantileCritic(encoder, size, c.hidden[0], c.activation)
        else:
            critic = LateQuantileCritic(encoder, size, c.hidden, c.layer_norm, c.activation)
        loss = ACIQNLoss(
            actor, critic, c.gamma, c.num_quantiles, c.kappa, c.shared_levels, c.target_noise, c.raw_penalty
        )
        self.loss = self.add_network("loss", loss)  # it also holds the targets in a checkpoint
        self.actor, self.critic = loss.actor_network, loss.critic_network
        self._followers = [
            Target(self.actor, loss.target_actor_network, c.target_tau),
            Target(self.critic, loss.target_critic_network, c.target_tau),
        ]
        trained = (self.loss.actor_network_params, self.loss.critic_network_params)
        actor_params, critic_params = (list(params.values(True, True)) for params in trained)
        self.actor_optimizer = self.add_optimizer("lr_actor", actor_params, max_grad_norm=c.max_grad_norm_actor)
        self.critic_optimizer = self.add_optimizer("lr_critic", critic_params, max_grad_norm=c.max_grad_norm_critic)
        # Offsets ``[K, 1, D]``: zero, then fixed quasi-random normal draws, so that greedy acting is deterministic
        uniform = torch.quasirandom.SobolEngine(size, scramble=True, seed=0).draw(c.candidates)
        offsets = c.candidate_spread * math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-0.999, 0.999))
        offsets[0] = 0
        self._offsets = offsets[:, None].to(self.device, interface.dtype)

    # -- acting --------------------------------------------------------------------------------------------------

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the actor's action, or the candidate around it with the highest conditional value at risk."""
        target = self.config.greedy_actor == "target"
        seen = self.normalized(observation)
        actor, critic = self.actor, self.critic
        if target:
            actor, critic = self.loss.target_actor_network, self.loss.target_critic_network
        action: Tensor = actor(seen)
        if self.config.candidates == 1:
            return action
        size = action.shape[-1]
        lead = len(self.interface.lead(observation))
        flat = seen.reshape(-1, *seen.shape[lead:]) if isinstance(seen, Tensor) else seen.reshape(-1)
        proposals = (action.reshape(-1, size) + self._offsets).clamp(-1, 1)  # [K, B, D]
        n = self.config.num_quantiles
        tau = (torch.arange(n, dtype=action.dtype, device=action.device) + 0.5) / n
        tau = levels(self.config.cvar, tau, self.interface, observation).reshape(-1, n)  # [1 or B, n]
        best = critic(flat, proposals, tau).mean(-1).argmax(0)
        chosen = proposals.gather(0, best[None, :, None].expand(1, -1, size))
        return chosen.view_as(action)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Adds Gaussian noise whose size differs between worlds; with probability ``epsilon``, acts at random."""
        action = self.actor(self.normalized(observation))
        if not self.unused("noise_scale") and self.config.noise_high > 0:
            worlds = len(action) if action.dim() > 1 else 1
            action = (action + torch.randn_like(action) * self._noise_sizes(worlds, action)).clamp(-1, 1)
        random = torch.rand_like(action) * 2 - 1
        return torch.where(torch.rand_like(action[..., :1]) < self.now("epsilon"), random, action)

    def _noise_sizes(self, worlds: int, like: Tensor) -> Tensor:
        """Standard deviations ``[W, 1...]``, log-spaced from noise_low to noise_high across the worlds.

        A single world gets their geometric mean.
        """
        low, high = max(self.config.noise_low, 1e-6), max(self.config.noise_high, 1e-6)
        ends = (math.log10(low), math.log10(high)) if worlds > 1 else 2 * (math.log10(low * high) / 2,)
        sizes = torch.logspace(*ends, worlds, dtype=like.dtype, device=like.device)
        return self.now("noise_scale") * sizes.view(-1, *[1] * (like.dim() - 1))

    # -- learning ------------------------------------------------------------------------------------------------

    def move_targets(self) -> None:
        for target in self._followers:
            target.update()

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        super().take_weights(weights)
        for target in self._followers:
            target.copy()
