"""The base classes of agents and of their policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torchrl.envs.utils import ExplorationType, exploration_type

from rlstack.config import ConfigError
from rlstack.config.errors import unknown_key
from rlstack.config.options import Activation, Count, EncoderConfig, Fraction, Precision, Steps, layers
from rlstack.config.schedules import Schedule, ScheduleConfig, make_schedules
from rlstack.config.typed import Interval
from rlstack.data.flatten import kept
from rlstack.data.graphs import Recorded
from rlstack.data.normalizers import ObservationNormalizer, RewardScaler
from rlstack.envs.foundation.tensors import STATE, by_name, looks_are_free, unchecked
from rlstack.losses.base import Loss
from rlstack.networks.distributions import masked_logits
from rlstack.networks.encoders import (
    SEEN_BY_ACTOR,
    ActorEncoder,
    CriticEncoder,
    Encoder,
    build_encoder,
    build_plain_encoder,
    seen_by_actor,
)
from rlstack.networks.own import OwnNetwork

from .interface import MASK, Interface, Mirroring
from .optimizer import CannotCompile, Compiler, Optimizer, trace_gradients


@dataclass
class AgentConfig:
    """The options of every agent."""

    name: str
    algorithm: str

    # networks
    network: str | dict[str, str] | None = None  # your own, package.module:Net; or some of them by role:
    #   {actor: package.module:Actor}, see rlstack/agents/README.md
    network_options: dict[str, Any] = field(default_factory=dict)  # further arguments of your network
    inputs: Literal["raw", "features"] = "features"  # features: the world's own scaled inputs, if any; raw: as they are
    self_features: Count = 64  # width of the encoding of the agent's own state in worlds with objects, or of an image
    object_features: list[Count] = layers(32, 32)  # widths of the layers that every perceived object goes through
    encoders: dict[str, EncoderConfig] | None = None  # of single keys of a dict observation:
    #   {<key>: {kind: mlp, hidden: [64]}}, see rlstack/networks/encoders.py
    hidden: list[Count] = layers(256, 256)  # hidden widths
    activation: Activation = "relu"  # relu | tanh | silu | gelu | elu
    normalize_observations: bool = False  # by running mean and variance; a replay buffer keeps raw observations
    normalize_rewards: bool = False  # divided by the running std of the return; no mean is subtracted

    # data
    steps_per_batch: Count = 1  # env steps per world between two calls of the learner
    gamma: Fraction = 0.99  # discount per decision
    symmetry: Literal["none", "augment"] = "none"
    #   augment: also learn from mirror images, in a world that has a mirror, see interface.py

    # optimisation
    precision: Precision = "auto"  # of forward passes: float32 | bfloat16 | float16 (with loss scaling) |
    #   auto: see bfloat16_pays
    bfloat16_pays: bool = False  # auto uses bfloat16 if this is true, the device has units for it, and there is no
    #   recurrent core; otherwise float32
    accumulate: Count = 1  # number of equal parts into which a batch is split; their gradients are summed

    def __post_init__(self) -> None:
        for name in ("hidden", "object_features", "critic_hidden"):
            if getattr(self, name, None) == []:
                raise ValueError(f"{name} [] has no layers, give one width at least")
        if self.symmetry == "augment" and getattr(self, "recurrent", None) is not None:
            raise ValueError("symmetry=augment is for agents without a recurrent core, recurrent must be null")
        if self.network_options and not self.network:
            raise ValueError("network_options are those of a network of yours, which agent.network names")
        part = "batch_size" if hasattr(self, "batch_size") else "minibatch_size"
        if (size := getattr(self, part, 0)) % self.accumulate:
            raise ValueError(f"accumulate {self.accumulate} does not divide {part} {size}")
        if (names := getattr(self, "critic_inputs", None)) is None:
            return
        if names in ([], ["observation"]) or len(set(names)) < len(names):
            raise ValueError(f"critic_inputs {names} names nothing new, or something twice; give null, or [state]")
        if self.names_critic:
            raise ValueError("critic_inputs is for critics of ours, network may name no critic")
        if self.symmetry == "augment":
            raise ValueError("symmetry=augment mirrors what actors see, critic_inputs must be null")

    @property
    def names_critic(self) -> bool:
        """Whether the critic is a network of the user's."""
        return isinstance(self.network, str) or "critic" in (self.network or ())


@dataclass(frozen=True)
class RecurrentConfig:
    """The recurrent core of an agent.

    Attributes:
        kind: type of its cells.
        size: width of a layer.
        layers: number of stacked layers.
        sequence_length: number of steps through which gradients flow (truncated backpropagation through time, Williams
            & Peng 1990); the recurrent state at the start of a sequence represents everything before it.
    """

    kind: Literal["lstm", "gru"]
    size: Count = 128
    layers: Annotated[int, Interval(low=1, high=100)] = 1
    sequence_length: Steps = 32


CRITIC_NAMES = {
    **{"value": "value/predicted", "target": "value/target"},
    **{"critic_1": "loss/critic_1", "critic_2": "loss/critic_2"},
}
"""Names of metrics of critics by what their losses report; anything else is ``value/<name>``."""
_KINDS = {
    "vector": "continuous actions",
    "choice": "one discrete action",
    "choices": "several discrete actions",
    "hybrid": "hybrid actions",
}
_LEARNING = ("reward_scaler", "curiosity", "critic_normalizer")
"""Networks that only learning needs, not policies."""


class Policy(TensorDictModuleBase):
    """Writes an action for every decision in an env's tensordict.

    Like TorchRL's modules it can also be called by names, ``policy(observation=...)``.

    Args:
        interface: the env as the agent sees it.
        act: maps an observation (and an action mask, where the env has one) to the env's action, or to a dict with
            ``action`` and the entries to store beside it (keys ``extras``).
        extras: names of these further entries.
    """

    def __init__(
        self, interface: Interface, act: Callable[..., Tensor | dict[str, Tensor]], extras: Sequence[str] = ()
    ) -> None:
        super().__init__()
        _ = interface.as_is  # reads the bounds of actions, which cannot be done inside torch.export
        self.in_keys = interface.observation_keys() + ([interface.key(MASK)] if interface.masked else [])
        self.out_keys = [interface.key(name) for name in ("action", *extras)]
        self._observed, self._mask, self._act = interface.observed, interface.key(MASK), act
        self._masked = interface.masked

    def action(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns only the env's action for an observation ``[...]``, which is what an export traces."""
        return self.entries(observation, mask)["action"]

    def entries(self, observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Returns the entries to write into a tensordict, by name without group: ``action`` and the extras.

        It does not turn gradients off: a caller that steps many times does so once.
        """
        acted = self._act(observation, mask) if self._masked else self._act(observation)
        return {"action": acted} if isinstance(acted, Tensor) else acted

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get(self._mask) if self._masked else None
        acted = self.entries(self._observed(tensordict), mask)
        for key in self.out_keys:
            tensordict.set(key, acted[key if isinstance(key, str) else key[-1]])
        return tensordict

    @property
    def phase(self) -> Any:
        """What a recording of the policy depends on beside tensors; see :meth:`Agent.phase`."""
        return None


class AgentPolicy(Policy):
    """The policy of an agent, with the agent's networks and its place in the run (``frames``) as its state.

    A copy by ``deepcopy`` or pickle is that of a new agent: it has its own networks and follows the weights it is
    given, schedules included. This is how TorchRL's collectors send it to their workers and keep it up to date.

    Args:
        agent: the agent that the policy belongs to.
        act, extras: see :class:`Policy`.
        explore: as passed to :meth:`Agent.policy`.

    Attributes:
        copied: whether it is such a copy.
        copies_on: device of copies.
        recipe: see :meth:`Agent.recipe`.
    """

    copied = False

    def __init__(
        self,
        agent: Agent,
        act: Callable[..., Tensor | dict[str, Tensor]],
        extras: Sequence[str] = (),
        explore: bool | None = None,
    ) -> None:
        super().__init__(agent.interface, act, extras)
        self._agent, self._explore, self.copies_on, self.recipe = agent, explore, agent.device, agent.recipe()
        self.networks = nn.ModuleDict(agent.acting())
        self.register_buffer("frames", agent.clock)

    def entries(self, observation: Any, mask: Tensor | None = None) -> dict[str, Tensor]:
        if self.copied:
            self.catch_up()
        return super().entries(observation, mask)

    @property
    def phase(self) -> Any:
        return self._agent.phase()

    def catch_up(self) -> None:
        """Moves the agent of a copy to the frame and device of the weights that the copy was given."""
        agent, frames = self._agent, self.frames
        if agent.frames != frames or agent.device != frames.device:
            agent.device = frames.device
            agent.set_frames(int(frames))

    def __reduce__(self) -> Any:
        return policy_of_twin, (self.recipe, self.copies_on, self._explore, self.state_dict())


def policy_of_twin(
    recipe: tuple[Any, ...], device: torch.device, explore: bool | None, state: dict[str, Tensor]
) -> Any:
    """Returns the policy of a new agent (see :meth:`Agent.recipe`), with the state of another policy of its kind."""
    algorithm, *options = recipe
    with torch.random.fork_rng():
        policy: Any = algorithm(*options, device).policy(explore)
    if not any(value.is_meta for value in state.values()):  # without weights, which the caller loads
        policy.load_state_dict(state)
    for module in policy.modules():
        if isinstance(module, AgentPolicy):
            module.copied = True
    return policy


def copy_on(policy: Any, device: torch.device) -> Any:
    """Returns a copy of an agent's policy with its networks on the given device."""
    for part in policy.modules():
        if isinstance(part, AgentPolicy):
            part.copies_on = device
    return deepcopy(policy)


def exploring(explore: bool | None) -> bool:
    """Returns ``explore``, or where it is None, whether TorchRL's ``set_exploration_type`` asks for exploration."""
    return exploration_type() is ExplorationType.RANDOM if explore is None else explore


class Target:
    """Moves a target network towards its network (Mnih et al. 2015; Lillicrap et al. 2016).

    It does what TorchRL's ``SoftUpdate`` does, in one call for all parameters: 10 us for six of them instead of 377.

    Args:
        network: the network that is trained.
        target: its copy, held by the loss; buffers stay as they were copied.
        tau: ``target <- tau network + (1 - tau) target`` at each :meth:`update`; 1 copies.
    """

    def __init__(self, network: nn.Module, target: nn.Module, tau: float) -> None:
        self.tau, self.network, self.source = tau, target, network
        self._online: list[Tensor] = list(network.parameters())
        self._target: list[Tensor] = list(target.parameters())
        self._approach = get_ema_multi_avg_fn(1 - tau)

    @torch.no_grad()
    def copy(self) -> None:
        """Makes the target equal to the network."""
        for target, online in zip(self._target, self._online):
            target.copy_(online)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the target one step towards the network."""
        if self.tau == 1:
            self.copy()
        else:
            self._approach(self._target, self._online, None)


def named(info: Mapping[str, Tensor], names: Mapping[str, str], group: str) -> dict[str, Tensor | float]:
    """Returns the scalars that a loss reports under the names of metrics: those in ``names``, or ``group/<name>``."""
    return {names.get(name, f"{group}/{name}"): value for name, value in info.items() if not value.dim()}


def critic_metrics(loss: Tensor, norm: Tensor, info: Mapping[str, Tensor]) -> dict[str, Tensor | float]:
    """Returns the metrics of one step of a critic."""
    return {"loss/critic": loss, "grad/critic": norm, **named(info, CRITIC_NAMES, "value")}


class Agent(ABC):
    """A learner and its policies; independent of worlds, files and loggers.

    Args:
        config: the agent's typed configuration, with at least the fields of
            :class:`AgentConfig`, and ``Scheduled`` fields where schedules are allowed.
        interface: the env as the agent sees it.
        total_frames: length of the run, to which schedules are relative.
        device: device of the networks.

    Raises:
        ConfigError: a schedule is out of its bounds, or inputs would be scaled twice.

    Attributes:
        networks: everything with parameters or running statistics, by name.
        optimizers: optimisers by the name of their learning rate in the configuration (``lr``, ``lr_actor``, ...).
        targets: target networks by name.
        own: the user's networks among ``networks``.
        loss: the TorchRL ``LossModule`` that the algorithm minimises.
        replay: the replay buffer, whose ``state_dict`` goes into checkpoints; None for agents without one.
    """

    Config: ClassVar[type]
    loss: Any
    replay: Any = None
    compiler: Compiler | None = None
    follows_tensors = False
    """Whether :meth:`learn` takes the number of frames as a tensor on a GPU without waiting for it."""

    least: Callable[[int], int] = int
    """Returns the minimum of a number (of entries to learn from) over all processes that learn together."""

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        self.config, self.interface, self.device = config, interface, device
        self.total_frames, self.clock = total_frames, torch.zeros((), dtype=torch.int64, device=device)
        self.updates, self.frames = 0, 0
        self._drawn = torch.empty(0, device=device)
        self._recorded: dict[str, Recorded] = {}
        self._live: dict[str, Tensor] = {}
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.targets: dict[str, Target] = {}
        self.own = OwnNetworks(config, interface, device)
        self.schedules = make_schedules(config, total_frames, "agent")
        self.scheduled = {name: schedule(0) for name, schedule in self.schedules.items()}
        self.normalizer: ObservationNormalizer | None = None
        self.critic_normalizer: ObservationNormalizer | None = None
        if config.normalize_observations:
            if interface.features is not None and config.inputs == "features":
                raise ConfigError(
                    "agent.normalize_observations needs agent.inputs=raw in a world that scales its own inputs"
                )
            masks = {encoder.mask for encoder in (config.encoders or {}).values() if encoder.mask is not None}
            self.normalizer = ObservationNormalizer(interface.observation, masks).to(device)
            self.networks["normalizer"] = self.normalizer
            if interface.privileged is not None:
                self.critic_normalizer = ObservationNormalizer(interface.privileged).to(device)
                self.networks["critic_normalizer"] = self.critic_normalizer
        self.reward_scaler: RewardScaler | None = None
        if config.normalize_rewards:
            self.reward_scaler = RewardScaler(config.gamma).to(device)
            self.networks["reward_scaler"] = self.reward_scaler

    # -- building ------------------------------------------------------------------------------------------------

    def encoder(self, role: str = "network") -> Encoder:
        """Returns a new observation encoder for the network of a role: the user's, if one is named for it."""
        c, features = self.config, self.own.features
        if own := self.own.make(role, OwnNetwork, c.hidden[:1]):
            return own
        widths, privileged = (c.self_features, c.object_features), self.interface.privileged
        encoder = build_encoder(self.interface.observation, features, *widths, c.encoders)
        if privileged is None:
            return encoder
        if role != "critic":
            return ActorEncoder(encoder)
        parts = {} if "observation" not in c.critic_inputs else {SEEN_BY_ACTOR: encoder}
        inputs = {str(name): build_plain_encoder(spec, *widths) for name, spec in privileged.items()}
        return CriticEncoder({**parts, **inputs})

    def own_network(
        self, role: str, *shape: int, kind: type[OwnNetwork] = OwnNetwork, actions: int = 0, **options: Any
    ) -> Any:
        """Returns the user's network for a role; None if none is named for it, or if the agent is recurrent.

        Args:
            role: which of the agent's networks it is.
            shape: shape of its output.
            kind: class that says how the output is used.
            actions: size of the actions that it evaluates.
            options: further options of ``kind``.
        """
        if getattr(self.config, "recurrent", None) is not None:
            return None
        return self.own.make(role, kind, shape, actions=actions, **options)

    def add_network(self, name: str, network: nn.Module) -> Any:
        """Moves a network to the device and stores it as ``networks[name]``."""
        self.networks[name] = network.to(device=self.device, dtype=self.interface.dtype)
        return self.networks[name]

    def add_target(self, name: str, target: nn.Module, tau: float, network: str | None = None) -> None:
        """Makes a target, which a loss holds, follow a network; checkpoints hold it as ``targets[name]``.

        Args:
            network: name of the network; None: the target's.

        Raises:
            ValueError: there is a target of this name, or no such network.
        """
        if name in self.targets:
            raise ValueError(f"add_target: there is a target {name!r} already; give a second one a name of its own")
        if (source := network or name) not in self.networks:
            raise ValueError(f"add_target: there is no network {source!r}, allowed: {', '.join(self.networks)}")
        self.targets[name] = Target(self.networks[source], target, tau)

    def add_optimizer(
        self, name: str, *networks: nn.Module | list[Tensor], max_grad_norm: float | None, **options: Any
    ) -> Optimizer:
        """Adds an optimiser of these networks, each clipped separately, with the schedule ``name`` as learning rate."""
        parameters = [network if isinstance(network, list) else network.parameters() for network in networks]
        rate = getattr(self.config, name, None)
        adaptive = rate if isinstance(rate, ScheduleConfig) and rate.kind == "adaptive" else None
        optimizer = Optimizer(
            [[parameter for parameter in group if parameter.requires_grad] for group in parameters],
            self.scheduled[name],
            max_grad_norm,
            precision=self.config.precision,
            accumulate=self.config.accumulate,
            adaptive=adaptive,
            **options,
        )
        self.optimizers[name] = optimizer
        return optimizer

    def normalized(self, observation: Any) -> Any:
        """Returns the observation as the networks see it."""
        if self.normalizer is None:
            return observation
        own = seen_by_actor(observation)
        if self.critic_normalizer is None or own is observation:
            return self.normalizer(observation)
        return self.critic_normalizer(observation).set(SEEN_BY_ACTOR, self.normalizer(own))

    def normalize_by(self, observations: Any, counts: Tensor | None = None) -> None:
        """Updates the statistics of observations, if there are any, with a flat batch ``[N]``.

        Args:
            counts: which of them count, ``[N]`` bool; None: all.
        """
        if self.normalizer is not None:
            self.normalizer.update(seen_by_actor(observations), counts)
        if self.critic_normalizer is not None:
            self.critic_normalizer.update(observations, counts)

    def with_critic_inputs(self, sequences: TensorDictBase) -> TensorDictBase:
        """Returns sequences ``[B, T]`` whose observations hold what critics see beside what the actor sees.

        Without ``agent.critic_inputs``, a ``state`` that the world shows is left out.

        Raises:
            ConfigError: the data lack what critics see.
        """
        interface = self.interface
        if interface.privileged is None:
            return sequences.exclude(STATE, ("next", STATE)) if STATE in sequences.keys() else sequences  # noqa: SIM118
        names = [str(name) for name in interface.privileged.keys()]  # noqa: SIM118

        def joined(part: TensorDictBase) -> TensorDictBase:
            seen: Any = part.get("observation")
            complete = seen_by_actor(seen) is not seen
            if complete:
                return part
            entries = {name: (seen if name in interface.hidden else part).get(name, None) for name in names}
            if missing := [name for name, entry in entries.items() if entry is None]:
                raise ConfigError(f"agent.critic_inputs: these data have no {missing[0]!r}")
            entries[SEEN_BY_ACTOR] = seen.exclude(*interface.hidden) if interface.hidden else seen
            both = unchecked(entries, batch_size=part.batch_size, device=part.device)
            return part.exclude(STATE).set("observation", both)

        return joined(sequences).set("next", joined(sequences.get("next")))

    def epsilon_greedy(self, best: Callable[[], Tensor], observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the best actions ``[...]``, replaced by uniformly random (legal) ones with probability ``epsilon``.

        On the CPU nothing is computed that is not used; on a GPU, finding out would cost more.
        """
        epsilon, lead = self.scheduled_value("epsilon"), self.interface.lead(observation)
        if self.unused("epsilon"):
            return best()
        if looks_are_free(self.device) and not torch.compiler.is_compiling():
            if self._drawn.shape != lead:
                self._drawn = torch.empty(lead, device=self.device)
            drawn = self._drawn.uniform_()  # what torch.rand draws, without its allocation
            random = np.count_nonzero(drawn.numpy() < float(epsilon))
            if not random:
                return best()
            if random == drawn.numel():
                return self.interface.random_action(lead, self.device, mask)
        else:
            drawn = torch.rand(lead, device=self.device)
        return self._where_drawn(drawn, self.interface.random_action(lead, self.device, mask), best())

    def mixed_with_random(self, action: Tensor, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns actions ``[...]``, each replaced by a uniformly random (legal) one with probability ``epsilon``."""
        if self.unused("epsilon"):
            return action
        lead = self.interface.lead(observation)
        random = self.interface.random_action(lead, self.device, mask)
        return self._where_drawn(torch.rand(lead, device=self.device), random, action)

    def _where_drawn(self, drawn: Tensor, random: Tensor, action: Tensor) -> Tensor:
        """Returns random actions where numbers ``drawn [...]`` are below ``epsilon``, and the others elsewhere."""
        chosen = drawn < self.scheduled_value("epsilon")
        whole = chosen.unsqueeze(-1) if self.interface.choices is None else chosen  # vectors of numbers
        return torch.where(whole, random, action)

    def _kept(self, entries: Any, sequences: TensorDictBase) -> Any:
        """Returns the active ones among entries ``[B, T, ...]`` as ``[N, ...]``; without a group, all are active."""
        if self.interface.group is not None:
            return kept(entries, sequences.get("active"))
        return flat(entries)

    def _observations(self, observations: Any, sequences: TensorDictBase) -> tuple[Any, Tensor | None]:
        """Returns the same and None, or on a GPU all entries, and which are active, so that nothing waits."""
        if self.interface.group is None or looks_are_free(self.device):
            return self._kept(observations, sequences), None
        return flat(observations), sequences.get("active").flatten()

    @cached_property
    def mirroring(self) -> Mirroring:
        """The mirror of the agent's world.

        Raises:
            ConfigError: the world has none.
        """
        return Mirroring(self.interface)

    def check_learning(self) -> None:
        """Raises a one-line :class:`ConfigError` if the agent can act in its world, but not learn as configured."""
        if getattr(self.config, "symmetry", "none") == "augment":  # options of a user's own may have none
            _ = self.mirroring

    def acting(self) -> dict[str, nn.Module]:
        """Returns the networks that policies act with, by name; in place of a loss, the networks that it calls.

        The parameters of a loss are views: new ones that are put into it (``TensorDict.to_module``) reach no network.
        """
        acting: dict[str, nn.Module] = {}
        for name, network in self.networks.items():
            if isinstance(network, Loss):
                acting |= network.called()
            elif name not in _LEARNING:
                acting[name] = network
        return acting

    # -- what an algorithm fills in ------------------------------------------------------------------------------

    @classmethod
    def of(cls, config: Any) -> type[Agent]:
        """Returns the concrete class of this algorithm for a configuration, such as the recurrent one."""
        return cls

    ACTIONS: tuple[str, ...]
    """The kinds of action that the algorithm takes, see :attr:`Interface.kind`."""

    @classmethod
    def check(cls, interface: Interface, name: str) -> None:
        """Raises a one-line :class:`ConfigError` if the algorithm cannot act in such an env.

        Args:
            name: of the agent, for the message.
        """
        if interface.kind in cls.ACTIONS:
            return
        from . import fitting

        takes = [_KINDS[kind] for kind in cls.ACTIONS]
        agents = ", ".join(fitting(interface.kind))
        remedies = [f"choose an agent for such actions ({agents})"] if agents else []
        if interface.either_action:
            remedies.append(f"set env.continuous_actions={str('vector' in cls.ACTIONS).lower()}")
        text = f"agent={name} needs {' or '.join(takes)}, the env has {interface.describe_action()}"
        raise ConfigError("; ".join([text, ", or ".join(remedies)]) if remedies else text)

    exploit: Callable[..., Tensor]
    """Maps an observation ``[...]`` (and an action mask) to greedy actions, in the form of :meth:`imitation_loss`."""
    explore: Callable[..., Tensor]
    """The same for exploring actions."""

    def policy(self, explore: bool | None = None) -> TensorDictModuleBase:
        """Returns a module that takes an env's tensordict and adds actions to it.

        It acts by :attr:`exploit` and :attr:`explore`, at first at random (``agent.random_frames``), and shares the
        learner's parameters, so it always acts with the latest ones.

        Args:
            explore: whether to explore. None follows TorchRL's ``set_exploration_type`` at each step: the policy
                explores if it is ``RANDOM``, as in TorchRL's collectors, and is greedy if it is anything else or unset.
        """
        try_out = self.exploit if explore is False else self.compiled(self.explore)

        def act(observation: Any, mask: Tensor | None = None) -> Tensor:
            if not exploring(explore):
                action = self.exploit(observation, mask)
            elif self.frames < getattr(self.config, "random_frames", 0):
                action = self.interface.random_action(self.interface.lead(observation), self.device, mask)
            else:
                action = try_out(observation, mask)
            return self.interface.to_env(action)

        return AgentPolicy(self, act, explore=explore)

    def recipe(self) -> tuple[Any, ...]:
        """Returns the arguments to build an agent like this one: algorithm, configuration, interface, total frames."""
        return type(self), self.config, self.interface, self.total_frames

    @abstractmethod
    def learn(self, sequences: TensorDictBase, frames: int | Tensor) -> dict[str, Tensor | float]:
        """Takes in new data ``[B, T]`` (see :mod:`rlstack.data.flatten`) and updates the networks.

        Args:
            sequences: the flattened batch of a collector.
            frames: frames of the run so far, including this batch; on a GPU it may be a tensor (0-d).

        Returns metrics named ``group/name``.
        """

    @abstractmethod
    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        """Makes one update on this data alone, outside the run's schedule, as self-checks do."""

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        """Returns the discounted return ``[B, T]`` that the agent predicts for each decision, in the reward's scale.

        None, the default, if it predicts none. Diagnostics compare it with what followed. Where rewards are normalised,
        it predicts the normalised ones.
        """
        return None

    def log_ratios(self, sequences: TensorDictBase) -> Tensor | None:
        """Returns the log probability ratio ``[B, T]`` of the present policy to the one that took the actions.

        None, the default, if the probability of the actions is not known.
        """
        return None

    def imitation_batch(self, batch: TensorDictBase) -> tuple[Any, Tensor, Tensor | None]:
        """Returns the arguments of :meth:`imitation_loss` for a batch of decisions to imitate."""
        return self.normalized(batch.get("observation")), batch.get("action"), batch.get(MASK, None)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """The loss of behaviour cloning: a scalar that is smallest where the policy takes the given actions.

        Args:
            observation: normalised batch ``[N]``.
            action: actions in the agent's form: ``[N, D]`` in [-1, 1], choices ``[N]``, or ``[N, K]`` for K parts.
            mask: legal actions ``[N, n]``, where the env has a mask.
        """
        raise ConfigError(f"{type(self).__name__} cannot imitate")

    # -- compiled code -------------------------------------------------------------------------------------------

    def scheduled_value(self, name: str) -> Any:
        """Returns the value of a schedule for losses and policies: a number, or where code is compiled or recorded, a
        0-d tensor that follows it."""
        if not self._follows(name):
            return self.scheduled[name]
        if name not in self._live:
            self._live[name] = torch.tensor(self.scheduled[name], dtype=self.interface.dtype, device=self.device)
        return self._live[name]

    def unused(self, name: str) -> bool:
        """Returns whether a schedule's value is zero now, so that its term can be skipped; False in compiled code."""
        return not self._follows(name) and not self.scheduled[name]

    def _follows(self, name: str) -> bool:
        """Returns whether the value of a schedule is a tensor."""
        plain = self.compiler is None and looks_are_free(self.device)
        return not plain and not self.schedules[name].constant

    def compile(self, compiler: Compiler) -> None:
        """Compiles or records updates, and compiles exploring policies that are made later.

        Raises:
            CannotCompile: this is impossible, and the agent is left unchanged; the message says why.
        """
        if compiler.compiles and not compiler.graphs:
            trace_gradients()
        _ = self.interface.choices, self.interface.as_is  # whose lock, when they are first read, cannot be traced
        try:
            for optimizer in self.optimizers.values():
                optimizer.compile(compiler, self.config.name)
        except CannotCompile:
            for optimizer in self.optimizers.values():
                optimizer.run_plainly()
            raise
        self.compiler = compiler
        self.refresh()

    def recorded(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Returns a method of this agent, recorded as a CUDA graph if the agent is."""
        if self.compiler is None or not self.compiler.graphs:
            return function
        if what not in self._recorded:
            described = f"{what} of {self.config.name}"
            self._recorded[what] = Recorded(function, described, (self,), self.device, lent=True)
        return self._recorded[what]

    def compiled(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function by which an exploring policy acts, compiled if the agent is."""
        return choose if self.compiler is None else self.compiler(choose, f"the policy of {self.config.name}")

    def refresh(self) -> None:
        """Passes the present values of the schedules on to compiled code."""
        for name, value in self._live.items():
            value.fill_(self.scheduled[name])

    # -- schedules and state -------------------------------------------------------------------------------------

    def phase(self) -> Any:
        """Returns what decides how policies act beside tensors and schedules: a recording is made for each."""
        return None

    def set_frames(self, frames: int) -> None:
        """Sets every schedule (learning rates, exploration) to this point of the run."""
        self.know(frames)
        self.clock.fill_(frames)
        for name, optimizer in self.optimizers.items():
            optimizer.lr = self.scheduled[name]
        self.refresh()

    def follow(self, frames: Tensor) -> None:
        """Does the same for a number on the device (0-d), without waiting for it: recorded code reads the schedules.

        The numbers that Python reads, such as :attr:`frames`, stay as they were; see :meth:`know`.
        """
        self.clock.copy_(frames)
        for name, schedule in self._moving.items():
            value = schedule(frames)
            if name in self.optimizers:
                self.optimizers[name].lr = value
            else:
                self.scheduled_value(name).copy_(value)

    def know(self, frames: int) -> None:
        """Tells Python's side the number of frames that the device has already."""
        self.frames = frames
        self.scheduled |= {name: schedule(frames) for name, schedule in self._moving.items()}
        for name in self._moving.keys() & self.optimizers.keys():
            self.optimizers[name].know_lr(self.scheduled[name])

    @cached_property
    def _moving(self) -> dict[str, Schedule]:
        """The schedules that are not constant."""
        return {name: schedule for name, schedule in self.schedules.items() if not schedule.constant}

    def schedule_metrics(self) -> dict[str, float]:
        """Returns the present values of all options that may be schedules, as ``schedule/<name of the option>``."""
        adaptive = {name: optimizer.lr for name, optimizer in self.optimizers.items() if optimizer.adapts}
        return {f"schedule/{name}": float(value) for name, value in {**self.scheduled, **adaptive}.items()}

    def updates_made(self) -> int:
        """Returns the number of updates without those that a GPU has left out, for which it waits."""
        left_out = [optimizer.left_out for optimizer in self.optimizers.values()]
        return self.updates - sum(int(count) for count in left_out if count is not None)

    def expected_updates(self) -> float:
        """Returns the approximate number of gradient steps in a whole run; 0 for agents with few, large steps."""
        return 0.0

    def parameters(self) -> list[Tensor]:
        """Returns all trained parameters."""
        return [parameter for optimizer in self.optimizers.values() for parameter in optimizer.parameters]

    def state_dict(self) -> dict[str, Any]:
        """Returns networks, optimisers and counters as nested dicts of tensors and numbers."""
        return {
            "networks": {name: dict(network.state_dict()) for name, network in self.networks.items()},
            "targets": {name: dict(target.network.state_dict()) for name, target in self.targets.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "updates": self.updates_made(),
            "frames": self.frames,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        self.load_networks(state)
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])

    def load_networks(self, state: Mapping[str, Any]) -> None:
        """Restores the parts of :meth:`state_dict` that an agent needs to act: networks, targets and counters."""
        for name, network in self.networks.items():
            network.load_state_dict(state["networks"][name])
        for name, target in self.targets.items():
            target.network.load_state_dict(state["targets"][name])
        self.updates = state["updates"]
        for optimizer in self.optimizers.values():
            if optimizer.left_out is not None:
                optimizer.left_out.zero_()
        self.set_frames(state["frames"])

    def take_weights(self, weights: Mapping[str, Any]) -> None:
        """Loads recorded weights into the user's networks and their targets, see :meth:`OwnNetworks.load`."""
        self.own.load(weights)
        for target in self.targets.values():
            target.copy()

    def begin_episodes(self) -> None:
        """Forgets unfinished episodes: the next sequences do not continue the last ones."""
        if self.reward_scaler is not None:
            self.reward_scaler.returns.zero_()


class OwnNetworks:
    """Makes and keeps the user's networks that an agent asks for.

    Args:
        config: the agent's configuration, with ``network``, ``network_options`` and ``inputs``.
        interface: the env as the agent sees it.
        device: device of the networks.

    Attributes:
        by_role: the networks made for each role that a user's network may have; the acting role comes first.
        features: the world's input scaling if the agent uses it, see :class:`Interface`.
    """

    def __init__(self, config: Any, interface: Interface, device: torch.device) -> None:
        self._given = getattr(config, "network", None)
        self._config, self._interface, self._device = config, interface, device
        self.features = interface.features if getattr(config, "inputs", None) == "features" else None
        self.by_role: dict[str, list[OwnNetwork]] = {}

    def make(self, role: str, kind: type[OwnNetwork], shape: Sequence[int], **options: Any) -> OwnNetwork | None:
        """Makes a new network for a role; returns None if none is named for it.

        Args:
            kind: class that says how its outputs are used.
            shape: shape of an output.
            options: further options of ``kind``.

        Raises:
            ConfigError: see :class:`OwnNetwork`.
        """
        made, given, interface = self.by_role.setdefault(role, []), self._given, self._interface
        name = given.get(role) if isinstance(given, Mapping) else given
        if name is None:
            return None
        where = f"agent.network.{role}" if isinstance(given, Mapping) else "agent.network"
        options |= {"features": self.features, "dtype": interface.dtype, "device": self._device}
        made.append(
            kind(where, name, interface.observation, tuple(shape), options=self._config.network_options, **options)
        )
        return made[-1]

    def check(self) -> None:
        """Raises a one-line :class:`ConfigError` if a network is named that the agent has not asked for."""
        if self._given is not None and not self.by_role:
            raise ConfigError(f"agent.network: agent={self._config.name} makes its own networks")
        for role in self._given if isinstance(self._given, Mapping) else ():
            if role not in self.by_role:
                raise ConfigError(unknown_key(f"agent.network.{role}", self.by_role))

    @property
    def roles(self) -> list[str]:
        """The roles that have networks of the user's."""
        return [role for role, networks in self.by_role.items() if networks]

    def load(self, weights: Mapping[str, Any]) -> None:
        """Loads weights that were trained elsewhere.

        Args:
            weights: state dict of the acting network, or several state dicts by role.

        Raises:
            ConfigError: a role without a network of the user's.
            RuntimeError: the weights are those of another network.
        """
        alone = not all(isinstance(part, Mapping) for part in weights.values())
        for role, state in ({next(iter(self.by_role)): weights} if alone else weights).items():
            if role not in self.roles:
                raise ConfigError(f"init: weights of {role}, agent.network names one of yours for {self.roles}")
            for own in self.by_role[role]:
                own.network.load_state_dict(state)


def flat(entries: Any) -> Any:
    """Returns entries ``[B, T, ...]`` as ``[B*T, ...]``."""
    return entries.flatten(0, 1) if isinstance(entries, Tensor) else entries.reshape(-1)


class Choosing(Agent):
    """An agent that chooses by the value of each choice, and explores with random choices.

    A subclass has a ``network``, and implements :meth:`action_values` unless these are its outputs.
    """

    network: Any
    ACTIONS: tuple[str, ...] = ("choice",)

    def action_values(self, observation: Any) -> Tensor:
        """Returns the values ``[..., n]`` by which the agent chooses, given an observation ``[...]``."""
        return self.network(self.normalized(observation))

    def values_as_logits(self, observation: Any) -> Tensor:
        """Returns the values ``[N, n]`` of a normalised batch ``[N]``, used as logits in imitation."""
        return self.network(observation)

    def predicted_returns(self, sequences: TensorDictBase) -> Tensor | None:
        observation = flat(self.normalized(sequences.get("observation")))
        action = self.interface.from_env(sequences.get("action")).reshape(-1, 1)
        return self.values_as_logits(observation).gather(-1, action).view(sequences.batch_size)

    def exploit(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the best (legal) choices for an observation ``[...]``."""
        return greedy(self.action_values(observation), mask)

    def explore(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """Returns the best choices, replaced by random ones with probability ``epsilon``."""
        return self.epsilon_greedy(lambda: greedy(self.action_values(observation), mask), observation, mask)

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Cross entropy of the choices, with values taken as logits."""
        return cross_entropy(masked_logits(self.values_as_logits(observation), mask), action)


def greedy(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the best (legal) actions ``[...]`` by their values ``[..., n]``."""
    return (values if mask is None else values.masked_fill(~mask, -torch.inf)).argmax(-1)
