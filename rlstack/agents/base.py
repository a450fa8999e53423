"""What every agent offers, and what an env looks like to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec
from torchrl.envs import EnvBase

from rlstack.collection.normalizers import ObservationNormalizer, RewardScaler
from rlstack.config import ConfigError, Interval
from rlstack.networks.encoders import Activation, build_encoder

from .optimizer import Optimizer, Precision, Target
from .schedules import ScheduleConfig, make_schedule

Positive = Annotated[float, Interval(low=0, open_low=True)]
NonNegative = Annotated[float, Interval(low=0)]
Fraction = Annotated[float, Interval(low=0, high=1)]
Count = Annotated[int, Interval(low=1)]
Whole = Annotated[int, Interval(low=0)]
Scheduled = float | ScheduleConfig

GROUP = "agents"
MASK = "action_mask"


@dataclass(frozen=True)
class Interface:
    """An env as one agent sees it: the specs of a single decision, without batch or agent dimensions.

    Attributes:
        group: key under which several agents stand, None for a single agent.
        observation: spec of one observation, a Composite when structured.
        action: spec of one action.
        features: builds the world's own input scaling (a module from observation to observation), if it has one.
        dtype: of floating-point observations.
        masked: the env says under ``action_mask`` which actions are legal.
        nearest: the world's own distance to the nearest obstacle, a function of the observation, if it has one.
    """

    group: str | None
    observation: TensorSpec
    action: TensorSpec
    features: Callable[[], nn.Module] | None
    dtype: torch.dtype
    masked: bool = False
    nearest: Callable[[Any], Tensor] | None = None

    @classmethod
    def of(cls, env: EnvBase) -> Interface:
        """Reads an env's specs."""
        group = GROUP if GROUP in env.observation_spec.keys() else None  # noqa: SIM118
        prefix = () if group is None else (group,)
        lead = env.full_action_spec[group].shape if group is not None else env.batch_size
        observation = _strip(env.observation_spec[(*prefix, "observation")], len(lead))
        action = _strip(env.full_action_spec[(*prefix, "action")], len(lead))
        dtypes = [leaf.dtype for leaf in _leaves(observation) if leaf.dtype.is_floating_point]
        seen = env.observation_spec if group is None else env.observation_spec[group]
        return cls(
            group,
            observation,
            action,
            getattr(env, "input_features", None),
            dtypes[0] if dtypes else torch.get_default_dtype(),
            MASK in seen.keys(),  # noqa: SIM118
            getattr(env, "nearest_obstacle", None),
        )

    def key(self, name: str) -> str | tuple[str, str]:
        """``name`` or ``(group, name)``."""
        return name if self.group is None else (self.group, name)

    def observation_keys(self) -> list[Any]:
        """Leaf keys of the observation in the env's layout, for a policy's ``in_keys``."""
        root = self.key("observation")
        if not isinstance(self.observation, Composite):
            return [root]
        prefix = root if isinstance(root, tuple) else (root,)
        leaves = self.observation.keys(include_nested=True, leaves_only=True)
        return [(*prefix, *((key,) if isinstance(key, str) else key)) for key in leaves]

    # -- actions -------------------------------------------------------------------------------------------------

    @property
    def continuous(self) -> bool:
        """The action is a bounded vector."""
        return isinstance(self.action, Bounded) and self.action.dtype.is_floating_point and self.action.ndim == 1

    @property
    def choices(self) -> tuple[int, ...] | None:
        """Number of choices of each discrete part of an action (one part, usually); None for other actions."""
        if isinstance(self.action, MultiCategorical):
            return tuple(int(n) for n in self.action.nvec.reshape(-1))
        if isinstance(self.action, Categorical) and not isinstance(self.action, Binary):
            return (int(self.action.n),)
        return None

    def describe_action(self) -> str:
        """The kind of action in words, for messages."""
        if self.continuous:
            size = self.action.shape[-1]
            return f"continuous actions of {size} number{'' if size == 1 else 's'}"
        choices = self.choices
        if choices is None:
            return f"{type(self.action).__name__} actions of shape {list(self.action.shape)}"
        return f"{choices[0]} discrete actions" if len(choices) == 1 else f"multi-discrete actions {list(choices)}"

    def to_env(self, action: Tensor) -> Tensor:
        """An agent's action as the env takes it.

        A continuous one in [-1, 1] is put within the env's bounds (infinite bounds leave it as it is); a choice
        ``[...]`` gets the last dimension of 1 that some envs have.
        """
        if not self.action.dtype.is_floating_point:
            return action.unsqueeze(-1) if self._single else action
        scaling = self._scaling(action)
        return action if scaling is None else torch.addcmul(scaling[0], action, scaling[1])

    def from_env(self, action: Tensor) -> Tensor:
        """The inverse of :meth:`to_env`."""
        if not self.action.dtype.is_floating_point:
            return action.squeeze(-1) if self._single else action
        scaling = self._scaling(action)
        return action if scaling is None else (action - scaling[0]) / scaling[1]

    @property
    def _single(self) -> bool:
        return tuple(self.action.shape) == (1,)

    def _scaling(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Centre and half width of the bounds ``[D]``; None where actions are in [-1, 1] or unbounded."""
        if "scaling" not in self.__dict__:  # read from the spec once: it is needed at every step
            low, high = self.action.space.low, self.action.space.high
            bounded = bool(torch.isfinite(low).all() and torch.isfinite(high).all())
            plain = not bounded or bool((low == -1).all() and (high == 1).all())
            self.__dict__["scaling"] = None if plain else ((high + low) / 2, (high - low) / 2)
        scaling = self.__dict__["scaling"]
        if scaling is None:
            return None
        return scaling[0].to(like.device, like.dtype), scaling[1].to(like.device, like.dtype)

    def random_action(self, lead: Sequence[int], device: torch.device, mask: Tensor | None = None) -> Tensor:
        """Uniform actions of shape ``[*lead, ...]``, legal where a mask is given; continuous ones in [-1, 1]."""
        choices = self.choices
        if choices is None:
            return torch.rand(*lead, *self.action.shape, dtype=self.dtype, device=device) * 2 - 1
        if mask is None and len(choices) == 1:
            return torch.randint(choices[0], tuple(lead), device=device)
        weights = torch.ones(*lead, sum(choices), device=device) if mask is None else mask.to(torch.float32)
        parts = [random_choice(part).view(*lead) for part in weights.split(choices, -1)]
        return parts[0] if len(parts) == 1 else torch.stack(parts, -1)


def random_choice(mask: Tensor) -> Tensor:
    """One of the options that ``mask [..., n]`` (bool, or 0 and 1) allows, uniformly, ``[...]``; see :func:`legal`."""
    weights = legal(mask > 0).reshape(-1, mask.shape[-1]).to(torch.float32)
    return torch.multinomial(weights, 1).view(mask.shape[:-1])


def legal(mask: Tensor) -> Tensor:
    """``[..., n]`` with everything allowed where nothing is: agents that are over often show an empty mask."""
    return mask | ~mask.any(-1, keepdim=True)


def require_continuous(name: str, interface: Interface) -> None:
    """Raises a one-line :class:`ConfigError` unless actions are bounded vectors."""
    if not interface.continuous:
        raise ConfigError(
            f"agent={name} needs continuous actions, the env has {interface.describe_action()}; "
            "set env.continuous_actions=true if the env knows it, or choose a discrete agent "
            "(ppo, a2c, dqn, rainbow, iqn)"
        )


def require_choices(name: str, interface: Interface) -> None:
    """Raises a one-line :class:`ConfigError` unless an action is one of n."""
    if interface.choices is None or len(interface.choices) != 1:
        raise ConfigError(
            f"agent={name} needs one discrete action, the env has {interface.describe_action()}; set "
            "env.continuous_actions=false if the env knows it, or choose an agent for such actions (ppo, a2c, and for "
            "continuous ones sac, td3, ddpg, acqn)"
        )


def _strip(spec: TensorSpec, dims: int) -> TensorSpec:
    """The spec of one entry of its leading dimensions."""
    return spec[(0,) * dims] if dims else spec


def _leaves(spec: TensorSpec) -> list[TensorSpec]:
    return list(spec.values(include_nested=True, leaves_only=True)) if isinstance(spec, Composite) else [spec]


class Policy(TensorDictModuleBase):
    """Writes an action for every decision in an env's tensordict; a bare module, without dispatch overhead.

    Args:
        interface: what it acts on.
        act: observation (and, where the env has one, action mask) to the env's action, or to a dict with ``action``
            and what else is to be stored beside it (keys ``extras``).
        extras: names of the further entries.
    """

    def __init__(
        self,
        interface: Interface,
        act: Callable[..., Tensor | dict[str, Tensor]],
        extras: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.in_keys = interface.observation_keys() + ([interface.key(MASK)] if interface.masked else [])
        self.out_keys = [interface.key(name) for name in ("action", *extras)]
        self._observation, self._mask, self._act = interface.key("observation"), interface.key(MASK), act
        self._masked = interface.masked

    def action(self, observation: Any, mask: Tensor | None = None) -> Tensor:
        """The env's action for an observation ``[...]``, by itself: what an export traces."""
        acted = self._act(observation, mask) if self._masked else self._act(observation)
        return acted if isinstance(acted, Tensor) else acted["action"]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = tensordict.get(self._observation)
        acted = self._act(observation, tensordict.get(self._mask)) if self._masked else self._act(observation)
        if isinstance(acted, Tensor):
            return tensordict.set(self.out_keys[0], acted)
        for key in self.out_keys:
            tensordict.set(key, acted[key if isinstance(key, str) else key[-1]])
        return tensordict


class Agent(ABC):
    """A learner and its policies; knows nothing of worlds, files or loggers.

    Args:
        config: the agent's typed configuration, with at least the fields of :class:`AgentConfig`.
        interface: what it acts on.
        total_frames: length of the run, which schedules are relative to.
        device: of its networks.

    Attributes:
        networks: everything with parameters or running statistics, by name.
        optimizers: by the name of the learning rate in the configuration (``lr``, ``lr_actor``, ...).
        targets: slowly following copies, by name.
    """

    Config: ClassVar[type]
    SCHEDULED: ClassVar[dict[str, Interval]] = {"lr": Interval(low=0)}
    """Configuration fields that may be schedules, and the bounds of their values."""

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        self.config, self.interface, self.device = config, interface, device
        self.total_frames = total_frames
        self.updates, self.frames = 0, 0
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.targets: dict[str, Target] = {}
        self.schedules = {
            name: make_schedule(getattr(config, name), total_frames, f"agent.{name}", bounds)
            for name, bounds in self.SCHEDULED.items()
        }
        self.scheduled = {name: schedule(0) for name, schedule in self.schedules.items()}
        self.normalizer: ObservationNormalizer | None = None
        if config.normalize_observations:
            self.normalizer = ObservationNormalizer(interface.observation).to(device)
            self.networks["normalizer"] = self.normalizer
        self.reward_scaler: RewardScaler | None = None
        if config.normalize_rewards:
            self.reward_scaler = RewardScaler(config.gamma).to(device)
            self.networks["reward_scaler"] = self.reward_scaler

    # -- building ------------------------------------------------------------------------------------------------

    def encoder(self) -> nn.Module:
        """A new encoder of the observation."""
        c = self.config
        features = self.interface.features if c.inputs == "features" else None
        return build_encoder(self.interface.observation, features, c.self_features, c.object_features)

    def add_network(self, name: str, network: nn.Module, target_tau: float | None = None) -> Any:
        """Puts a network on the device and under ``networks[name]``, with a target if a tau is given."""
        network = network.to(device=self.device, dtype=self.interface.dtype)
        self.networks[name] = network
        if target_tau is not None:
            self.targets[name] = Target(network, target_tau)
        return network

    def add_optimizer(
        self, name: str, *networks: nn.Module | list[Tensor], max_grad_norm: float | None, **options: Any
    ) -> Optimizer:
        """An optimiser of these networks, each clipped by itself, whose learning rate is the schedule ``name``."""
        optimizer = Optimizer(
            [network if isinstance(network, list) else list(network.parameters()) for network in networks],
            self.scheduled[name],
            max_grad_norm,
            precision=self.config.precision,
            accumulate=self.config.accumulate,
            **options,
        )
        self.optimizers[name] = optimizer
        return optimizer

    def normalized(self, observation: Any) -> Any:
        """The observation as the networks see it."""
        return observation if self.normalizer is None else self.normalizer(observation)

    # -- what an algorithm fills in ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def check(cls, interface: Interface) -> None:
        """Raises a one-line :class:`ConfigError` if the algorithm cannot act on such an env."""

    @abstractmethod
    def policy(self, explore: bool) -> TensorDictModuleBase:
        """The greedy or the exploring policy: an env's tensordict in, the same with actions out.

        It shares the learner's parameters, so it always acts as the latest update would.
        """

    @abstractmethod
    def learn(self, sequences: TensorDictBase, frames: int) -> dict[str, Tensor | float]:
        """Takes in new data ``[B, T]`` (see ``collection.flatten``) and updates the networks.

        Args:
            sequences: folded collector batch.
            frames: decisions made so far in the run, this batch included.

        Returns metrics named ``group/name``.
        """

    @abstractmethod
    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        """One update on just this data, outside the run's schedule: what a self-check tries."""

    def imitation_loss(self, observation: Any, action: Tensor, mask: Tensor | None) -> Tensor:
        """Behaviour cloning: a scalar that is least where the policy acts as given.

        Args:
            observation: normalised batch ``[N]``.
            action: as the agent has it: ``[N, D]`` in [-1, 1], choices ``[N]``, or ``[N, K]`` of several parts.
            mask: legal actions ``[N, n]``, where the env has them.
        """
        raise ConfigError(f"{type(self).__name__} cannot imitate")

    # -- schedules and state -------------------------------------------------------------------------------------

    def set_frames(self, frames: int) -> None:
        """Sets every schedule (learning rates, exploration) to this point of the run."""
        self.frames = frames
        self.scheduled = {name: schedule(frames) for name, schedule in self.schedules.items()}
        for name, optimizer in self.optimizers.items():
            optimizer.lr = self.scheduled[name]

    def parameters(self) -> list[Tensor]:
        """All trained parameters."""
        return [parameter for optimizer in self.optimizers.values() for parameter in optimizer.parameters]

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers and counters as nested dicts of tensors and numbers."""
        return {
            "networks": {name: dict(network.state_dict()) for name, network in self.networks.items()},
            "targets": {name: dict(target.network.state_dict()) for name, target in self.targets.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "updates": self.updates,
            "frames": self.frames,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        for name, network in self.networks.items():
            network.load_state_dict(state["networks"][name])
        for name, target in self.targets.items():
            target.network.load_state_dict(state["targets"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.updates = state["updates"]
        self.set_frames(state["frames"])

    def begin_episodes(self) -> None:
        """What follows does not go on from what was learned last: forgets episodes that were under way."""
        if self.reward_scaler is not None:
            self.reward_scaler.returns.zero_()

    def replay_state(self) -> dict[str, Any] | None:
        """The replay memory for a checkpoint, None for agents without one."""
        return None

    def load_replay_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`replay_state`."""
        raise ConfigError(f"{type(self).__name__} has no replay memory to restore")


@dataclass
class AgentConfig:
    """What the configuration of every agent has; the yaml files say what each number does."""

    name: str
    algorithm: str
    steps_per_batch: Count
    # networks
    inputs: Literal["raw", "features"]
    self_features: Count
    object_features: list[Count]
    hidden: list[Count]
    activation: Activation
    normalize_observations: bool
    normalize_rewards: bool
    # optimisation
    gamma: Fraction
    precision: Precision
    accumulate: Count
