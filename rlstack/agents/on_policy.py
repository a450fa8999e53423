"""Agents that learn from fresh data, and what PPO and A2C share: a policy, a value function and advantages."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from rlstack.config.options import (
    RATE,
    Activation,
    Coefficient,
    Count,
    CriticInputs,
    Fraction,
    Gain,
    LearningRate,
    NonNegative,
    Positive,
    Whole,
    layers,
)
from rlstack.config.schedules import make_schedule
from rlstack.config.typed import Interval
from rlstack.data.flatten import COUNTS, whole
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from rlstack.envs.foundation.tensors import looks_are_free, shuffled, unchecked
from rlstack.losses.ppo import PolicyGradientLoss, RNDLoss, estimate, normalized, vtrace
from rlstack.networks.distributions import Choices, Distribution, Gaussian, Hybrid, full_precision
from rlstack.networks.encoders import Trunk, build_plain_encoder, seen_by_actor
from rlstack.networks.values import CentralNetwork, Others, StateNetwork, orthogonal_

from .base import Agent, AgentConfig, AgentPolicy, RecurrentConfig, exploring, named
from .interface import MASK, Interface
from .optimizer import CannotCompile, Compiler, Info, Loss, Optimizer


@dataclass
class OnPolicyConfig(AgentConfig):
    """The options that PPO and A2C share."""

    # networks
    hidden: list[Count] = layers(64, 64)  # hidden widths of policy and value function
    activation: Activation = "tanh"
    shared_layers: Whole = (
        0  # number of first hidden layers that both share, at most all (critic=own); 0: separate networks
    )
    critic_hidden: list[Count] | None = None  # hidden widths of the value function, if they differ from the policy's
    critic: Literal["own", "central"] = "own"
    #   own: sees its agent's observation; central: also sees, in training, those of the others in its world
    critic_inputs: CriticInputs = None
    #   what the critic sees, such as [state] or [observation, state]: a state that the world shows beside the
    #   observation, or keys of a dict observation, which the actor does not see then; null: what the actor sees
    recurrent: RecurrentConfig | None = None
    #   a recurrent core: {kind: lstm, size: 128, layers: 1, sequence_length: 32}, or kind: gru
    orthogonal: bool = True  # orthogonal initial weights with gain sqrt 2, except for the outputs:
    policy_gain: Gain = 0.01  # gain of the policy's output
    value_gain: Gain = 1.0  # gain of the value function's output
    initial_std: Annotated[float, Interval(low=1e-8, high=148.0, why="its logarithm is kept within [-20, 5]")] = 1.0
    #   of Gaussian actions; learned, independent of the state
    greedy: Literal["mode", "sample"] = "mode"
    #   in evaluation: mode: the mean or most probable choice; sample: a sample

    # data
    advantage: Literal["gae", "vtrace"] = "gae"
    #   gae: for data of the present policy; vtrace: corrects for data of older ones (collector=multiasync)
    gae_lambda: Fraction = 0.95  # of generalised advantages, and decay of vtrace's traces
    rho_clip: Positive = 1.0  # advantage=vtrace: bound of the probability ratio that weights an error ...
    c_clip: Positive = 1.0  # ... and of the one that weights later errors
    normalize_advantage: bool = True  # zero mean and unit standard deviation

    # exploration
    rnd: RNDConfig | None = None  # an exploration bonus for novel observations: {coefficient: 1.0}; null: none

    # optimisation
    value_coefficient: NonNegative = 0.5  # weight of the value function's error
    entropy_coefficient: Coefficient = 0.0  # weight of the entropy bonus
    lr: LearningRate = 3.0e-4
    optimizer_eps: Positive = 1.0e-5
    max_grad_norm: Positive | None = 0.5  # null: gradients are not clipped

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_layers > len(self.hidden):
            raise ValueError(f"shared_layers: there are {len(self.hidden)} hidden layers, not {self.shared_layers}")
        if self.critic == "central" and self.shared_layers == len(self.hidden):
            raise ValueError("critic=central needs a hidden layer of its own, give fewer shared_layers")
        if self.symmetry == "augment" and self.critic == "central":
            raise ValueError("symmetry=augment needs critic=own: a central one looks up what others saw")
        if self.shared_layers and self.network:
            raise ValueError("network: networks of yours share no layers with others, give shared_layers=0")
        if self.shared_layers and self.critic_hidden is not None:
            raise ValueError("critic_hidden must be null where layers are shared")
        if self.critic_inputs is not None and self.shared_layers:
            raise ValueError("critic_inputs: a critic with inputs of its own shares no layers, give shared_layers=0")
        if self.critic_inputs is not None and self.critic == "central" and self.recurrent is not None:
            raise ValueError("critic_inputs goes with critic=central or with recurrent, not with both")
        if self.c_clip > self.rho_clip:
            raise ValueError(f"c_clip {self.c_clip} is above rho_clip {self.rho_clip}, give at most that")


LOG_STD_RANGE = (-20.0, 5.0)
"""The range of log standard deviations: for actions in [-1, 1], and wide enough for those without bounds."""


class FromRollouts(Agent):
    """An agent that learns from the data that its present policy has gathered, and then discards them.

    A subclass implements :meth:`rollout`, :meth:`objective` and :meth:`update`, and makes the ``optimizer``.
    """

    config: Any
    optimizer: Optimizer
    row_size = 1
    """The number of decisions in an entry of a batch; above 1 where entries are sequences."""
    LEAST_DECISIONS = 1
    """The smallest number of decisions from which it learns."""
    curiosity: Curiosity | None = None

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c = config
        if getattr(c, "rnd", None) is not None:
            self.curiosity = Curiosity(c.rnd, interface, (c.self_features, c.object_features)).to(device)
            self.networks["curiosity"] = self.curiosity
            self.schedules["lr_predictor"] = make_schedule(c.rnd.lr, total_frames, "agent.rnd.lr", RATE)
            self.scheduled["lr_predictor"] = self.schedules["lr_predictor"](0)
            self.predictor_optimizer = self.add_optimizer("lr_predictor", self.curiosity.predictor, max_grad_norm=None)

    @abstractmethod
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the active decisions of ``[B, T]`` as a flat batch ``[N]``, with all that learning needs."""

    @property
    def objective(self) -> Any:
        """The loss: maps a batch ``[N]`` to a scalar that is a mean over it, and metrics."""
        return self.loss.critic_loss

    @abstractmethod
    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes the updates on one :meth:`rollout`."""

    def epochs(
        self, batch: TensorDictBase, generator: torch.Generator | None = None
    ) -> Iterator[tuple[TensorDictBase, list[int]]]:
        """Yields a batch ``[N]`` in a new random order for each epoch, and the sizes of the minibatches in it.

        All processes that learn together get equally many entries. A batch of too few decisions yields nothing.

        Args:
            generator: draws the order; None for the global one.
        """
        c, rows = self.config, self.least(len(batch))
        if rows * self.row_size < self.LEAST_DECISIONS:
            return
        sizes = self.minibatch_sizes(rows, max(c.minibatch_size // self.row_size, 1))
        for _ in range(c.epochs):
            yield batch[shuffled(len(batch), self.device, generator)[:rows]], sizes

    def minibatch_sizes(self, rows: int, size: int) -> list[int]:
        """Splits ``rows`` entries into parts of about ``size``, with no small remainder whose gradient is mostly noise.

        Every part has at least two entries if there are two: a single advantage cannot be normalised.
        """
        parts = max(1, min(round(rows / size), rows // 2))
        least, more = divmod(rows, parts)
        return [least + 1] * more + [least] * (parts - more)

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns a batch ``[N]`` as one step takes it: with its mirror image appended if enabled, ``[2 N]``."""
        if self.config.symmetry == "augment":
            plain = batch.exclude("image")
            image = batch.get("image").select(*plain.keys(), strict=False)
            batch = torch.cat((plain, plain.copy().update(image)))
        return self._weighted(batch)

    def _weighted(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns a batch ``[N]`` with the weights in a mean of those of its entries that count, if not all do."""
        counts = batch.get(COUNTS, None)
        if counts is None:
            return batch
        number = counts.sum(dtype=self.interface.dtype).clamp(min=1)
        return batch.copy().set("priority_weight", counts * (len(batch) / number))

    def image(self, sequences: TensorDictBase, action: Tensor) -> dict[str, Any]:
        """Returns the mirror images of the entries ``[B, T]`` of a rollout if enabled, for :meth:`for_step`.

        Args:
            action: actions of the entries, in the agent's form.
        """
        if self.config.symmetry != "augment":
            return {}
        decisions = sequences.select("observation", MASK, strict=False).set("action", action)
        image = self.mirroring.image(decisions)
        image["observation"] = self.normalized(image["observation"])
        return {"image": TensorDict(image, sequences.batch_size)}

    def can_learn(self, sequences: TensorDictBase) -> bool:
        """Returns whether an update on these data is possible."""
        return True

    def _decisions(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the active decisions among entries ``[B, T]`` as a flat batch ``[N]``.

        On a GPU, where their number is not known, all are returned, see :func:`~rlstack.data.flatten.whole`.
        """
        if self.interface.group is None or looks_are_free(self.device):
            return self._kept(entries, sequences)
        return whole(entries, sequences.get("active"))

    def learn(self, sequences: TensorDictBase, frames: int | Tensor) -> dict[str, Tensor | float]:
        unread = frames if isinstance(frames, Tensor) and self.follows_tensors else None
        if unread is None:
            self.set_frames(int(frames))
        sequences = self.with_critic_inputs(sequences)
        return self.recorded(self._learn_from, "learning from a batch")(sequences, unread)

    def _learn_from(self, sequences: TensorDictBase, frames: Tensor | None) -> dict[str, Tensor | float]:
        if frames is not None:
            self.follow(frames)
        metrics = self.update(self.rollout(sequences)) if self.can_learn(sequences) else {}
        if self.curiosity is not None:
            shown = TensorDict({"observation": sequences.get(("next", "observation"))}, sequences.batch_size)
            seen = self._decisions(shown, sequences)

            def minimize(loss: Loss, batch: TensorDictBase) -> tuple[Tensor, Tensor, Info]:
                return self.predictor_optimizer.minimize(loss, self._weighted(batch))

            metrics |= self.curiosity.learn(seen, self.least(len(seen)), minimize)
        self.finish(sequences)
        return metrics

    def finish(self, sequences: TensorDictBase) -> None:
        """Updates the normaliser, only after the updates: the data's log probabilities belong to the old statistics."""
        if self.normalizer is not None:
            self.normalize_by(*self._observations(sequences.get("observation"), sequences))

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        return self.update(self.rollout(self.with_critic_inputs(sequences)))

    def scaled_reward(self, sequences: TensorDictBase) -> Tensor:
        """Returns the rewards ``[B, T, 1]`` of new data, divided by the std of returns and with a bonus if enabled."""
        reward: Tensor = sequences.get(("next", "reward"))
        if self.reward_scaler is not None:
            self.reward_scaler.update(sequences, everyone=self.interface.group is None)
            reward = self.reward_scaler(reward)
        if self.curiosity is None:
            return reward
        seen = self._observations(sequences.get(("next", "observation")), sequences)
        return reward + self.curiosity.bonus(sequences, *seen)

    def expected_updates(self) -> float:
        c = self.config
        known = hasattr(c, "epochs") and hasattr(c, "minibatch_size")
        return self.total_frames * c.epochs / c.minibatch_size if known else 0.0

    def compile(self, compiler: Compiler) -> None:
        super().compile(dataclasses.replace(compiler, varying=not compiler.graphs))
        self.follows_tensors = compiler.graphs


def minibatches(
    epochs: Iterable[tuple[TensorDictBase, list[int]]], dim: int = 0
) -> Iterator[tuple[TensorDictBase, bool]]:
    """Yields every minibatch of :meth:`FromRollouts.epochs`, and whether it is the last of its epoch.

    Args:
        dim: the dimension that is split.
    """
    for shuffled_batch, sizes in epochs:
        for left, part in zip(reversed(range(len(sizes))), shuffled_batch.split(sizes, dim)):
            yield part, left == 0


class OnPolicy(FromRollouts):
    """An agent with a policy and a value function, which learns from the advantages of fresh data."""

    OPTIMIZER = "adam"
    ACTIONS: tuple[str, ...] = ("vector", "choice", "choices", "hybrid")
    WEIGHS = False
    """Whether the loss itself multiplies advantages by the probability ratio of learner and acting policy."""

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        c, hybrid = config, interface.hybrid
        # Whether each step normalises the advantages of its own batch.
        self.normalizes_steps = c.normalize_advantage and getattr(c, "normalize_over", "minibatch") == "minibatch"
        self.choices = interface.choices if hybrid is None else hybrid.counts
        self.numbers = hybrid.numbers if hybrid else 0 if self.choices else interface.action.shape[-1]
        outputs = self.numbers + sum(self.choices or ())
        shared = Trunk(self.encoder("actor"), c.hidden[: c.shared_layers], c.activation) if c.shared_layers else None
        actor = self.own_network("actor", outputs) or StateNetwork(
            shared or self.encoder("actor"), outputs, c.hidden[c.shared_layers :], c.activation
        )
        others, hidden = interface.agents - 1, c.critic_hidden or c.hidden[c.shared_layers :]
        if c.critic == "central" and others:
            critic: Any = CentralNetwork(shared or self.encoder("critic"), hidden, others, c.activation)
        else:
            critic = self.own_network("critic", 1)
            critic = critic or StateNetwork(shared or self.encoder("critic"), 1, hidden, c.activation)
        if c.orthogonal:
            for network, gain in ((actor, c.policy_gain), (critic, c.value_gain)):
                if isinstance(network, StateNetwork):  # a user's network keeps its initial weights
                    orthogonal_(network, gain)
        if self.numbers:
            actor.register_parameter("log_std", nn.Parameter(torch.full((self.numbers,), math.log(c.initial_std))))
        self.actor, self.critic = self.add_network("actor", actor), self.add_network("critic", critic)
        self.others = Others(critic, interface.agents) if isinstance(critic, CentralNetwork) else None
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
            self.optimizer.bounds.append((self.actor.log_std, *LOG_STD_RANGE))

    # -- acting --------------------------------------------------------------------------------------------------

    def distribution(self, observation: Any, mask: Tensor | None = None) -> Distribution:
        """Returns the distribution of actions for a normalised observation."""
        return self._distribution(self.actor(observation), mask)

    def _distribution(self, out: Tensor, mask: Tensor | None) -> Distribution:
        if not self.numbers:
            return Choices(out, self.choices or (), mask)
        numbers = Gaussian(full_precision(out[..., : self.numbers]), self.actor.log_std)
        return Hybrid(numbers, Choices(out[..., self.numbers :], self.choices, mask)) if self.choices else numbers

    def policy_and_value(self, batch: TensorDictBase) -> tuple[Distribution, Tensor]:
        """Returns distribution and values ``[N]`` for normalised observations ``[N]``; shared layers run only once."""
        observation, mask = batch.get("observation"), batch.get("action_mask", None)
        if not self.config.shared_layers:
            return self.distribution(observation, mask), self._value(self.critic.encoder(observation), batch)
        features = self.actor.encoder(observation)
        return self._distribution(self.actor.head(features), mask), self._value(features, batch)

    def _value(self, features: Tensor, batch: TensorDictBase) -> Tensor:
        """Returns the values ``[N]`` of the encoded observations of a batch ``[N]``."""
        if self.others is not None:
            others = batch.get("others", None)  # where sequences were unrolled, with those of all agents
            others = self.others.seen(batch.get("place")) if others is None else others
            features = torch.cat((features, others), -1)
        return self.critic.head(features).squeeze(-1)

    def compile(self, compiler: Compiler) -> None:
        if self.others is not None:
            if compiler.compiles and not compiler.graphs:
                raise CannotCompile("agent.critic=central looks up what others see")
            compiler = dataclasses.replace(compiler, compiles=False)
        super().compile(compiler)

    def policy(self, explore: bool | None = None) -> AgentPolicy:
        def chooser(explores: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
            def choose(observation: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
                # Explores in the precision in which it learns: the ratio of a policy to itself must be one.
                with self.optimizer.autocast(explores):
                    distribution = self.distribution(self.normalized(observation), mask)
                sampled = explores or self.config.greedy == "sample"
                raw = distribution.sample() if sampled else distribution.mode()
                return raw, None if explore is False else distribution.log_prob(raw)

            return self.compiled(choose) if explores else choose

        choosers = {explores: chooser(explores) for explores in (False, True)}

        def act(observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
            raw, log_prob = choosers[exploring(explore)](observation, mask)
            # The choices of a hybrid action are whole numbers; its own conversion clips the other numbers.
            acted = {"action": self.interface.to_env(raw if self.choices else raw.clamp(-1, 1))}
            if log_prob is not None:
                acted["log_prob"] = log_prob
                if self.numbers:
                    acted["raw_action"] = raw
            return acted

        extras = () if explore is False else ("log_prob", *(("raw_action",) if self.numbers else ()))
        return AgentPolicy(self, act, extras, explore)

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        if self.others is not None:  # what a central critic sees of others is gone after an update
            return None
        seen = self.with_critic_inputs(sequences).get("observation")
        return self.critic(self.normalized(seen))[..., 0]

    def log_ratios(self, sequences: TensorDictBase) -> Tensor | None:
        if self.others is not None or "log_prob" not in sequences.keys():  # noqa: SIM118
            return None
        taken = sequences.get("raw_action", None)
        action = self.interface.from_env(sequences.get("action")) if taken is None else taken
        entries = {"observation": self.normalized(sequences.get("observation")), "action": action}
        if (mask := sequences.get("action_mask", None)) is not None:
            entries["action_mask"] = mask
        batch = TensorDict(entries, sequences.batch_size)
        return self._log_prob(batch, sequences) - sequences.get("log_prob")

    # -- data ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the active decisions as a flat batch ``[N]``.

        Its entries are ``observation`` (scaled), ``action`` (before clipping), ``log_prob``, ``value``, ``advantage``
        and ``return``, all ``[N]``; ``action_mask`` where the env has one, and for a central critic ``place`` (see
        :class:`Others`).
        """
        observation = self.normalized(sequences.get("observation"))
        place = None if self.others is None else self.others.begin(observation, sequences.get("active"))
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
        estimated = value, next_value, reward, following.get("done"), following.get("terminated")
        c = self.config
        if c.advantage == "gae":
            advantage, target = estimate(c.gamma, c.gae_lambda, *estimated)
        else:  # weights each advantage by the probability ratio of its action, unless the loss does
            ratio = self._log_prob(batch, sequences) - batch.get("log_prob")
            ratio = torch.where(sequences.get("active"), ratio, 0.0).unsqueeze(-1)
            bounds = c.gae_lambda, c.rho_clip, c.c_clip
            advantage, target = vtrace(c.gamma, *bounds, ratio, *estimated, weighted=not self.WEIGHS)
        return self._batch(batch.set("advantage", advantage[..., 0]).set("return", target[..., 0]), sequences)

    def _log_prob(self, batch: TensorDict, sequences: TensorDictBase) -> Tensor:
        """Returns the log probabilities ``[B, T]`` of the actions of entries under the present policy."""
        with self.optimizer.autocast():
            distribution = self.distribution(batch.get("observation"), batch.get("action_mask", None))
        return distribution.log_prob(batch.get("action"))

    def _batch(self, entries: TensorDict, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the batch to learn from, made from entries ``[B, T]``."""
        return self._decisions(entries, sequences)

    def _values(self, observation: Any, sequences: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Returns the values ``[B, T, 1]`` of all (scaled) observations ``[B, T]`` and of those that follow them."""
        value = self.critic(observation) if self.others is None else self.others.values()
        return value, self._next_values(value, sequences)

    def _next_values(
        self, value: Tensor, sequences: TensorDictBase, encoded: Callable[[Any], Tensor] | None = None
    ) -> Tensor:
        """Returns the values of the true next states: the next entry's, or new ones where a sequence or episode ends.

        Args:
            encoded: maps an index of decisions to the encodings of the observations that follow them, where a central
                critic has these already.
        """
        following = sequences.get("next")

        def seen(index: Any) -> Any:
            return self.normalized(following.get("observation")[index])

        ends = following.get("done")[..., 0] & ~following.get("terminated")[..., 0]
        ends[:, -1:].fill_(True)
        following_value = torch.cat((value[:, 1:], value[:, -1:]), 1)
        everywhere = encoded is None and not looks_are_free(value.device)  # to select some would wait
        chosen: Any = slice(None) if everywhere else ends
        if self.others is None:
            values = self.critic(seen(chosen))
        else:
            encoded = encoded or (lambda index: self.critic.encoder(seen(index)))
            values = self.others.values_after(sequences, None if everywhere else ends, encoded)
        if everywhere:
            return torch.where(ends.unsqueeze(-1), values, following_value)
        following_value[ends] = values
        return following_value

    # -- learning ------------------------------------------------------------------------------------------------

    @abstractmethod
    def make_loss(self, **options: Any) -> PolicyGradientLoss:
        """Returns the algorithm's loss; ``options`` are those common to all such losses."""

    @property
    def objective(self) -> Any:
        return self.loss.total_loss

    def plain_objective(self, batch: TensorDictBase) -> tuple[Tensor, Info]:
        """Returns the objective without its report, which is not needed for most minibatches."""
        return self.objective(batch, report=False)

    def metrics(self, loss: Tensor, norm: Tensor, info: Info) -> dict[str, Tensor | float]:
        """Returns the metrics of one step, among them everything that the loss reports."""
        names = {"policy": "loss/policy", "value": "loss/value"}
        return {"loss/total": loss, "grad/all": norm, **named(info, names, "policy")}

    def refresh(self) -> None:
        super().refresh()
        for name in self.loss.SCHEDULED:
            if name in self.schedules and getattr(self.loss, name) is not (value := self.scheduled_value(name)):
                setattr(self.loss, name, value)

    def for_step(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns a batch ``[N]`` as one step takes it: with its advantages normalised if it is to be."""
        batch = super().for_step(batch)
        return self.with_normalized_advantages(batch) if self.normalizes_steps else batch

    def with_normalized_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        """Returns the batch with advantages of zero mean and unit standard deviation; a single one is unchanged."""
        if len(batch) < 2:
            return batch
        counts = batch.get(COUNTS, None)
        entries = {**dict(batch.items()), "advantage": normalized(batch.get("advantage"), counts)}
        return unchecked(entries, batch_size=batch.batch_size, device=batch.device)

    def finish(self, sequences: TensorDictBase) -> None:
        super().finish(sequences)
        if self.others is not None:
            self.others.forget()

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Negative log likelihood for choices and hybrid actions; otherwise squared difference from the mean."""
        if self.choices:
            return -self.distribution(observation, mask).log_prob(action).mean()
        return mse_loss(self.actor(observation), action)


@dataclass(frozen=True)
class RNDConfig:
    """Exploration by random network distillation (Burda et al. 2018).

    Attributes:
        coefficient: weight of the bonus, which is added to the reward; its discounted sum is scaled to a standard
            deviation of 1.
        gamma: discount of that sum.
        features: number of features of an observation that are predicted.
        hidden: widths of the hidden layers of both networks.
        lr: learning rate of the predictor.
    """

    coefficient: NonNegative = 1.0
    gamma: Fraction = 0.99
    features: Count = 32
    hidden: list[Count] = field(default_factory=lambda: [64, 64])
    lr: LearningRate = 3.0e-4

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden [] has no layers, give one width at least")


BATCH = 256
"""The number of observations in one step of the predictor."""


class Curiosity(nn.Module):
    """Exploration by random network distillation (Burda et al. 2018): novel observations earn a bonus reward.

    Two things are simpler than published: the bonus is added to the reward, so that one value function learns their sum
    (theirs has two, and the bonus's continues past the ends of episodes), and the predictor makes one pass over new
    data.

    Args:
        config: options of the bonus.
        interface: the env as the agent sees it.
        widths: width of the encoding of the agent itself, or of an image; widths of the layers applied to each object.
    """

    def __init__(self, config: RNDConfig, interface: Interface, widths: tuple[int, list[int]]) -> None:
        super().__init__()
        self.config, self.everyone = config, interface.group is None

        def network() -> StateNetwork:
            encoder = build_plain_encoder(interface.observation, *widths)
            return StateNetwork(encoder, config.features, config.hidden).to(interface.dtype)

        self.loss = RNDLoss(network(), network())
        self.predictor, self.target = self.loss.predictor, self.loss.target_features
        self.statistics = ObservationNormalizer(interface.observation)
        self.scaler, self.mean_bonus = RewardScaler(config.gamma), torch.zeros(())

    @torch.no_grad()
    def bonus(self, sequences: TensorDictBase, seen: Any, counts: Tensor | None) -> Tensor:
        """Returns the bonus ``[B, T, 1]`` for the observations that the decisions of new data ``[B, T]`` led to.

        Args:
            seen: next observations ``[N]``, with which the statistics are updated.
            counts: which of them are of active agents, ``[N]`` bool; None: all.
        """
        self.statistics.update(seen_by_actor(seen), counts)
        following = sequences.get("next")
        shown = self.statistics(seen_by_actor(following.get("observation")))
        novel = TensorDict({"observation": shown}, sequences.batch_size)
        novelty = self.loss.distance(novel).unsqueeze(-1).to(following.get("reward").dtype)
        never = torch.zeros_like(following.get("done"))
        flow = TensorDict({"reward": novelty, "done": never}, sequences.batch_size)
        bonuses = TensorDict({"next": flow, "active": sequences.get("active")}, sequences.batch_size)
        self.scaler.update(bonuses, everyone=self.everyone)
        bonus, there = self.config.coefficient * self.scaler(novelty), sequences.get("active").unsqueeze(-1)
        self.mean_bonus = (bonus * there).sum() / there.sum().clamp(min=1)
        return bonus

    def learn(self, batch: TensorDictBase, rows: int, minimize: Any) -> dict[str, Tensor | float]:
        """Trains the predictor in one pass over a batch ``[N]`` of new observations.

        Args:
            rows: number of them to learn from, drawn at random; equal in all processes that learn together.
            minimize: makes one step on a loss and a batch, see ``Optimizer.minimize``.
        """
        if not rows:
            return {}
        metrics: dict[str, Tensor | float] = {"reward/bonus": self.mean_bonus}
        batch = batch.copy().set("observation", self.statistics(seen_by_actor(batch.get("observation"))))
        for part in batch[shuffled(len(batch), self.mean_bonus.device)[:rows]].split(BATCH):
            metrics["loss/predictor"] = minimize(self.loss.predictor_loss, part)[0]
        return metrics
