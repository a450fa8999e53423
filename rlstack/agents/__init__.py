"""Agents by name. ``make_agent`` builds one for an env from its yaml and overrides."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch
from torchrl.envs import EnvBase

from rlstack.config import ConfigError, build, conf_dir, load_group
from rlstack.config.errors import missing_option
from rlstack.config.options import defaults_of
from rlstack.config.rooms import registered
from rlstack.config.schedules import make_schedules
from rlstack.envs.foundation.packages import found

from .base import Agent
from .interface import Interface
from .optimizer import decided

__all__ = ["Agent", "Interface", "agent_class", "build_agent", "make_agent", "register"]

_REGISTERED: dict[str, str] = {}


def register(name: str, target: str) -> None:
    """Makes ``algorithm: name`` in an agent's yaml build ``target``, a dotted path ``package.module:Class``."""
    if ":" not in target:
        raise ValueError(f"target {target!r} of agent {name!r} is not of the form 'package.module:Class'")
    _REGISTERED[name] = target


def algorithms() -> list[str]:
    """Returns the names of all algorithms: those of the files in ``conf/agent``, and registered ones."""
    texts = [path.read_text(encoding="utf-8") for path in (conf_dir() / "agent").glob("*.yaml")]
    named = [re.search(r"^algorithm: (\w+)", text, re.MULTILINE) for text in texts]
    return sorted({match[1] for match in named if match} | {*registered("ALGORITHMS"), *_REGISTERED})


def _target(name: str) -> str:
    """Returns the dotted path of an algorithm's class.

    An algorithm is registered, or a module of this package with its name; its class is the module's first agent.
    """
    target = {**registered("ALGORITHMS"), **_REGISTERED}.get(name)
    if target is None and name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        module = importlib.import_module(f"{__name__}.{name}")
        own = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
        agent = next((cls for cls in own if issubclass(cls, Agent)), None)
        if agent is not None and dataclasses.is_dataclass(getattr(agent, "Config", None)):  # not in base.py
            target = f"{module.__name__}:{agent.__name__}"
    if target is None:
        message = missing_option("agent.algorithm", name, [known for known in algorithms() if known != name])
        raise ConfigError(f"{message}; there is no {__name__}.{name}" if name in algorithms() else message)
    return target


def agent_class(name: str | None) -> type[Agent]:
    """Returns the class of an algorithm, given its name or a dotted path ``package.module:Class``."""
    if name is None:
        raise ConfigError(f"agent.algorithm: missing, one of {', '.join(algorithms())} or 'package.module:Class'")
    target = name if ":" in name else _target(name)
    try:
        cls = found(target)
    except ValueError as error:
        raise ConfigError(f"agent.algorithm: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Agent)):  # a file may name anything
        raise ConfigError(f"agent.algorithm: {target!r} is not a class of rlstack.agents.Agent")
    if not dataclasses.is_dataclass(getattr(cls, "Config", None)):
        wanted = "a dataclass of its options, such as one derived from rlstack.agents.off_policy.OffPolicyConfig"
        raise ConfigError(f"agent.algorithm: {target} has no Config, {wanted}")
    return cls


def fitting(kind: str) -> list[str]:
    """Returns the shipped algorithms that take actions of a kind, see :attr:`Interface.kind`."""
    names = [path.stem for path in sorted((conf_dir() / "agent").glob("*.yaml"))]
    own = [name for name in names if importlib.util.find_spec(f"{__name__}.{name}") is not None]
    return [name for name in own if kind in getattr(agent_class(name), "ACTIONS", ())]


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration whose missing options are filled in with the defaults of its algorithm."""
    return {**defaults_of(agent_class(config.get("algorithm")).Config), **config}


def check_agent(config: Mapping[str, Any], total_frames: int) -> None:
    """Checks the options of an agent as far as possible without its world.

    Raises:
        ConfigError: an unknown key, a wrong type, or a number or schedule out of its bounds.
    """
    make_schedules(build(agent_class(config.get("algorithm")).Config, config, "agent"), total_frames, "agent")


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
    if getattr(typed, "critic_inputs", None):
        interface = interface.with_critic_inputs(typed.critic_inputs)
    concrete = cls.of(typed)
    concrete.check(interface, str(config.get("name") or config.get("algorithm")))
    agent = concrete(typed, interface, total_frames, torch.device(device))
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
