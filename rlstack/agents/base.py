"""What every agent offers, and what an env looks like to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.envs import EnvBase

from rlstack.config import ConfigError

GROUP = "agents"


@dataclass(frozen=True)
class Interface:
    """An env as one agent sees it: the specs of a single decision, without batch or agent dimensions.

    Attributes:
        group: key under which several agents stand, None for a single agent.
        observation: spec of one observation, a Composite when structured.
        action: spec of one action.
        features: builds the world's own input scaling (a module from observation to observation), if it has one.
        dtype: of floating-point observations.
    """

    group: str | None
    observation: TensorSpec
    action: TensorSpec
    features: Callable[[], nn.Module] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, env: EnvBase) -> Interface:
        """Reads an env's specs."""
        group = GROUP if GROUP in env.observation_spec.keys() else None  # noqa: SIM118
        prefix = () if group is None else (group,)
        lead = env.full_action_spec[group].shape if group is not None else env.batch_size
        observation = _strip(env.observation_spec[(*prefix, "observation")], len(lead))
        action = _strip(env.full_action_spec[(*prefix, "action")], len(lead))
        dtypes = [leaf.dtype for leaf in _leaves(observation) if leaf.dtype.is_floating_point]
        features = getattr(env, "input_features", None)
        return cls(group, observation, action, features, dtypes[0] if dtypes else torch.get_default_dtype())

    def key(self, name: str) -> str | tuple[str, str]:
        """``name`` or ``(group, name)``."""
        return name if self.group is None else (self.group, name)

    @property
    def continuous(self) -> bool:
        """The action is a bounded vector."""
        return isinstance(self.action, Bounded) and self.action.dtype.is_floating_point

    def observation_keys(self) -> list[Any]:
        """Leaf keys of the observation in the env's layout, for a policy's ``in_keys``."""
        root = self.key("observation")
        if not isinstance(self.observation, Composite):
            return [root]
        prefix = root if isinstance(root, tuple) else (root,)
        leaves = self.observation.keys(include_nested=True, leaves_only=True)
        return [(*prefix, *((key,) if isinstance(key, str) else key)) for key in leaves]


def _strip(spec: TensorSpec, dims: int) -> TensorSpec:
    """The spec of one entry of its leading dimensions."""
    return spec[(0,) * dims] if dims else spec


def _leaves(spec: TensorSpec) -> list[TensorSpec]:
    return list(spec.values(include_nested=True, leaves_only=True)) if isinstance(spec, Composite) else [spec]


class Policy(TensorDictModuleBase):
    """Writes an action for every decision in an env's tensordict; a bare module, without dispatch overhead."""

    def __init__(self, interface: Interface, act: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.in_keys = interface.observation_keys()
        self.out_keys = [interface.key("action")]
        self._observation, self._act = interface.key("observation"), act

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(self.out_keys[0], self._act(tensordict.get(self._observation)))


class Agent(ABC):
    """A learner and its policies; knows nothing of worlds, files or loggers.

    Args:
        config: the agent's typed configuration.
        interface: what it acts on.
        total_frames: length of the run, which schedules are relative to.
        device: of its networks and its replay.
    """

    Config: ClassVar[type]

    def __init__(self, config: Any, interface: Interface, total_frames: int, device: torch.device) -> None:
        self.config, self.interface, self.device = config, interface, device
        self.total_frames = total_frames
        self.updates = 0

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
    def set_frames(self, frames: int) -> None:
        """Sets every schedule (learning rates, exploration) to this point of the run."""

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

    @abstractmethod
    def parameters(self) -> list[Tensor]:
        """All trained parameters."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Networks, optimisers and counters as nested dicts of tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores :meth:`state_dict`."""

    def replay_state(self) -> dict[str, Any] | None:
        """The replay memory for a checkpoint, None for agents without one."""
        return None

    def load_replay_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`replay_state`."""
        raise ConfigError(f"{type(self).__name__} has no replay memory to restore")
