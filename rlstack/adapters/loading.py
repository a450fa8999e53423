"""The loaders of :mod:`rlstack.agents.foreign` that need more than one call: a path and an env to a policy."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from rlstack.adapters import sb3
from rlstack.adapters.protocols import foreign_policy, load_callable
from rlstack.agents.interface import Interface, difference
from rlstack.config import ConfigError
from rlstack.runs.loading import load


def run_policy(path: str, env: EnvBase, which: str = "latest", explore: bool = False) -> TensorDictModuleBase:
    """A run directory or checkpoint of ours."""
    agent = load(path, device=env.device or "cpu", which=which).agent
    fault = difference(agent.interface, Interface.of(env))
    if fault is not None:
        raise ConfigError(f"{path}: the agent does not fit the env: {fault}")
    return agent.policy(explore=explore)


def sb3_policy(path: str, env: EnvBase, vecnormalize: Any = None, deterministic: bool = True) -> TensorDictModuleBase:
    """A model of Stable-Baselines3."""
    return sb3.sb3_policy(sb3.load_sb3(path, vecnormalize), env, deterministic)


def callable_policy(
    path: str, env: EnvBase, protocol: Any = "auto", batched: bool = True, arrays: Any = "auto"
) -> TensorDictModuleBase:
    """A callable by its dotted path ``package.module:attribute``."""
    return foreign_policy(load_callable(path), env, protocol, batched, arrays)
