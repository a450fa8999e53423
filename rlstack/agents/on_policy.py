"""The common part of PPO and A2C: a stochastic policy, a value function, and advantages of fresh sequences."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from envs.tensordicts import unchecked
from envs.waiting import looks_are_free
from rlstack.config import ConfigError
from rlstack.losses.a2c import PolicyGradientLoss
from rlstack.losses.advantage import estimate, normalized
from rlstack.networks.distributions import Choices, Distribution, Gaussian, Hybrid, full_precision
from rlstack.networks.encoders import Trunk
from rlstack.networks.values import StateNetwork, orthogonal_

from .base import Agent, Policy, exploring
from .central import CentralNetwork, Mates
from .compilation import CannotCompile, Compiler
from .interface import Interface
from .optimizer import Info

LOG_STD_RANGE = (-20.0, 5.0)
"""The range of log standard deviations: for actions in [-1, 1], and wide enough for those without bounds."""


class OnPolicy(Agent):
    """An agent that learns from the data its present policy has gathered, and forgets it."""

    config: Any
    OPTIMIZER = "adam"
    row_size = 1
    """Decisions in an entry of a batch; more where entries are sequences."""

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, hybrid = config, interface.hybrid
        self.choices = interface.choices if hybrid is None else hybrid.counts
        self.numbers = hybrid.numbers if hybrid else 0 if self.choices else interface.action.shape[-1]
        outputs = self.numbers + sum(self.choices or ())
        encoder, hidden = self.encoder(), c.hidden[c.shared_layers :]
        if c.shared_layers:
            encoder = Trunk(encoder, c.hidden[: c.shared_layers], c.activation)
        actor = StateNetwork(encoder, outputs, hidden, c.activation)
        critic = self._make_critic(encoder if c.shared_layers else self.encoder(), c.critic_hidden or hidden)
        if c.orthogonal:
            orthogonal_(actor, c.policy_gain)
            orthogonal_(critic, c.value_gain)
        if self.numbers:
            actor.register_parameter("log_std", nn.Parameter(torch.full((self.numbers,), math.log(c.initial_std))))
        self.actor, self.critic = self.add_network("actor", actor), self.add_network("critic", critic)
        self.mates = Mates(critic, interface.agents) if isinstance(critic, CentralNetwork) else None
        self.loss = self.make_loss(
            value_coefficient=c.value_coefficient,
            entropy_coefficient=self.scheduled["entropy_coefficient"],
            evaluate=self.policy_and_value,
        )
        self.loss.set_keys(sample_log_prob="log_prob", value_target="return", value="value")
        parameters = list(dict.fromkeys([*self.actor.parameters(), *self.critic.parameters()]))
        self.optimizer = self.add_optimizer(
            "lr", parameters, max_grad_norm=c.max_grad_norm, kind=self.OPTIMIZER, eps=c.optimizer_eps
        )

    def _make_critic(self, encoder: nn.Module, hidden: Sequence[int]) -> StateNetwork:
        """One that sees the others, too, where it should and there are any."""
        others, activation = self.interface.agents - 1, self.config.activation
        if self.config.critic == "central" and others:
            return CentralNetwork(encoder, hidden, others, activation)
        return StateNetwork(encoder, 1, hidden, activation)

    @classmethod
    def check(cls, interface: Interface) -> None:
        if not interface.continuous and interface.choices is None and interface.hybrid is None:
            name = cls.__name__.lower()
            raise ConfigError(
                f"agent={name} takes continuous, discrete, multi-discrete and hybrid actions, "
                f"the env has {interface.describe_action()}"
            )

    # -- acting --------------------------------------------------------------------------------------------------

    def distribution(self, observation: Any, mask: Tensor | None = None) -> Distribution:
        """The distribution of actions for a normalised observation."""
        return self._distribution(self.actor(observation), mask)

    def _distribution(self, out: Tensor, mask: Tensor | None) -> Distribution:
        if not self.numbers:
            return Choices(out, self.choices or (), mask)
        numbers = Gaussian(full_precision(out[..., : self.numbers]), self.actor.log_std)
        return Hybrid(numbers, Choices(out[..., self.numbers :], self.choices, mask)) if self.choices else numbers

    def policy_and_value(self, batch: TensorDictBase) -> tuple[Distribution, Tensor]:
        """Distribution and values ``[N]`` of normalised observations ``[N]``; layers that both share run once."""
        observation, mask = batch.get("observation"), batch.get("action_mask", None)
        if not self.config.shared_layers:
            return self.distribution(observation, mask), self._value(self.critic.encoder(observation), batch)
        features = self.actor.encoder(observation)
        return self._distribution(self.actor.head(features), mask), self._value(features, batch)

    def _value(self, features: Tensor, batch: TensorDictBase) -> Tensor:
        """Values ``[N]`` of the encoded observations of a batch ``[N]``."""
        if self.mates is not None:
            features = torch.cat((features, self._others(self.mates, batch)), -1)
        return self.critic.head(features).squeeze(-1)

    def _others(self, mates: Mates, batch: TensorDictBase) -> Tensor:
        """The pooled encodings of the others, for a central critic."""
        return mates.seen(batch.get("place"))

    def compile(self, compiler: Compiler) -> None:
        if self.mates is not None:
            raise CannotCompile("agent.critic=central looks up what others see")
        super().compile(dataclasses.replace(compiler, varying=True))
        self.refresh()

    def policy(self, explore: bool | None = None) -> Policy:
        def chooser(explores: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
            def choose(observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
                # Exploring as precisely as it learns: the ratio of a policy to itself must be one.
                with self.optimizer.autocast(explores):
                    distribution = self.distribution(self.normalized(observation), mask)
                sampled = explores or self.config.greedy == "sample"
                raw = distribution.sample() if sampled else distribution.mode()
                return raw, None if explore is False else distribution.log_prob(raw)

            return self.quick(choose) if explores else choose

        choosers = {explores: chooser(explores) for explores in (False, True)}

        def act(observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
            raw, log_prob = choosers[exploring(explore)](observation, mask)
            # A hybrid's choices are whole numbers; its own conversion cuts off the others.
            acted = {"action": self.interface.to_env(raw if self.choices else raw.clamp(-1, 1))}
            if log_prob is not None:
                acted["log_prob"] = log_prob
                if self.numbers:
                    acted["raw_action"] = raw
            return acted

        extras = () if explore is False else ("log_prob", *(("raw_action",) if self.numbers else ()))
        return Policy(self.interface, act, extras, self, explore)

    # -- data ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Active decisions as a flat batch ``[N]``.

        ``observation`` (scaled), ``action`` (before clipping), ``log_prob``, ``value``, ``advantage``, ``return``, all
        ``[N]``; ``action_mask`` where the env has one, and for a central critic ``place`` (see :class:`Mates`).
        """
        observation = self.normalized(sequences.get("observation"))
        place = None if self.mates is None else self.mates.begin(observation, sequences.get("active"))
        following = sequences.get("next")
        reward = following.get("reward")
        if self.reward_scaler is not None:
            self.reward_scaler.update(sequences, everyone=self.interface.group is None)
            reward = self.reward_scaler(reward)
        with self.optimizer.autocast():
            values = self._values(observation, sequences)
        value, next_value = (full_precision(part) for part in values)
        ends = following.get("done"), following.get("terminated")
        advantage, target = estimate(self.config.gamma, self.config.gae_lambda, value, next_value, reward, *ends)
        taken = sequences.get("raw_action", None)
        entries = {
            "observation": observation,
            "action": self.interface.from_env(sequences.get("action")) if taken is None else taken,
            "log_prob": sequences.get("log_prob"),
            "value": value[..., 0],
            "advantage": advantage[..., 0],
            "return": target[..., 0],
        }
        beside = {"action_mask": sequences.get("action_mask", None), "place": place}
        entries |= {name: entry for name, entry in beside.items() if entry is not None}
        return self._batch(TensorDict(entries, sequences.batch_size), sequences)

    def _batch(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        """The batch to learn from, out of entries ``[B, T]``."""
        return self._kept(entries, sequences)

    def _values(self, observation: Any, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
        """The values of all (scaled) observations ``[B, T]`` and of those that follow them, ``[B, T, 1]``."""
        value = self.critic(observation) if self.mates is None else self.mates.values()
        return value, self._next_values(value, sequences)

    def _next_values(
        self, value: Tensor, sequences: TensorDictBase, encoded: Callable[[Any], Tensor] | None = None
    ) -> Tensor:
        """The values of the true next states: the following entry's, computed anew where a sequence or an episode ends.

        Args:
            encoded: encodings of what follows the decisions of an index, for a central critic that knows them already.
        """
        following = sequences.get("next")

        def seen(index: Any) -> Any:
            return self.normalized(following.get("observation")[index])

        ends = following.get("done")[..., 0] & ~following.get("terminated")[..., 0]
        ends[:, -1:].fill_(True)
        following_value = torch.cat((value[:, 1:], value[:, -1:]), 1)
        if self.mates is None and not looks_are_free(value.device):
            values = self.critic(self.normalized(following.get("observation")))  # of all: to ask of which would wait
            return torch.where(ends.unsqueeze(-1), values, following_value)
        if self.mates is None:
            following_value[ends] = self.critic(seen(ends))
        else:
            encoded = encoded or (lambda index: self.critic.encoder(seen(index)))
            following_value[ends] = self.mates.values_after(sequences, ends, encoded)
        return following_value

    # -- learning ------------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """The updates on one :meth:`rollout`."""

    @abstractmethod
    def make_loss(self, **options: Any) -> PolicyGradientLoss:
        """The algorithm's, with what is common to all of them in ``options``."""

    def objective(self, batch: TensorDictBase, report: bool = True) -> tuple[Tensor, Info]:
        """A scalar that is a mean over a batch ``[N]``, and what is told of it; less where no ``report`` is wanted."""
        told: tuple[Tensor, Info] = self.loss.total_loss(batch, report)
        return told

    def plain_objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """The objective without its report, which nobody reads for most minibatches."""
        return self.objective(batch, report=False)

    def refresh(self) -> None:
        super().refresh()
        for name in ("clip", "entropy_coefficient"):
            if name in self.schedules:
                setattr(self.loss, name, self.now(name))

    def step(self, batch: TensorDictBase, report: bool = True) -> tuple[Tensor, Tensor, Info]:
        """One step on a batch ``[N]``, with or without a report; see :meth:`Optimizer.minimize`.

        Advantages are normalised over the whole of it, however it is split up afterwards. Log standard deviations are
        kept within :data:`LOG_STD_RANGE`, at whose ends they can turn back.
        """
        if self.normalizes_steps:
            batch = self.with_normalized_advantages(batch)
        self.updates += 1
        told = self.optimizer.minimize(self.objective if report else self.plain_objective, batch)
        if self.numbers:
            self.actor.log_std.data.clamp_(*LOG_STD_RANGE)
        return told

    def with_normalized_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch, its advantages with zero mean and unit standard deviation (of one alone, as it is)."""
        if len(batch) < 2:
            return batch
        entries = {**dict(batch.items()), "advantage": normalized(batch.get("advantage"))}
        return unchecked(entries, batch_size=batch.batch_size, device=batch.device)

    @property
    def normalizes_steps(self) -> bool:
        """Each step normalises the advantages of its own batch."""
        return self.config.normalize_advantage

    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        self.set_frames(frames)
        metrics = self.update(self.rollout(sequences))
        if self.normalizer is not None:  # only now: the data's log probabilities belong to the old statistics
            self.normalizer.update(self._kept(sequences.get("observation"), sequences))
        if self.mates is not None:
            self.mates.forget()
        return metrics

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        return self.update(self.rollout(sequences))

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Negative log likelihood of choices (and numbers beside them); else squared difference to the mean."""
        if self.choices:
            return -self.distribution(observation, mask).log_prob(action).mean()
        return mse_loss(self.actor(observation), action)
