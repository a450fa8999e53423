"""Agents that learn from fresh data; of these PPO and A2C have a policy, a value function and advantages in common."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from envs.tensordicts import unchecked
from envs.waiting import looks_are_free
from rlstack.config import ConfigError
from rlstack.config.schedules import make_schedule
from rlstack.losses.a2c import PolicyGradientLoss
from rlstack.losses.advantage import estimate, normalized, vtrace
from rlstack.networks.distributions import Choices, Distribution, Gaussian, Hybrid, full_precision
from rlstack.networks.encoders import Trunk
from rlstack.networks.values import StateNetwork, orthogonal_

from .base import Agent, Policy, exploring
from .central import CentralNetwork, Mates
from .compilation import CannotCompile, Compiler
from .curiosity import Curiosity
from .interface import MASK, Interface
from .optimizer import Info, Optimizer
from .symmetry import with_images

LOG_STD_RANGE = (-20.0, 5.0)
"""The range of log standard deviations: for actions in [-1, 1], and wide enough for those without bounds."""


class FromRollouts(Agent):
    """An agent that learns from the data its present policy has gathered, and forgets it.

    A subclass writes :meth:`rollout`, :meth:`objective` and :meth:`update`, and makes the ``optimizer``.
    """

    config: Any
    optimizer: Optimizer
    row_size = 1
    """Decisions in an entry of a batch; more where entries are sequences."""
    curiosity: Curiosity | None = None

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c = config
        if c.rnd is not None:
            self.curiosity = Curiosity(c.rnd, interface, (c.self_features, c.object_features)).to(device)
            self.networks["curiosity"] = self.curiosity
            self.schedules["lr_predictor"] = make_schedule(c.rnd.lr, total_frames, "agent.rnd.lr")
            self.scheduled["lr_predictor"] = self.schedules["lr_predictor"](0)
            self.predictor_optimizer = self.add_optimizer("lr_predictor", self.curiosity.predictor, max_grad_norm=None)

    @abstractmethod
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Active decisions of ``[B, T]`` as a flat batch ``[N]``, with what they are learned from."""

    @abstractmethod
    def objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """A scalar that is a mean over a batch ``[N]``, and what is told of it."""

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch ``[N]`` as one step takes it: with its mirror image where wanted, ``[2 N]``."""
        return with_images(batch) if self.augments else batch

    def image(self, sequences: TensorDictBase, action: Tensor) -> dict[str, Any]:
        """Beside the entries ``[B, T]`` of a rollout, their mirror images where wanted: for :meth:`for_step`.

        Args:
            action: theirs, as the agent has it.
        """
        if not self.augments:
            return {}
        told = sequences.select("observation", MASK, strict=False).set("action", action)
        image = self.mirroring.image(told)
        image["observation"] = self.normalized(image["observation"])
        return {"image": TensorDict(image, sequences.batch_size)}

    @abstractmethod
    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """The updates on one :meth:`rollout`."""

    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        self.set_frames(frames)
        metrics = self.update(self.rollout(sequences))
        if self.curiosity is not None:
            seen = self._kept(sequences.get(("next", "observation")), sequences)
            metrics |= self.curiosity.learn(seen, self.predictor_optimizer.minimize)
        self.finish(sequences)
        return metrics

    def finish(self, sequences: TensorDictBase) -> None:
        """Follows the updates: normalisers take in the data, whose log probabilities belong to the old statistics."""
        if self.normalizer is not None:
            self.normalizer.update(self._kept(sequences.get("observation"), sequences))

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        return self.update(self.rollout(sequences))

    def scaled_reward(self, sequences: TensorDictBase) -> Tensor:
        """The rewards ``[B, T, 1]`` of new data, divided by the std of returns and with a bonus, where wanted."""
        reward: Tensor = sequences.get(("next", "reward"))
        if self.reward_scaler is not None:
            self.reward_scaler.update(sequences, everyone=self.interface.group is None)
            reward = self.reward_scaler(reward)
        if self.curiosity is None:
            return reward
        seen = self._kept(sequences.get(("next", "observation")), sequences)
        return reward + self.curiosity.bonus(sequences, seen)

    def compile(self, compiler: Compiler) -> None:
        super().compile(dataclasses.replace(compiler, varying=True))
        self.refresh()


class OnPolicy(FromRollouts):
    """An agent with a policy and a value function, which learns from advantages of fresh data."""

    OPTIMIZER = "adam"
    WEIGHS = False
    """The loss multiplies advantages by the ratio of the probabilities of learner and acting policy itself."""

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, hybrid = config, interface.hybrid
        self.choices = interface.choices if hybrid is None else hybrid.counts
        self.numbers = hybrid.numbers if hybrid else 0 if self.choices else interface.action.shape[-1]
        outputs = self.numbers + sum(self.choices or ())
        shared = Trunk(self.encoder("actor"), c.hidden[: c.shared_layers], c.activation) if c.shared_layers else None
        actor, critic = self._make_actor(shared, outputs), self._make_critic(shared)
        if c.orthogonal:
            for network, gain in ((actor, c.policy_gain), (critic, c.value_gain)):
                if isinstance(network, StateNetwork):  # a user's keeps the weights that it begins with
                    orthogonal_(network, gain)
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
        options = {"kind": self.OPTIMIZER, "eps": c.optimizer_eps}
        self.optimizer = self.add_optimizer("lr", parameters, max_grad_norm=c.max_grad_norm, **options)
        if self.numbers:
            self.optimizer.keep_within(self.actor.log_std, *LOG_STD_RANGE)

    def _make_actor(self, shared: nn.Module | None, outputs: int) -> nn.Module:
        c, own = self.config, self.own_network("actor", outputs)
        hidden = c.hidden[c.shared_layers :]
        return own or StateNetwork(shared or self.encoder("actor"), outputs, hidden, c.activation)

    def _make_critic(self, shared: nn.Module | None) -> nn.Module:
        """One that sees the others, too, where it should and there are any."""
        c, others = self.config, self.interface.agents - 1
        hidden = c.critic_hidden or c.hidden[c.shared_layers :]
        if c.critic == "central" and others:
            return CentralNetwork(shared or self.encoder("critic"), hidden, others, c.activation)
        own = self.own_network("critic", 1)
        return own or StateNetwork(shared or self.encoder("critic"), 1, hidden, c.activation)

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
        super().compile(compiler)

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
        following, reward = sequences.get("next"), self.scaled_reward(sequences)
        with self.optimizer.autocast():
            values = self._values(observation, sequences)
        value, next_value = (full_precision(part) for part in values)
        taken = sequences.get("raw_action", None)
        action = self.interface.from_env(sequences.get("action")) if taken is None else taken
        entries = {
            "observation": observation,
            "action": action,
            "log_prob": sequences.get("log_prob"),
            "value": value[..., 0],
        }
        beside = {"action_mask": sequences.get("action_mask", None), "place": place, **self.image(sequences, action)}
        batch = TensorDict(
            {**entries, **{name: entry for name, entry in beside.items() if entry is not None}}, sequences.batch_size
        )
        ends = following.get("done"), following.get("terminated")
        advantage, target = self._advantages(batch, sequences, value, next_value, reward, *ends)
        return self._batch(batch.set("advantage", advantage[..., 0]).set("return", target[..., 0]), sequences)

    def _advantages(self, batch: TensorDict, sequences: TensorDictBase, *told: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns ``[B, T, 1]`` of entries ``[B, T]``, from what :func:`estimate` is told of them.

        V-trace weighs each advantage by the probability ratio of its action, unless the loss does (:attr:`WEIGHS`).
        """
        c = self.config
        if c.advantage == "gae":
            return estimate(c.gamma, c.gae_lambda, *told)
        ratio = self._log_prob(batch, sequences) - batch.get("log_prob")
        ratio = torch.where(sequences.get("active"), ratio, 0.0).unsqueeze(-1)
        return vtrace(c.gamma, c.gae_lambda, c.rho_clip, c.c_clip, ratio, *told, weighted=not self.WEIGHS)

    def _log_prob(self, batch: TensorDict, sequences: TensorDictBase) -> Tensor:
        """The log probability ``[B, T]`` of the actions of entries, by the present policy."""
        with self.optimizer.autocast():
            distribution = self.distribution(batch.get("observation"), batch.get("action_mask", None))
        return distribution.log_prob(batch.get("action"))

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

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        """A batch ``[N]`` as one step takes it: its advantages normalised over all of it, where each step does so."""
        batch = super().for_step(batch)
        return self.with_normalized_advantages(batch) if self.normalizes_steps else batch

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

    def finish(self, sequences: TensorDictBase) -> None:
        super().finish(sequences)
        if self.mates is not None:
            self.mates.forget()

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Negative log likelihood of choices (and numbers beside them); else squared difference to the mean."""
        if self.choices:
            return -self.distribution(observation, mask).log_prob(action).mean()
        return mse_loss(self.actor(observation), action)


def nearly_equal(count: int, size: int) -> list[int]:
    """``count`` in parts of about ``size``, none of them a small remainder whose gradient is mostly noise.

    Every part has two entries, if there are: an advantage by itself cannot be normalised.
    """
    parts = max(1, min(round(count / size), count // 2))
    least, more = divmod(count, parts)
    return [least + 1] * more + [least] * (parts - more)
