"""Agents by name. ``make_agent`` builds one for an env from its yaml and overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torchrl.envs import EnvBase

from rlstack.config import ConfigError, build, load_group
from rlstack.config.agents import defaults_of
from rlstack.config.errors import missing_option
from rlstack.envs.named import found

from .base import Agent
from .interface import Interface
from .optimizer import decided

__all__ = ["Agent", "Interface", "agent_class", "build_agent", "make_agent", "register"]

_AGENTS: dict[str, str] = {
    "ppo": "rlstack.agents.ppo:PPO",
    "a2c": "rlstack.agents.a2c:A2C",
    "pqn": "rlstack.agents.pqn:PQN",
    "dqn": "rlstack.agents.dqn:DQN",
    "rainbow": "rlstack.agents.rainbow:Rainbow",
    "qrdqn": "rlstack.agents.qrdqn:QRDQN",
    "iqn": "rlstack.agents.iqn:IQN",
    "ddpg": "rlstack.agents.ddpg:DDPG",
    "td3": "rlstack.agents.td3:TD3",
    "sac": "rlstack.agents.sac:SAC",
    "tqc": "rlstack.agents.tqc:TQC",
    "acqn": "rlstack.agents.acqn:ACQN",
    "torchrl": "rlstack.agents.torchrl:AroundLoss",
    "legacy": "rlstack.agents.legacy:Legacy",
    "ppo_published": "rlstack.adapters.published:PublishedPPO",
    "sac_published": "rlstack.adapters.published:PublishedSAC",
    "rainbow_published": "rlstack.adapters.published:PublishedRainbow",
}


def register(name: str, target: str) -> None:
    """Makes ``algorithm: name`` in an agent's yaml build ``target``, a dotted path ``package.module:Class``."""
    if ":" not in target:
        raise ValueError(f"target {target!r} of agent {name!r} is not of the form 'package.module:Class'")
    _AGENTS[name] = target


def agent_class(name: str | None) -> type[Agent]:
    """Returns the class of an algorithm, given its registered name or a dotted path ``package.module:Class``."""
    if name is None:
        raise ConfigError(f"agent.algorithm: missing, one of {', '.join(_AGENTS)} or 'package.module:Class'")
    target = _AGENTS.get(name, name if ":" in name else None)
    if target is None:
        raise ConfigError(missing_option("agent.algorithm", name, list(_AGENTS)))
    try:
        cls = found(target)
    except ValueError as error:
        raise ConfigError(f"agent.algorithm: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Agent)):  # a file may name anything
        raise ConfigError(f"agent.algorithm: {target!r} is not a class of rlstack.agents.Agent")
    if not dataclasses.is_dataclass(getattr(cls, "Config", None)):
        wanted = "a dataclass of its options, such as one derived from rlstack.config.agents.OffPolicyConfig"
        raise ConfigError(f"agent.algorithm: {target} has no Config, {wanted}")
    return cls


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose missing options are filled in with the defaults of its algorithm."""
    return {**defaults_of(agent_class(config.get("algorithm")).Config), **config}


def build_agent(
    config: Mapping[str, Any], env: EnvBase, total_frames: int, device: torch.device | str = "cpu"
) -> Agent:
    """Builds the agent of a complete configuration (an ``agent`` group) for an env.

    Raises:
        ConfigError: in one line: an unknown key, a wrong type, an impossible value, or an env in which the algorithm
            cannot act.
    """
    cls = agent_class(config.get("algorithm"))
    interface = Interface.of(env)
    if config.get("recurrent") is not None:
        from .recurrent import recurrent_class

        cls = recurrent_class(cls)
    typed: Any = build(cls.Config, config, "agent")
    if getattr(typed, "precision", None) == "auto":
        typed.precision = decided(config, torch.device(device))
    cls = cls.of(typed)
    cls.check(interface)

    agent = cls(typed, interface, total_frames, torch.device(device))
    agent.own.check()
    return agent


def make_agent(
    name: str, env: EnvBase, total_frames: int = 1_000_000, device: torch.device | str | None = None, **overrides: Any
) -> Agent:
    """Builds an agent from ``conf/agent/<name>.yaml`` with overrides.

    Args:
        name: name of the yaml file.
        env: world in which the agent acts.
        total_frames: length of the run, to which schedules are relative.
        device: device of the networks and the replay buffer; default: the env's.
        overrides: values that replace those in the file.

    Example:
        >>> agent = make_agent("acqn", env, batch_size=512)
        >>> policy = agent.policy(explore=False)

    Raises:
        ConfigError: there is no such agent or option, the world does not fit, or ``env`` is none.
    """
    return build_agent(
        load_group("agent", name, overrides), env, total_frames, device or getattr(env, "device", None) or "cpu"
    )
