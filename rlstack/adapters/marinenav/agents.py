"""Published MarineNav agents as policies and as native agents, and native agents as published files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Composite
from torchrl.envs import EnvBase

from rlstack.adapters.marinenav.files import (
    ACTION_SIZE,
    CHOICES,
    CONTINUOUS,
    NETWORKS,
    NUM_OBJECTS,
    OBJECT_SIZE,
    SELF_SIZE,
    Published,
    Source,
    export_policy,
    load_published,
    published_arrays,
    published_state,
    widths,
    write_directory,
)
from rlstack.adapters.published import PublishedRainbow, PublishedSAC
from rlstack.agents import Agent, Interface, make_agent
from rlstack.agents.acqn import ACQN
from rlstack.agents.ddpg import DDPG
from rlstack.agents.dqn import DQN
from rlstack.agents.iqn import IQN
from rlstack.agents.rainbow import Rainbow
from rlstack.agents.sac import SAC
from rlstack.config import ConfigError
from rlstack.config.errors import prefixed

_CLASSES = {
    "AC-IQN": ACQN,
    "IQN": IQN,
    "DDPG": DDPG,
    "DQN": DQN,
    "SAC": SAC,
    "Rainbow": Rainbow,
}
CONFIGURATIONS = {kind: f"{algorithm.__name__.lower()}_published" for kind, algorithm in _CLASSES.items()}
"""The agent type's file in ``conf/agent``."""
_VARIANTS: dict[str, type[Agent]] = {"SAC": PublishedSAC, "Rainbow": PublishedRainbow}

_FIXED = {
    "activation": "relu",
    "inputs": "raw",
    "normalize_observations": False,
    "squash": "arctan",
}
_FIXED_OF: dict[str, dict[str, Any]] = {
    "Rainbow": {"num_atoms": 51, "value_min": -1.0, "value_max": 1.0},
    "SAC": {"critic": "scalar"},
}
"""Options with which an agent's weights mean the same in the published networks."""


# -- policies ----------------------------------------------------------------------------------------------------


def published_policy(source: Source, env: EnvBase, agent_type: str | None = None) -> TensorDictModuleBase:
    """A published agent of any type as a policy of a MarineNav env, acting as published.

    AC-IQN and DDPG act by their actor, DQN and Rainbow (without noise) by the highest value, IQN by the highest mean of
    32 quantiles at random levels; SAC samples.

    Args:
        source: see :func:`~rlstack.adapters.marinenav.files.load_published`.
        env: it acts for all robots of all worlds, on the env's device and in its dtype; with continuous actions for
            AC-IQN, DDPG and SAC, discrete ones for the others.
        agent_type: where files do not settle it.

    Raises:
        ConfigError: one line: what is wrong with the files, or an env that the agent cannot act in.

    Example:
        >>> env = envs.make("marinenav", num_worlds=16)
        >>> rollout = env.rollout(100, published_policy("AC_IQN_params.npz", env), break_when_any_done=False)
    """
    published = load_published(source, agent_type, env.device)
    kind = published.agent_type or "AC-IQN"  # an actor alone acts the same whichever it is
    interface = Interface.of(env)
    _check_fit(interface, kind)
    if published.export is not None:
        return export_policy(published.export, interface)
    # The memory is never used: as small as its rules allow.
    agent = _build(published, kind, env, 1, {"batch_size": 1, "buffer_size": 8})
    return agent.policy(explore=False)


# -- native agents -----------------------------------------------------------------------------------------------


def published_agent(
    source: Source,
    env: EnvBase,
    total_frames: int = 6_000_000,
    agent_type: str | None = None,
    device: torch.device | str | None = None,
    **overrides: Any,
) -> Agent:
    """A published agent as a native one of its ``*_published`` configuration, ready to continue training.

    Networks and targets get the weights. Where critics were not published with the actor they start fresh, which a
    warning says. Optimisers and memory start empty, and schedules at their beginning: the files hold none of these.

    Args:
        source: see :func:`~rlstack.adapters.marinenav.files.load_published`.
        env: what it is to act in.
        total_frames: length of the run, which schedules are relative to; the default is that of the original, in env
            steps.
        agent_type: where files do not settle it.
        device: of networks and memory; default the env's.
        overrides: values that replace the configuration's; widths follow the weights.

    Raises:
        ConfigError: one line: what is wrong with the files, the overrides or the env.

    Example:
        >>> agent = published_agent("training/seed_9", env, lr_actor=1e-5)
    """
    published = load_published(source, agent_type, env.device)
    if published.agent_type is None:
        raise ConfigError(f"{published.where}: the actor of AC-IQN or of DDPG; set agent_type")
    if not published.arrays:
        raise ConfigError(
            f"{published.where}: the export's weights have other names than the published, it can only act"
        )
    _check_fit(Interface.of(env), published.agent_type)
    agent = _build(published, published.agent_type, env, total_frames, overrides, device)
    if published.missing:
        text = f"{published.where}: published without {', '.join(published.missing)}, which start fresh"
        warnings.warn(text, stacklevel=2)
    return agent


def converted(
    path: str, env: EnvBase, options: Mapping[str, Any], agent_options: Mapping[str, Any]
) -> tuple[Agent, Any, int]:
    """Converts a published agent, see :class:`rlstack.config.rooms.Kind`."""
    return published_agent(path, env, **options, **agent_options), published_policy(path, env, **options), 0


def own_world(path: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the world of a published agent, with its kind of actions."""
    agent_type = load_published(path, **options).agent_type
    return "marinenav_published", {"continuous_actions": agent_type is None or agent_type in CONTINUOUS}


def save_published(agent: Agent, directory: str | Path) -> None:
    """Writes the published files (``.pth`` weights and constructor JSON) of a native agent of one of the six types.

    Args:
        agent: with networks as published: its configuration is a ``*_published`` one, of any widths.
        directory: is made; files of the same names are replaced.

    Raises:
        ConfigError: another algorithm, or other networks.
    """
    kind = next((kind for kind, known in _CLASSES.items() if type(agent) in (known, _VARIANTS.get(kind))), None)
    if kind is None:
        raise ConfigError(f"{type(agent).__name__} is not one of the published agents {', '.join(NETWORKS)}")
    _check_fit(agent.interface, kind)
    networks = {}
    fixed = {**_FIXED, **_FIXED_OF.get(kind, {})}
    changed = any(getattr(agent.config, key, value) != value for key, value in fixed.items())
    for part, names in NETWORKS[kind].items():
        state = network_state(agent, part)
        if changed or {key.rpartition(".")[0] for key in state} != set(names.values()):
            raise ConfigError(
                f"this {kind} agent has other networks than the published; agent={CONFIGURATIONS[kind]} has those"
            )
        networks[part] = published_arrays(state, names)
    write_directory(directory, networks)


def _network(agent: Agent, part: str, target: bool = False) -> nn.Module | None:
    """Returns a network by its part in :data:`NETWORKS`, or its target network; None if it has no target."""
    if isinstance(agent, ACQN):
        network: nn.Module = getattr(agent.loss, f"{'target_' if target else ''}{part}_network")
        return network
    if target:
        return agent.targets[part].network if part in agent.targets else None
    return agent.networks[part]


def network_state(agent: Agent, part: str) -> dict[str, Tensor]:
    """Returns the parameters of a network (``actor``, ``critic``, ``critic_1``, ..., ``network``) by our names."""
    network = _network(agent, part)
    assert network is not None
    return dict(network.state_dict())


def set_network(agent: Agent, part: str, state: Mapping[str, Tensor], target: bool) -> None:
    """Loads a ``state_dict`` by our names into a network, or into its target if it has one.

    The noise of noisy layers may be missing: the network then keeps what it drew.

    Raises:
        ConfigError: the network has other layers or widths.
    """
    network = _network(agent, part, target)
    if network is None:
        return
    try:
        missing, surplus = network.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise ConfigError(f"{part}: {error}") from None
    if surplus or not all(key.endswith("_epsilon") for key in missing):
        raise ConfigError(f"{part}: the agent's network has other layers than the published")


def _build(
    published: Published,
    kind: str,
    env: EnvBase,
    total_frames: int,
    overrides: dict[str, Any],
    device: torch.device | str | None = None,
) -> Agent:
    sizes = widths(next(iter(published.arrays.values())))
    for name in sizes.keys() & overrides.keys():
        if overrides[name] != sizes[name]:
            raise ConfigError(
                f"agent.{name}: {overrides[name]} contradicts the published weights, which have {sizes[name]}"
            )
    agent = make_agent(CONFIGURATIONS[kind], env, total_frames, device, **{**overrides, **sizes})
    with prefixed(published.where):
        for part, arrays in published.arrays.items():
            state = published_state(arrays, NETWORKS[kind][part])
            for target in (False, True):
                set_network(agent, part, state, target)
    return agent


def _check_fit(interface: Interface, kind: str) -> None:
    """Raises an error unless the env shows what MarineNav shows and takes the agent's kind of actions."""
    spec = interface.observation
    shapes = {"self": (SELF_SIZE,), "objects": (NUM_OBJECTS, OBJECT_SIZE), "mask": (NUM_OBJECTS,)}
    sees = {str(key): tuple(leaf.shape) for key, leaf in spec.items()} if isinstance(spec, Composite) else {}
    if sees != shapes:
        raise ConfigError(f"the published MarineNav agents need the observation {shapes}, the env has {sees or spec}")
    if kind in CONTINUOUS:
        if not interface.continuous or tuple(interface.action.shape) != (ACTION_SIZE,):
            raise ConfigError(
                f"the published {kind} needs {ACTION_SIZE} continuous actions, the env has "
                f"{interface.describe_action()}; set env.continuous_actions=true"
            )
    elif interface.choices != (CHOICES,):
        raise ConfigError(
            f"the published {kind} needs {CHOICES} discrete actions, the env has {interface.describe_action()}; "
            "set env.continuous_actions=false"
        )
