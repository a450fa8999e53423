"""Policies to imitate, from wherever they come, tried in the world they are to act in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from rlstack.agents.fit import check_bounds
from rlstack.agents.foreign import load_policy
from rlstack.agents.interface import Interface
from rlstack.config import ConfigError
from rlstack.play.teachers import ScriptedPolicy, scripted_policy
from rlstack.runs.seeding import rng_untouched

Expert: TypeAlias = TensorDictModuleBase | str | Path
"""A policy; a name of the world's own players; a run directory or checkpoint; or ``kind:path`` of an agent from
elsewhere."""


def expert_policy(
    expert: Expert, env: EnvBase, interface: Interface, options: Mapping[str, Any] | None = None
) -> TensorDictModuleBase:
    """An expert as a policy that has been tried on a sample of the env's observations; draws no random numbers.

    Args:
        env: what it is to act in.
        interface: of the env.
        options: of the kind of agent, see :func:`rlstack.agents.foreign.load_policy`.

    Raises:
        ConfigError: no such expert, or one that cannot act in this env.
    """
    own = scripted_policy(env, expert) if isinstance(expert, str) and not options else expert
    if isinstance(own, ScriptedPolicy):  # knows its world by the state it is in: before a reset there is none
        return own
    who = str(expert) if isinstance(expert, str | Path) else type(expert).__name__
    try:
        with rng_untouched():
            policy = load_policy(who, env, **(options or {})) if isinstance(expert, str | Path) else expert
            _try_out(policy, env, interface, who)
    except ConfigError as error:
        raise ConfigError(f"imitation.expert: {error}") from None
    return policy


def _try_out(policy: TensorDictModuleBase, env: EnvBase, interface: Interface, who: str) -> None:
    key = interface.key("action")
    spec = env.full_action_spec[key]
    sample = env.fake_tensordict().exclude("next", key).update(env.observation_spec.rand())
    try:
        with torch.no_grad():
            action = policy(sample).get(key, None)
    except Exception as error:  # a policy from elsewhere may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{who} does not fit the env: {reason}") from error
    if not isinstance(action, Tensor):
        raise ConfigError(f"{who} gives no action")
    if action.shape != spec.shape or action.is_floating_point() != spec.dtype.is_floating_point:
        offered = f"{action.dtype} of shape {list(action.shape)}"
        raise ConfigError(f"{who}: actions are {offered}, the env takes {spec.dtype} of shape {list(spec.shape)}")
    check_bounds(action, interface.action, who)
    forget = getattr(policy, "reset", None)
    if callable(forget):  # policies with a memory
        forget()
