"""SAC (Haarnoja et al. 2018) with learned temperature; for discrete actions, the variant of Christodoulou 2019.

``agent=sac`` is our recipe; ``agent=xqc`` has the critics of XQC (Palenicek et al. 2025, arXiv 2509.25174);
``agent=sac_published`` is MarineNav's SAC with its quirks (arctangent squash with tanh's correction, target actor in
the target, fixed temperature, sampled evaluation), whose recorded updates the tests reproduce. On the same batch the
losses of scalar critics equal those of TorchRL's ``SACLoss`` and ``DiscreteSACLoss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from rlstack.config import ConfigError
from rlstack.config.options import Count, Finite, LearningRate, Positive, Probability, Whole
from rlstack.config.typed import Interval
from rlstack.losses.sac import CategoricalSACLoss, DiscreteSACLoss, SACLoss
from rlstack.networks.actors import GaussianActor, squashed
from rlstack.networks.distributions import masked_logits
from rlstack.networks.own import OwnGaussianActor
from rlstack.networks.values import StateNetwork

from .base import greedy
from .interface import chosen_by
from .off_policy import ActorCritic, CriticsConfig
from .optimizer import Info


@dataclass
class SACConfig(CriticsConfig):
    """The options of SAC."""

    # networks
    critic_norm: Literal["none", "batch", "batch_targets"] = "none"  # type: ignore[assignment]  # one choice more
    #   batch: see above; batch_targets: batch normalisation between each layer of the critics and its activation, with
    #   target networks, which see a state and the next one as one batch, too (XQC, Palenicek et al. 2025)
    critic: Literal["scalar", "categorical"] = "scalar"  # categorical: critics predict the distribution of returns over
    #   num_atoms evenly spaced returns, by cross entropy (XQC); with weight_norm, the weights of each atom have norm 1
    num_atoms: Annotated[int, Interval(low=2, high=100_000)] = 101  # of categorical critics: returns evenly spaced ...
    value_min: Finite = -5.0  # ... from here to value_max (returns outside are clamped), after normalize_rewards
    value_max: Finite = 5.0

    # targets
    target_actor: bool = False  # target actions come from a target network of the actor (published)

    # temperature
    alpha: Annotated[float, Interval(low=2.1e-9, high=22_000, why="its logarithm is kept within [-20, 10]")] = 1.0
    #   initial weight of the entropy, or the fixed one
    learn_alpha: bool = True  # tuned towards the target entropy
    target_entropy: Annotated[float, Interval(low=-1000, high=1000, why="about -1 for each action")] | None = None
    #   null: minus the number of action dimensions, or 0.89 log n for n (legal) choices
    lr_alpha: LearningRate = 3.0e-4

    # replay and cadence
    random_frames: Whole = 100
    learning_starts: Whole = 100

    # optimisation
    lr_actor: LearningRate = 3.0e-4
    lr_critic: LearningRate = 3.0e-4
    actor_every: Count = 1  # critic updates per update of actor and temperature; targets follow every critic update
    max_grad_norm: Positive | None = None  # null: gradients are not clipped

    # acting
    epsilon: Probability = 0.0  # probability of a uniform random action while exploring
    greedy: Literal["mode", "sample"] = "mode"  # mode: the squashed mean, or the most probable choice; sample: a sample
    #   (published)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_norm == "batch" and self.target_actor:
            raise ValueError("critic_norm=batch has no target networks, target_actor must be false")
        if self.value_min >= self.value_max:
            raise ValueError("value_min must be below value_max")
        if self.critic == "scalar":
            given = {name: getattr(self, name) for name in ("num_atoms", "value_min", "value_max")}
            if changed := [name for name, value in given.items() if value != getattr(SACConfig, name)]:
                raise ValueError(f"{changed[0]} is for critic=categorical, critic is scalar")
        elif self.names_critic:
            raise ValueError("critic=categorical is for critics of ours, network may name no critic")


LOG_ALPHA_RANGE = (-20.0, 10.0)
"""The range of the log temperature: an entropy that cannot reach its target would move it without bound."""


class SAC(ActorCritic):
    """Soft actor-critic."""

    Config = SACConfig
    ACTIONS: tuple[str, ...] = ("vector", "choice")
    config: SACConfig

    def build(self) -> None:
        c, interface = self.config, self.interface
        self.choices = interface.choices[0] if interface.choices else None
        if self.choices is not None:
            actor = self.own_network("actor", self.choices)
            actor = actor or StateNetwork(self.encoder("actor"), self.choices, c.hidden, c.activation)
        else:
            size = interface.action.shape[-1]
            actor = self.own_network("actor", 2 * size, kind=OwnGaussianActor)
            actor = actor or GaussianActor(self.encoder("actor"), size, c.hidden, c.activation)
        self.actor = self.add_network("actor", actor)
        self.critics = [self.add_network(name, self.new_critic()) for name in self.CRITICS]
        self.loss = self.make_loss()
        self.temperature = self.add_network("temperature", self.loss.temperature)
        self.follow_and_optimize(c.target_actor)
        self.alpha_optimizer = self.add_optimizer("lr_alpha", self.temperature, max_grad_norm=None)
        self.alpha_optimizer.bounds.append((self.temperature.log_alpha, *LOG_ALPHA_RANGE))

    def make_loss(self) -> SACLoss:
        """Returns a loss over the agent's networks."""
        c, options = self.config, self.loss_options()
        if self.choices is not None:
            for name in ("critic_norm", "critic", "join", "squash"):
                if (value := getattr(c, name)) != getattr(SACConfig, name):
                    raise ConfigError(f"agent.{name}={value} is for continuous actions, the env has choices")
            return DiscreteSACLoss(self.actor, self.critics, **options)
        options |= {"joint": c.critic_norm != "none", "joint_targets": c.critic_norm == "batch_targets"}
        if c.critic == "scalar":
            return SACLoss(self.actor, self.critics, **options)
        atoms = torch.linspace(c.value_min, c.value_max, c.num_atoms, dtype=self.interface.dtype, device=self.device)
        return CategoricalSACLoss(self.actor, self.critics, atoms, **options)

    def loss_options(self) -> dict[str, Any]:
        """Returns the arguments that the losses of all variants of SAC take."""
        c, size = self.config, self.interface.action.shape[-1] if self.choices is None else self.choices
        names = ("gamma", "alpha", "target_entropy", "squash", "target_actor")
        return {"action_size": size, **{name: getattr(c, name) for name in names}}

    def new_critic(self) -> nn.Module:
        """Returns a new critic."""
        c = self.config
        if self.choices is not None:
            own = self.own_network("critic", self.choices)
            hidden = c.critic_hidden or c.hidden
            return own or StateNetwork(self.encoder("critic"), self.choices, hidden, c.activation, c.layer_norm)
        return self.continuous_critic(1 if c.critic == "scalar" else c.num_atoms)

    # -- acting --------------------------------------------------------------------------------------------------

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        if self.config.greedy == "sample":
            return self._sample(observation, mask)
        out = self.actor(self.normalized(observation))
        return greedy(out, mask) if self.choices is not None else squashed(out[0], self.config.squash)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        return self.mixed_with_random(self._sample(observation, mask), observation, mask)

    def _sample(self, observation: Any, mask: Tensor | None) -> Tensor:
        out = self.actor(self.normalized(observation))
        if self.choices is None:
            return squashed(out[0] + out[1].exp() * torch.randn_like(out[0]), self.config.squash)
        return chosen_by(masked_logits(out, mask).softmax(-1))

    # -- learning ------------------------------------------------------------------------------------------------

    def actor_step(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes one step of the actor (against the new critics) and the temperature, every ``actor_every`` updates."""
        metrics: dict[str, Any] = super().actor_step(batch)
        if not metrics:
            return metrics
        wanted = metrics.pop("policy/target_entropy", self.loss.target_entropy)
        if self.config.learn_alpha:
            gap = (metrics["policy/entropy"] - wanted).expand(len(batch))
            self.alpha_optimizer.minimize(self._alpha_loss, batch.empty().set("gap", gap))
        return {**metrics, "policy/alpha": self.temperature().detach()}

    def _alpha_loss(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Returns the temperature's loss; the entropy's distance from its target is the same in every row."""
        return self.loss.alpha_loss(batch.get("gap")[0]), {}

    def predicted_values(self, observation: Any, action: Tensor) -> Tensor:
        if self.config.critic == "scalar":
            return super().predicted_values(observation, action)
        expected = [self.loss.expected(critic(observation, action)) for critic in self.critics]
        return torch.cat(expected, -1).mean(-1)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy for choices; squared difference from the squashed mean for continuous actions."""
        out = self.actor(observation)
        if self.choices is not None:
            return cross_entropy(masked_logits(out, mask), action)
        return mse_loss(squashed(out[0], self.config.squash), action)
