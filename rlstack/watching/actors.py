"""Who is to be watched, and in which world."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from omegaconf import OmegaConf
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

import envs
from rlstack.agents.foreign import load_policy, parse
from rlstack.agents.interface import Interface, difference
from rlstack.config import ConfigError, to_plain
from rlstack.config.errors import did_you_mean
from rlstack.evaluation.evaluator import evaluation_world
from rlstack.play.option import without
from rlstack.play.sides import sides_of
from rlstack.play.teachers import ScriptedPolicy
from rlstack.runs.loading import LoadedRun, load
from rlstack.runs.worlds import choose_device, world_options

from .reels import Policy

if TYPE_CHECKING:
    from rlstack.watch import WatchConfig

_TRAINED = ("greedy", "explore")
_RANDOM, _SCRIPTED = "random", "scripted"


class Actor(NamedTuple):
    """A policy in the only world of an env."""

    world: str
    env: EnvBase
    policy: Policy
    name: str


def find_actor(config: WatchConfig, given: Collection[str] = ()) -> Actor:
    """Builds the world and whoever acts in it.

    Args:
        given: options of the world that were asked for, which an evaluation would otherwise override.

    Raises:
        ConfigError: one line: no such agent, player, world or option, or an agent that does not fit the world.
    """
    device = choose_device(config.device)
    kind, path = (None, "") if config.checkpoint is None else parse(config.checkpoint)
    _check(config, kind)
    loaded = load(path, device, config.which, config.agent) if kind == "rlstack" else None
    group = _world_group(config, loaded)
    scripted = config.checkpoint is None and config.policy != _RANDOM
    if scripted:
        both = getattr(envs.world_class(group["name"]), "two_sided_options", {})
        group, given = {**without(group), **both}, [*given, *both]
    env = _build(group, given, device)
    policy: Policy
    if loaded is not None:
        if (fault := difference(loaded.agent.interface, Interface.of(env))) is not None:
            raise ConfigError(f"env={group['name']} does not fit the agent: {fault}")
        policy = loaded.agent.policy(explore=config.policy == "explore")
    elif config.checkpoint is not None:
        policy = load_policy(config.checkpoint, env, **(config.agent or {}))
    else:
        policy = _own_player(env, group["name"], config.policy) if scripted else _at_random(env)
    who = config.policy if config.checkpoint is None else config.checkpoint
    return Actor(group["name"], env, policy, f"{who} in {group['name']}")


def _check(config: WatchConfig, kind: str | None) -> None:
    if kind is None and config.policy in _TRAINED:
        raise ConfigError("checkpoint: missing, give checkpoint=runs/<run>, policy=random or policy=scripted")
    if kind is None and config.agent is not None:
        raise ConfigError(f"agent: policy={config.policy} takes no options")
    if kind is not None and config.policy not in _TRAINED:
        guess = did_you_mean(config.policy, _TRAINED)
        raise ConfigError(f"policy: {config.policy!r}, {guess}allowed with a checkpoint: {', '.join(_TRAINED)}")
    if kind not in (None, "rlstack") and config.policy == "explore":
        raise ConfigError("policy: explore is for agents of ours; one from elsewhere acts in the one way that it has")


def _world_group(config: WatchConfig, loaded: LoadedRun | None) -> dict[str, Any]:
    """The ``env`` group: the one that is given; else that of the run, with the keys that are given."""
    given = config.env or {}
    if "name" in given:
        return given
    if loaded is None:
        raise ConfigError(f"env: missing, which world to act in: env=<group>, one of {', '.join(envs.names())}")
    return dict(to_plain(OmegaConf.merge(loaded.config["env"], given)))


def _build(group: Mapping[str, Any], given: Collection[str], device: torch.device) -> EnvBase:
    """One world; of those that draw only when asked to, one that does if it can."""
    options = world_options(group)
    try:
        drawing = getattr(envs.world_class(group["name"]), "drawing_options", {})
        asked = {key: {**value, **(options.get(key) or {})} for key, value in drawing.items()}
        try:
            return evaluation_world(group["name"], {**options, **asked}, 1, device, kept=given)
        except (ValueError, TypeError):
            return evaluation_world(group["name"], options, 1, device, kept=given)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from None


def _at_random(env: EnvBase) -> Policy:
    def act(tensordict: TensorDictBase) -> TensorDictBase:
        return env.rand_action(tensordict)

    return act


def _own_player(env: EnvBase, world: str, name: str) -> Policy:
    """A player that comes with the world.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        own = list(sides_of(env).scripted)
    except ConfigError:
        own = []
    chosen = own[0] if name == _SCRIPTED and own else name
    if chosen not in own:
        known = [_RANDOM, *([_SCRIPTED] if own else []), *own]
        raise ConfigError(f"policy: {world} has no {name!r}, {did_you_mean(name, known)}available: {', '.join(known)}")
    return ScriptedPolicy(env, chosen)
