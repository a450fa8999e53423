"""Loads agents from any source as policies of an env, named by ``kind:path``; and an agent that acts by such a policy,
explores at random, and never learns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.data import Binary, Composite, TensorSpec
from torchrl.envs import EnvBase

from rlstack.config import ConfigError
from rlstack.config.allowed import granting
from rlstack.config.errors import missing_option, nearest_path, unknown_key
from rlstack.config.options import Count, Probability
from rlstack.config.rooms import Kind, registered, target
from rlstack.envs.foundation.tensors import by_name
from rlstack.envs.world import Mirror, WorldHooks

from .base import Agent, exploring
from .interface import MASK, Interface, check_world

KINDS: dict[str, Kind] = {
    "rlstack": Kind("rlstack.runs.loading:run_policy", ("which", "explore")),
    "zoo": Kind("rlstack.runs.loading:zoo_policy", ("explore",)),
    "hf": Kind("rlstack.runs.loading:hub_policy", ("explore",)),
    **registered("KINDS"),
}
"""The kinds of agents that :func:`load_policy` loads, with the options of each."""


def load_policy(source: str, env: EnvBase, allow: Collection[str] = (), **options: Any) -> TensorDictModuleBase:
    """Loads an agent from any source as a policy of an env.

    Without a kind, and of kind ``rlstack``, the path is a run directory or a checkpoint, with the options ``which``
    (latest, best) and ``explore`` (False); of kind ``zoo`` it is the name of an agent of rlstack's own, of kind ``hf``
    ``<user>/<name>`` on the Hugging Face Hub. The other kinds and their options are those that rooms register: see
    :data:`KINDS` and ``rlstack/adapters/README.md``.

    Args:
        source: ``kind:path``.
        env: world in which the policy acts, and whose device it is on.
        allow: what one of our checkpoints may name, see :func:`rlstack.load`.
        options: options of the kind.

    Raises:
        ConfigError: in one line: no such kind, option or file, or an agent that cannot act in this env.

    Example:
        >>> policy = load_policy("sb3:model.zip", env, vecnormalize="statistics.pkl")
    """
    check_world(env)
    kind, path = parse(source)
    for name in options:
        if name not in KINDS[kind].options:
            raise ConfigError(unknown_key(f"{kind}.{name}", KINDS[kind].options))
    with granting(list(allow)):
        return target(KINDS[kind].policy)(path, env, **options)


def parse(source: str) -> tuple[str, str]:
    """Splits ``kind:path`` into its parts; a path alone is one of our runs or checkpoints.

    Raises:
        ConfigError: no such kind, or no path after it.
    """
    kind, colon, path = source.partition(":")
    if Path(source).exists():
        return "rlstack", source
    if not colon:
        raise ConfigError(
            f"{source!r} does not exist{nearest_path(source)}; a policy is a run directory, a checkpoint, or kind:path "
            f"with one of the kinds {', '.join(KINDS)}"
        )
    check_kind(kind, source)
    if not path:
        raise ConfigError(f"{source!r}: nothing behind the kind, expected {kind}:path")
    return kind, path


def check_kind(kind: str, source: str = "") -> None:
    """Raises a one-line :class:`ConfigError` unless agents of such a kind can be loaded."""
    if kind not in KINDS:
        raise ConfigError(missing_option(f"{source!r}: kind" if source else "kind", kind, list(KINDS)))


# -- an agent ---------------------------------------------------------------------------------------------------------


@dataclass
class LegacyConfig:
    """The options of an agent from elsewhere; options of other kinds than the agent's must be null."""

    name: str
    algorithm: str
    kind: str | None = None  # rlstack, or one of those that rlstack/adapters registers
    path: str | None = None  # its file or folder, or package.module:attribute of a callable
    epsilon: Probability = 0.0  # probability of a uniform random action while exploring

    # of one kind only; null: that kind's default
    vecnormalize: str | None = None  # sb3: file of the VecNormalize statistics it was trained with
    normalization: str | None = None  # arena: file of its statistics, or none; null: the file next to the checkpoint
    deterministic: bool | None = None  # sb3, arena: false samples actions; null: true
    agent_type: str | None = None
    #   marinenav: AC-IQN | IQN | DDPG | DQN | SAC | Rainbow, if the files do not tell
    protocol: Literal["auto", "callable", "act", "predict"] | None = None  # callable: its interface: callable | act |
    #   predict; null: detected
    batched: bool | None = None  # callable: false calls it once per observation; null: true
    arrays: Literal["auto", "numpy", "torch"] | None = None  # callable: numpy | torch; null: detected
    which: Literal["latest", "best"] | None = None  # rlstack: latest | best of a run; null: latest
    steps_per_batch: Count = 1  # env steps per world between two calls

    normalize_observations: ClassVar[bool] = False
    normalize_rewards: ClassVar[bool] = False


class Legacy(Agent):
    """An agent that acts by a policy from :func:`load_policy`."""

    Config = LegacyConfig

    def __init__(self, config: LegacyConfig, interface: Interface, total_frames: int, device: torch.device) -> None:
        super().__init__(config, interface, total_frames, device)
        if config.kind is None or config.path is None:
            raise ConfigError(
                "agent=legacy needs agent.kind and agent.path, such as agent.kind=sb3 agent.path=model.zip; "
                f"kinds: {', '.join(KINDS)}"
            )
        try:
            check_kind(config.kind)
            stand_in: Any = SpecsOnly(interface, device)
            names = [name for entry in KINDS.values() for name in entry.options if name != "explore"]
            options = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
            self._policy = load_policy(f"{config.kind}:{config.path}", stand_in, **options)
        except ConfigError as error:
            raise ConfigError(f"agent.{error}" if str(error).startswith("kind: ") else f"agent: {error}") from None

    @classmethod
    def check(cls, interface: Interface, name: str) -> None:
        """Accepts every env: only the loaded agent knows which ones it can act in."""

    def policy(self, explore: bool | None = None) -> TensorDictModuleBase:
        """Returns the loaded policy, which mixes in random actions if it explores; recurrent ones are reset."""
        forget = getattr(self._policy, "reset", None)
        if callable(forget):
            forget()
        if explore is False or self.config.epsilon == 0.0:
            return self._policy
        return EpsilonPolicy(self._policy, self.interface, self.schedules["epsilon"], self.clock, explore)

    def learn(self, sequences: TensorDictBase, frames: int | Tensor) -> dict[str, Tensor | float]:
        raise self._untrainable()

    def update_once(self, sequences: TensorDictBase) -> dict[str, Tensor | float]:
        raise self._untrainable()

    def _untrainable(self) -> ConfigError:
        kind, path = self.config.kind, self.config.path
        if kind == "rlstack":
            return ConfigError(f"agent=legacy cannot be trained; begin a run from its networks: init={path}")
        imitate = f"imitate it: agent=<name> imitation.expert={kind}:{path}"
        if KINDS[kind].conversion is None:
            return ConfigError(f"an agent from elsewhere cannot be trained here; {imitate}")
        convert = f"rlstack convert {kind} {path} out=converted.pt env=<env>"
        return ConfigError(f"an agent from elsewhere cannot be trained here; convert it: {convert}; or {imitate}")


class EpsilonPolicy(TensorDictModuleBase):
    """Acts as another policy does, with a share of uniformly random (legal) actions while it explores.

    Args:
        policy: the other policy.
        interface: interface of the env.
        epsilon: probability of a random action, as a function of the frames of the run so far.
        clock: these frames, a 0-d tensor.
        explore: see :meth:`Agent.policy`.
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        interface: Interface,
        epsilon: Callable[[int], float],
        clock: Tensor,
        explore: bool | None,
    ) -> None:
        super().__init__()
        self.in_keys, self.out_keys = policy.in_keys, policy.out_keys
        self.policy, self._interface, self._epsilon, self._explore = policy, interface, epsilon, explore
        self.register_buffer("frames", clock)
        if callable(forget := getattr(policy, "reset", None)):  # it keeps its recurrent state itself
            self.reset = forget

    @by_name()
    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        acted: TensorDictBase = self.policy(tensordict)
        if not exploring(self._explore):
            return acted
        interface, key = self._interface, self._interface.key("action")
        observation = acted.get(interface.key("observation"))
        lead, action = interface.lead(observation), acted.get(key)
        mask = acted.get(interface.key(MASK)) if interface.masked else None
        chosen = torch.rand(lead, device=action.device) < self._epsilon(int(self.frames))
        if mask is None:  # actions of any kind, including those that our agents do not support
            drawn = interface.action.rand(lead).to(action.device)
        else:
            drawn = interface.to_env(interface.random_action(lead, action.device, mask))
        if isinstance(action, TensorDictBase):
            return acted.set(key, drawn.where(chosen, action))
        wide = chosen.reshape(*lead, *[1] * (action.dim() - len(lead)))
        return acted.set(key, torch.where(wide, drawn, action))


class SpecsOnly(WorldHooks):
    """A stand-in for an env, made from an agent's interface: one world with its agents, to load a policy for.

    Args:
        interface: the env as the agent sees it.
        device: device of the env.
    """

    def __init__(self, interface: Interface, device: torch.device) -> None:
        self.device, self.batch_size, self._agents = device, torch.Size([1]), interface.agents
        seen = {"observation": interface.observation}
        if interface.masked:
            seen[MASK] = Binary(sum(interface.choices or ()), dtype=torch.bool)
        self.observation_spec = self._of_one(interface.group, seen)
        self.full_action_spec = self._of_one(interface.group, {"action": interface.action})
        self.input_features, self.nearest_obstacle = interface.features, interface.nearest
        self.carries_memory = interface.carries
        self._mirror = interface.mirror

    def mirror(self) -> Mirror | str:
        return self._mirror

    def _of_one(self, group: str | None, specs: dict[str, TensorSpec]) -> Composite:
        lead = (1,) if group is None else (1, self._agents)
        placed = {name: spec.expand(*lead, *spec.shape) for name, spec in specs.items()}
        inner = Composite(placed, shape=lead).to(self.device)
        return inner if group is None else Composite({group: inner}, shape=(1,)).to(self.device)
