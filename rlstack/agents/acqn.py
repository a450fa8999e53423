"""AC-IQN: an off-policy actor trained by an implicit quantile critic (arXiv 2412.09466).

``agent=acqn`` is our recipe, ``agent=acqn_published`` the published one; the yaml files hold all the numbers. The
update rule was checked against recordings of the reference learner (losses, gradient norms and parameters, in
``tests/losses``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from rlstack.config.options import (
    Count,
    CriticInputs,
    Fraction,
    Gain,
    LearningRate,
    Levels,
    Noise,
    NoiseScale,
    NonNegative,
    PerUpdate,
    Positive,
    Probability,
    Squash,
    Steps,
    Whole,
    cosine,
    layers,
    linear,
)
from rlstack.config.typed import Interval
from rlstack.losses.quantile import ACIQNLoss
from rlstack.networks.quantile import LateQuantileCritic, QuantileCritic, midpoints

from .base import Target
from .iqn import CVaR, check_level, levels
from .off_policy import ActorCritic, OffPolicyConfig


@dataclass
class ACQNConfig(OffPolicyConfig):
    """The options of AC-IQN: many worlds, large batches, n-step returns."""

    # networks
    hidden: list[Count] = layers(128, 128)  # hidden widths of actor and critic
    critic: Literal["gated", "late"] = "late"  # late: quantile level enters at the end (cheap); gated: as published
    #   (layer_norm: false)
    layer_norm: bool = True  # in the late critic: bounds the values of untried actions
    critic_inputs: CriticInputs = None
    #   what the critic sees, such as [state] or [observation, state]: a state that the world shows beside the
    #   observation, or keys of a dict observation, which the actor does not see then; null: what the actor sees;
    #   needs candidates=1: elsewhere the critic compares actions when acting
    squash: Squash = "tanh"  # tanh | arctan
    output_scale: Gain = 0.1  # shrinks the actor's first actions towards zero

    # targets
    gamma: Fraction = 0.995
    n_step: Steps = 4
    num_quantiles: Levels = 16  # levels drawn per update
    kappa: Positive = 1.0  # Huber threshold of the quantile loss
    shared_levels: bool = True  # one stratified set of levels for a whole batch: a matrix product instead of a loop
    target_noise: Noise = 0.1  # std of the noise on target actions (TD3's smoothing)
    raw_penalty: NonNegative = 0.001  # weight of the squared actor output before squashing: a saturated actor stops
    #   learning

    # replay and cadence
    batch_size: Count = 512
    buffer_size: Count = 400_000
    steps_per_batch: Count = 8
    learning_starts: Whole = 20_000
    frames_per_update: PerUpdate = 1200

    # optimisation
    lr_actor: LearningRate = cosine(5.0e-4, 1.0e-5)  # high for most of the run, then settles
    lr_critic: LearningRate = cosine(1.0e-3, 2.0e-5)  # the critic leads the actor
    max_grad_norm_actor: Positive | None = 1.0  # gradient norms are clipped to these
    max_grad_norm_critic: Positive | None = 20.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(0.05, 0.01, duration=1.0)  # probability of a uniform random action
    noise_low: Noise = 0.05  # Gaussian noise on actions: its std goes from low to high over the worlds, log-spaced
    noise_high: Noise = 0.6
    noise_scale: NoiseScale = linear(1.0, 0.2, duration=1.0)  # factor on that std

    # acting greedily
    greedy_actor: Literal["online", "target"] = "target"  # which networks act: online | target (their moving average)
    candidates: Annotated[int, Interval(low=1, high=100_000)] = 16
    #   actions compared by the critic: the actor's own and others around it; 1: the actor's own
    candidate_spread: Noise = 1.0  # std of the others
    cvar: CVaR = 0.25  # conditional value at risk: compared by the mean of the worst fraction of returns; or, in
    #   worlds that report distances, {distance: 10.0, low: 0.1, high: 1.0}: lower near obstacles;
    #   1.0 with candidates 1, where nothing is compared

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_inputs is not None and self.candidates != 1:
            raise ValueError(
                "critic_inputs needs candidates=1 and cvar=1.0: the policy cannot ask a critic that sees more"
            )
        if self.noise_low > self.noise_high:
            raise ValueError(f"noise_low {self.noise_low} is above noise_high {self.noise_high}")
        if self.candidates == 1 and self.cvar != 1.0:
            fault = "cvar has no effect with candidates=1, where nothing is compared"
            raise ValueError(f"{fault}; give candidates=16, or cvar=1.0")
        if self.critic == "gated" and (len(self.hidden) != 2 or self.hidden[0] != self.hidden[1]):
            raise ValueError("critic=gated has two hidden layers of one width, give hidden as [n, n]")
        if self.critic == "gated" and self.layer_norm:
            raise ValueError("critic=gated has no layer normalisation, give layer_norm=false")


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
        if isinstance(seen, Tensor):
            flat: Any = seen.reshape(-1, *seen.shape[lead:])
        else:  # in a program that is exported, a dict has no batch size, and its entries are [B, ...]
            flat = seen.reshape(-1) if lead else seen
        proposals = (action.reshape(-1, size) + self._offsets).clamp(-1, 1)  # [K, B, D]
        n = self.config.num_quantiles
        tau = levels(self.config.cvar, midpoints(n, action), self.interface, observation).reshape(-1, n)  # [1 or B, n]
        best = critic(flat, proposals, tau).mean(-1).argmax(0)
        chosen = proposals.gather(0, best[None, :, None].expand(1, -1, size))
        return chosen.view_as(action)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Adds Gaussian noise whose size differs between worlds; with probability ``epsilon``, acts at random."""
        action = self.actor(self.normalized(observation))
        if not self.unused("noise_scale") and self.config.noise_high > 0:
            # Stds ``[W, 1...]``, log-spaced over the worlds; that of a single world is the geometric mean of the ends.
            worlds = len(action) if action.dim() > 1 else 1
            low, high = max(self.config.noise_low, 1e-6), max(self.config.noise_high, 1e-6)
            ends = (math.log10(low), math.log10(high)) if worlds > 1 else 2 * (math.log10(low * high) / 2,)
            sizes = torch.logspace(*ends, worlds, dtype=action.dtype, device=action.device)
            sizes = self.scheduled_value("noise_scale") * sizes.view(-1, *[1] * (action.dim() - 1))
            action = (action + torch.randn_like(action) * sizes).clamp(-1, 1)
        return self.mixed_with_random(action, observation)

    # -- learning ------------------------------------------------------------------------------------------------

    def predicted_values(self, observation: Any, action: Tensor) -> Tensor:
        tau = midpoints(self.config.num_quantiles, action)
        return self.critic(observation, action, tau.unsqueeze(0)).mean(-1)

    def move_targets(self) -> None:
        for target in self._followers:
            target.update()

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        super().take_weights(weights)
        for target in self._followers:
            target.copy()
