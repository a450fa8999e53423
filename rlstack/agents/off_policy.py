"""Agents with a replay buffer: they act at random at first, store data, update, and move their targets.

A new algorithm subclasses :class:`OffPolicy`, or :class:`ActorCritic` for an actor and critics, or :class:`ValueBased`
for values of choices; see the README of this folder.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchrl.data.replay_buffers import Sampler

from rlstack.config.options import (
    Count,
    CriticInputs,
    LearningRate,
    PerUpdate,
    Positive,
    Probability,
    ReplayConfig,
    Squash,
    Steps,
    Tau,
    Whole,
    layers,
    linear,
)
from rlstack.config.typed import Interval
from rlstack.data.flatten import STAYS, NStep, NStepWindows, transitions
from rlstack.data.recordings import in_rows
from rlstack.data.replay import make_replay, usable_device
from rlstack.losses.retrace import greedy_returns
from rlstack.networks.actors import DeterministicActor
from rlstack.networks.own import OwnDeterministicActor
from rlstack.networks.values import ActionValue, BatchNorm, batch_normalized, renormalized, running_statistics

from .base import Agent, AgentConfig, Choosing, RecurrentConfig, critic_metrics, flat
from .interface import Interface
from .optimizer import Info, Optimizer


@dataclass(frozen=True)
class ReplayedConfig(RecurrentConfig):
    """The recurrent core of an agent that learns from replayed sequences.

    Attributes:
        burn_in: number of steps before each sequence that only bring its first recurrent state up to date.
    """

    burn_in: Annotated[int, Interval(low=0, high=10_000, why="steps of an episode")] = 0


@dataclass
class OffPolicyConfig(AgentConfig):
    """The options of every agent with a replay buffer."""

    # targets
    n_step: Steps = 1  # rewards summed before bootstrapping
    target_tau: Tau = 0.005
    #   target <- tau network + (1 - tau) target
    target_every: Count | None = None  # frames between target updates, null: after every update

    # replay and cadence
    batch_size: Count = 256  # transitions per update
    buffer_size: Count = 200_000  # transitions
    replay_device: str | None = None  # device of the replay buffer; null: the learner's; cpu saves GPU memory
    replay: ReplayConfig = field(default_factory=ReplayConfig)  # where transitions are stored, and how they are sampled
    priority_exponent: Annotated[float, Interval(low=0, high=10)] = 0.6  # of sampler=prioritized, 0: uniform
    importance_exponent: Probability = linear(0.4, 1.0)  # of the weights that correct for it
    random_frames: Whole = 0  # frames of uniform random actions at the start
    learning_starts: Whole = 1000  # frames before the first update
    frames_per_update: PerUpdate = 1  # frames per gradient step; 0.5 means two updates per frame

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay.directory is not None and self.replay.storage != "LazyMemmapStorage":
            raise ValueError("replay.directory is for replay.storage=LazyMemmapStorage, give null")
        if self.batch_size > self.buffer_size:
            raise ValueError(f"batch_size {self.batch_size} is larger than buffer_size {self.buffer_size}")
        if self.n_step > self.buffer_size:
            raise ValueError(f"n_step {self.n_step} is more than buffer_size {self.buffer_size} holds")


@dataclass
class ValueBasedConfig(OffPolicyConfig):
    """The options that DQN, QR-DQN, IQN and Rainbow share."""

    # networks
    hidden: list[Count] = layers(128, 128)
    layer_norm: bool = False  # in every hidden layer: keeps the values of rarely chosen actions bounded

    # targets
    target_tau: Tau = 1.0
    target_every: Count | None = 500
    batch_size: Count = 64
    buffer_size: Count = 100_000
    steps_per_batch: Count = 4
    frames_per_update: PerUpdate = 4

    # optimisation
    lr: LearningRate = 5.0e-4
    max_grad_norm: Positive | None = 10.0  # null: gradients are not clipped

    # exploration
    epsilon: Probability = linear(1.0, 0.05, duration=0.1)  # probability of a uniform random action

    # targets
    correction: Literal["none", "retrace"] = "none"
    #   of n-step returns for actions that the greedy policy would not take: none | retrace (Munos et al. 2016)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.correction == "retrace" and self.n_step == 1:
            raise ValueError("correction=retrace corrects returns of several steps, n_step is 1")
        if self.correction == "retrace" and getattr(self, "recurrent", None) is not None:
            raise ValueError("correction=retrace is for agents without a recurrent core, recurrent must be null")


@dataclass
class CriticsConfig(OffPolicyConfig):
    """The options of agents whose critics evaluate continuous actions."""

    # networks
    critic_inputs: CriticInputs = None
    #   what the critic sees, such as [state] or [observation, state]: a state that the world shows beside the
    #   observation, or keys of a dict observation, which the actor does not see then; null: what the actor sees
    critic_hidden: list[Count] | None = None  # hidden widths of the critics, if they differ from the actor's
    layer_norm: bool = False  # in the critics
    join: Literal["concat", "gated"] = "concat"
    #   concat: the action joins the encoded observation; gated: it multiplies a hidden layer
    critic_norm: Literal["none", "batch"] = "none"
    #   batch: batch renormalisation in the critics in the place of target networks (CrossQ, Bhatt et al. 2024)
    weight_norm: bool = False  # keeps the weights of each hidden unit of the critics at norm 1
    recurrent: ReplayedConfig | None = None
    #   recurrent cores: {kind: lstm, size: 128, layers: 1, sequence_length: 32, burn_in: 0}, or kind: gru
    squash: Squash = "tanh"  # tanh | arctan

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_norm and self.critic_norm == "none" and not self.layer_norm:
            raise ValueError("weight_norm needs layers that are normalised: critic_norm=batch or layer_norm=true")
        if self.names_critic:
            for name in ("critic_hidden", "layer_norm", "join", "critic_norm", "weight_norm"):
                if (value := getattr(self, name)) != getattr(CriticsConfig, name):
                    raise ValueError(f"{name}={value} is for critics of ours, network may name no critic")
        if self.critic_norm == "none":
            return
        norm = f"critic_norm={self.critic_norm}"
        if self.recurrent is not None:
            raise ValueError(f"{norm} is for critics without a recurrent core, recurrent must be null")
        if self.layer_norm:
            raise ValueError(f"{norm} is in the place of layer_norm, give layer_norm=false")
        if self.join == "gated":
            raise ValueError(f"{norm} needs join=concat")
        if self.critic_norm != "batch":
            return
        if self.target_every is not None:
            raise ValueError("critic_norm=batch has no target networks, target_every must be null")
        if self.target_tau != OffPolicyConfig.target_tau:
            raise ValueError("critic_norm=batch has no target networks, leave out target_tau")


class OffPolicy(Agent):
    """An agent that learns from a replay buffer.

    A subclass implements :meth:`build`, :meth:`exploit`, :meth:`explore` and :meth:`update`.

    Attributes:
        cycle: number of updates per step of the actor, where the actor is not updated each time.
    """

    config: Any

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        self.replay = self.make_replay()
        takes_errors = getattr(type(self._sampler), "update_priority", Sampler.update_priority)
        self.prioritized = takes_errors is not Sampler.update_priority
        if not hasattr(self._sampler, "beta"):
            for known in (self.schedules, self.scheduled):
                known.pop("importance_exponent", None)
        self.n_step = self.make_n_step()
        self._frames_due, self._next_target_update = 0.0, config.target_every or 0
        self.cycle = getattr(config, "actor_every", 1)
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Makes networks, loss, targets and optimisers, see ``add_network``, ``add_target`` and ``add_optimizer``."""

    def make_replay(self, steps: int = 1) -> Any:
        """Returns a replay buffer as ``config.replay`` specifies, of transitions or of sequences of ``steps``."""
        c = self.config
        device = c.replay_device
        where = None if device is None else usable_device(device, "agent.replay_device", "null, cpu, cuda, cuda:<k>")
        options = {"alpha": c.priority_exponent, "steps": steps, **asdict(c.replay)}
        return make_replay(c.buffer_size, c.batch_size, self.device, where, **options)

    def make_n_step(self, carry: bool = True) -> NStep:
        """Returns the object that makes n-step transitions of new data, see :class:`NStep`."""
        return NStep(self.config.n_step, self.config.gamma, carry)

    # -- acting --------------------------------------------------------------------------------------------------

    @abstractmethod
    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns greedy actions for an observation ``[...]``, in the agent's form (see ``imitation_loss``)."""

    @abstractmethod
    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns exploring actions for an observation ``[...]``, in the agent's form."""

    # -- learning ------------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes one gradient step of every network on a batch ``[N]`` of :meth:`prepared` transitions."""

    def learn(self, sequences: TensorDictBase, frames: int | Tensor) -> dict[str, Tensor | float]:
        c, sequences, frames = self.config, self.with_critic_inputs(sequences), int(frames)
        if self.normalizer is not None:
            self.normalize_by(*self._observations(sequences.get("observation"), sequences))
        if self.reward_scaler is not None:
            self.reward_scaler.update(sequences, everyone=self.interface.group is None)
        self.extend(sequences)
        self._frames_due += frames - self.frames
        self.set_frames(frames)
        if frames < c.learning_starts or self.least(len(self.replay)) < c.batch_size:
            self._frames_due = 0.0
            return {}
        metrics: dict[str, Tensor | float] = {}
        # Where the replay buffer lies where the agent learns, drawing from it is part of a recording.
        here = getattr(self.replay, "direct", False) and self.replay.storage.device == self.clock.device
        update = self.recorded(self._sample_and_update, "the update") if here else self._sample_and_update
        while self._frames_due >= c.frames_per_update:
            self._frames_due -= c.frames_per_update
            moves = self._targets_due(int(frames - self._frames_due))
            metrics |= update(self.updates % self.cycle, moves)  # of the last update that has each
        return metrics

    def _sample_and_update(self, _turn: int, moves: bool) -> dict[str, Tensor | float]:
        """Makes an update on a new sample, and moves the targets if they are due."""
        metrics = self.update(self.prepared(self.sample()))
        self.updates += 1
        if moves:
            self.move_targets()
        return metrics

    def phase(self) -> bool:
        return bool(self.frames < self.config.random_frames)

    def expected_updates(self) -> float:
        return max(self.total_frames - self.config.learning_starts, 0) / self.config.frames_per_update

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        own = self._clipped(self._own(sequences))
        return self.update(self.prepared(self._transitions(self.make_n_step(carry=False)(own))))

    def extend(self, sequences: TensorDictBase) -> None:
        """Puts new data into the replay buffer."""
        self.replay.extend(self._transitions(self.n_step(self._clipped(self._own(sequences)))))

    def load_data(self, recorded: TensorDictBase, seen: bool = False) -> None:
        """Replaces the contents of the replay buffer with recorded transitions ``[N]``.

        Args:
            recorded: see :class:`rlstack.training.recorded.RecordedTransitions`; n-step returns are computed from them.
            seen: whether the running statistics have already been updated with them.
        """
        c, data = self.config, recorded.to(self.device).copy()
        following = data.get("next")
        ended = following.get("terminated") | following.get("truncated")
        data.set("next", following.exclude("truncated").set("done", ended))
        data = self.with_critic_inputs(data)
        if not seen:
            self.normalize_by(data.get("observation"))
        if self.reward_scaler is not None and not seen:
            self.reward_scaler.update(in_rows(data))
            self.reward_scaler.returns = self.reward_scaler.returns.new_zeros(0)
        sequences = data.unsqueeze(0)
        if "gamma" not in data.keys():  # noqa: SIM118
            sequences = NStep(c.n_step, c.gamma, carry=False)(self._clipped(sequences))
        c.buffer_size = max(len(data), c.batch_size)
        self.replay = self.make_replay()
        self.replay.extend(transitions(self._own(sequences), everyone=True))

    def sample(self) -> TensorDictBase:
        """Draws a batch from the replay buffer."""
        if "importance_exponent" in self.schedules:
            self._sampler.beta = self.scheduled_value("importance_exponent")
        batch = self.replay.sample()
        if self.prioritized and "priority_weight" not in batch.keys():  # noqa: SIM118
            batch.set("priority_weight", torch.ones_like(batch.get("index"), dtype=self.interface.dtype))
        return batch

    @property
    def _sampler(self) -> Any:
        return getattr(self.replay, "sampler", self.replay)  # a replay of one's own may draw by itself

    def reprioritize(self, batch: TensorDictBase, info: Info) -> None:
        """Updates the priorities of a batch's entries with their errors, if the replay buffer is prioritised."""
        if self.prioritized and "index" in batch.keys():  # noqa: SIM118
            self.replay.update_priority(batch.get("index"), info["td_error"])

    def prepared(self, batch: TensorDictBase) -> TensorDictBase:
        """Prepares transitions for the losses: mirrors them at random if enabled, scales observations and rewards."""
        if self.config.symmetry == "augment":
            batch = self.mirroring.at_random(batch)
        if self.normalizer is None and self.reward_scaler is None:
            return batch
        batch, following = batch.copy(), batch.get("next").copy()
        batch.set("observation", self.normalized(batch.get("observation")))
        following.set("observation", self.normalized(following.get("observation")))
        if self.reward_scaler is not None:
            following.set("reward", self.reward_scaler(following.get("reward"), clip=not self._sums))
        return batch.set("next", following)

    @property
    def _sums(self) -> bool:
        """Whether the replay buffer holds sums of rewards."""
        return type(self.n_step) is NStep and self.config.n_step > 1

    def _clipped(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns sequences with the rewards that are to be summed clipped one by one, where rewards are normalised."""
        if self.reward_scaler is None or not self._sums:
            return sequences
        following = sequences.get("next").copy()
        following.set("reward", self.reward_scaler.clipped(following.get("reward")))
        return sequences.copy().set("next", following)

    def _transitions(self, sequences: TensorDictBase) -> TensorDictBase:
        return transitions(sequences, everyone=self.interface.group is None)

    def _own(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns the sequences with actions in the agent's form, without entries that it does not learn from."""
        sequences = self.with_critic_inputs(sequences)
        if self.interface.group is not None:
            sequences = sequences.exclude(STAYS)
        if self.interface.as_is:
            return sequences
        return sequences.copy().set("action", self.interface.from_env(sequences.get("action")))

    def _targets_due(self, frames: int) -> bool:
        """Returns whether the targets move after the update that is due at ``frames``."""
        every = self.config.target_every
        if every is not None:
            if frames < self._next_target_update:
                return False
            self._next_target_update = (frames // every + 1) * every
        return True

    def move_targets(self) -> None:
        """Moves every target one step towards its network."""
        for target in self.targets.values():
            target.update()

    # -- checkpoint ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        ours = {"frames_due": self._frames_due, "next_target_update": self._next_target_update}
        return {**super().state_dict(), **ours, "n_step": self.n_step.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._frames_due, self._next_target_update = state["frames_due"], state["next_target_update"]
        self.n_step.load_state_dict(state["n_step"], self.device)

    def begin_episodes(self) -> None:
        super().begin_episodes()
        self.n_step.clear()


class ActorCritic(OffPolicy):
    """An agent with an actor of continuous actions and critics that train it.

    A subclass implements :meth:`build`, which sets ``self.actor``, ``self.loss`` (with ``critic_loss`` and
    ``actor_loss``) and both optimisers, and :meth:`exploit` and :meth:`explore`.
    """

    CRITICS: tuple[str, ...] = ("critic_1", "critic_2")
    ACTIONS: tuple[str, ...] = ("vector",)
    actor: Any
    actor_optimizer: Optimizer
    critic_optimizer: Optimizer
    _running: list[Tensor] | None = None
    """The running statistics of critics that normalise over the batch."""

    def deterministic_actor(self, layer_norm: bool = False) -> nn.Module:
        """Returns a new actor of deterministic actions: the user's with squashed outputs, if one is named."""
        c, size = self.config, self.interface.action.shape[-1]
        if own := self.own_network("actor", size, kind=OwnDeterministicActor, squash=c.squash):
            return own
        actor = DeterministicActor(self.encoder("actor"), size, c.hidden, c.squash, layer_norm, c.activation)
        with torch.no_grad():
            actor.output.weight.mul_(c.output_scale)
        return actor

    def continuous_critic(self, outputs: int = 1) -> nn.Module:
        """Returns a new critic of an observation and a vector of actions: the user's, if one is named."""
        c, size = self.config, self.interface.action.shape[-1]
        own = self.own_network("critic", outputs, actions=size)
        shape = (c.critic_hidden or c.hidden, c.activation, c.layer_norm, c.join, outputs)
        critic = own or ActionValue(self.encoder("critic"), size, *shape)
        if c.critic_norm == "batch_targets":
            return batch_normalized(critic)
        return renormalized(critic, c.critic_norm == "batch")

    def follow_and_optimize(self, target_actor: bool = True) -> None:
        """Makes targets and optimisers for the networks ``actor`` and :attr:`CRITICS`."""
        c = self.config
        if c.critic_norm != "batch":
            if target_actor:
                self.add_target("actor", self.loss.target_actor, c.target_tau)
            for name, target in zip(self.CRITICS, self.loss.target_critics):
                self.add_target(name, target, c.target_tau)
                for layer in target.modules():
                    if isinstance(layer, BatchNorm):
                        layer.momentum = 0.0  # targets have statistics of batches alone
        critics: list[Any] = [self.networks[name] for name in self.CRITICS]
        self.actor_optimizer = self.add_optimizer("lr_actor", self.actor, max_grad_norm=c.max_grad_norm)
        self.critic_optimizer = self.add_optimizer("lr_critic", *critics, max_grad_norm=c.max_grad_norm)
        if c.weight_norm:
            layers = [layer for critic in critics for layer in critic.trunk if isinstance(layer, nn.Linear)]
            if getattr(c, "critic", None) == "categorical":
                layers += [critic.output for critic in critics]
            self.critic_optimizer.keep_unit([layer.weight for layer in layers])
            for target in self.targets.values():  # which were copied before
                target.copy()
        self._running = [value for critic in critics for value in running_statistics(critic)]

    @property
    def critic_objective(self) -> Any:
        """The loss of the critics: maps a batch ``[N]`` to a scalar that is a mean over it, and metrics."""
        return self.loss.critic_loss

    @property
    def actor_objective(self) -> Any:
        """The same for the actor."""
        return self.loss.actor_loss

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes one critic step, then one actor step against the new critic."""
        loss, norm, info = self.critic_optimizer.minimize(self.critic_objective, batch)
        if self._running and self.critic_optimizer.mean is not None:  # like gradients, the same in all processes
            for running, mean in zip(self._running, self.critic_optimizer.mean(self._running)):
                running.copy_(mean)
        self.reprioritize(batch, info)
        return critic_metrics(loss, norm, info) | self.actor_step(batch)

    def actor_step(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes one step of the actor if due; returns its metrics, with what the loss reports as ``policy/...``."""
        if self.updates % self.cycle:
            return {}
        loss, norm, info = self.actor_optimizer.minimize(self.actor_objective, batch)
        return {"loss/actor": loss, "grad/actor": norm, **{f"policy/{name}": value for name, value in info.items()}}

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        sequences = self.with_critic_inputs(sequences)
        observation = flat(self.normalized(sequences.get("observation")))
        action = self.interface.from_env(sequences.get("action")).flatten(0, 1)
        return self.predicted_values(observation, action).view(sequences.batch_size)

    def predicted_values(self, observation: Any, action: Tensor) -> Tensor:
        """Returns the mean value ``[N]`` of the critics for normalised observations and actions in the agent's form."""
        critics = [self.networks[name] for name in self.CRITICS]
        if self.interface.choices:
            values = [critic(observation).gather(-1, action.view(-1, 1))[:, 0] for critic in critics]
        else:
            values = [critic(observation, action).mean(-1) for critic in critics]
        return torch.stack(values).mean(0)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Mean squared difference of the actions."""
        return mse_loss(self.actor(observation), action)


class ValueBased(Choosing, OffPolicy):
    """An agent that learns the values of choices from a replay buffer.

    A subclass implements :meth:`make_network`, :meth:`make_loss` and :meth:`action_values`. The loss that is minimised
    is ``self.loss.critic_loss``.
    """

    optimizer: Optimizer

    @abstractmethod
    def make_network(self, actions: int) -> nn.Module:
        """Returns a new network of the values of so many actions."""

    @abstractmethod
    def make_loss(self) -> Any:
        """Returns a loss of ``self.network`` with a ``target_network``."""

    def build(self) -> None:
        c, (actions,) = self.config, self.interface.choices or (0,)
        self.network = self.add_network("network", self.make_network(actions))
        self.loss = self.make_loss()
        self.add_target("network", self.loss.target_network, c.target_tau)
        eps = getattr(c, "adam_eps", 1e-8)
        self.optimizer = self.add_optimizer("lr", self.network, max_grad_norm=c.max_grad_norm, eps=eps)

    @property
    def objective(self) -> Any:
        """The loss: maps a batch ``[N]`` to a scalar that is a mean over it, and metrics."""
        return self.loss.critic_loss

    @property
    def uses_retrace(self) -> bool:
        """Whether Retrace corrects n-step returns for the acting policy; the replay buffer then holds all n steps."""
        return self.config.correction == "retrace"

    def make_n_step(self, carry: bool = True) -> NStep:
        kind = NStepWindows if self.uses_retrace else NStep
        return kind(self.config.n_step, self.config.gamma, carry)

    def corrected(self, batch: TensorDictBase) -> TensorDictBase:
        """Turns the n steps of a batch ``[N]`` into n-step transitions that end where the actions were not greedy."""
        steps = batch.get("next").copy()
        steps.batch_size = steps.get("reward").shape[:-1]
        values = self.values_as_logits(steps.get("observation").flatten(0, 1)).unflatten(0, steps.batch_size)
        follows = self.loss.chosen(steps, values.shape[-1]) == self.loss.greedy(values, steps)
        return greedy_returns(batch, follows, self.config.gamma)

    def update(self, batch: TensorDictBase) -> dict[str, Tensor | float]:
        if self.uses_retrace:
            with torch.no_grad():
                batch = self.corrected(batch)
        loss, norm, info = self.optimizer.minimize(self.objective, batch)
        self.reprioritize(batch, info)
        return critic_metrics(loss, norm, info)
