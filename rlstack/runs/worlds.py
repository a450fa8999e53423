"""Builds worlds from their configuration, and chooses the device of a run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_type_hints

import torch
from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from rlstack import envs
from rlstack.config import ConfigError, convert, to_plain
from rlstack.config.errors import unknown_key
from rlstack.config.groups import is_own
from rlstack.config.rooms import registered
from rlstack.data.replay import usable_device
from rlstack.envs.registry import register_option
from rlstack.envs.world import GROUP

_OURS = ("device", "seed")  # top-level keys of a run
_DTYPES = {"float32": torch.float32, "float64": torch.float64}

for _name, _option in registered("WORLD_OPTIONS").items():
    register_option(_name, **_option)


def world_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an ``env`` group as constructor arguments, checked against the constructor's annotations.

    Raises:
        ConfigError: the world or an option is unknown, a type is wrong, or a number is not finite.
    """
    name = config.get("name")
    if not name:
        raise ConfigError(f"env.name: missing, one of {', '.join(envs.names())} or 'package.module:Class'")
    try:
        allowed = envs.options_of(name)
        constructor = envs.constructor(name)
    except ValueError as error:
        raise ConfigError(f"env.name: {error}") from None
    try:
        hints = get_type_hints(constructor)
    except (NameError, TypeError):  # a user's class with other annotations: not checked
        hints = {}
    options = {}
    for key, value in config.items():
        if key == "name":
            continue
        if key not in allowed and "**" not in allowed:
            raise ConfigError(unknown_key(f"env.{key}", [entry for entry in allowed if entry not in _OURS]))
        options[key] = _checked(hints.get(key, Any), value, f"env.{key}")
    return options


def chosen_world(given: Mapping[str, Any] | None, of_run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a given ``env`` group; if it names no world, that of a run with the given options.

    Raises:
        ConfigError: no world is given, and there is no run.
    """
    if given and "name" in given:
        return dict(given)
    if of_run is None:
        raise ConfigError(f"env: missing, which world to act in: env=<group>, one of {', '.join(envs.names())}")
    return dict(to_plain(OmegaConf.merge(of_run, given or {})))


def with_defaults(env: Mapping[str, Any]) -> dict[str, Any]:
    """Completes the ``env`` group of a world without a yaml of rlstack by the defaults of its constructor.

    Defaults that yaml cannot hold are left to the constructor.

    Raises:
        ConfigError: see :func:`world_options`.
    """
    if not isinstance(env.get("name"), str) or not is_own(env["name"]):
        return dict(env)
    world_options(env)
    parameters = inspect.signature(envs.constructor(env["name"])).parameters
    defaults = {name: _plain(entry.default) for name, entry in parameters.items() if name not in ("self", *_OURS)}
    known = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}
    return {"name": env["name"], **known, **env}


def _plain(default: Any) -> Any:
    """Returns a default in yaml's types, or ``Parameter.empty`` if there is none or yaml cannot hold it."""
    if isinstance(default, torch.dtype):
        return next((name for name, dtype in _DTYPES.items() if dtype == default), inspect.Parameter.empty)
    try:
        return inspect.Parameter.empty if callable(default) else to_plain(default)
    except ConfigError:
        return inspect.Parameter.empty


def _checked(hint: Any, value: Any, key: str) -> Any:
    if hint is torch.dtype:
        if not isinstance(value, str) or value not in _DTYPES:
            raise ConfigError(f"{key}: {value!r} is unknown, allowed: {', '.join(_DTYPES)}")
        return _DTYPES[value]
    with suppress(TypeError):  # a user's annotation of another kind: not checked
        value = convert(hint, value, key)
    _check_finite(value, key)
    return value


def _check_finite(value: Any, key: str) -> None:
    """Raises an error for a number at any depth that results of a run cannot hold: one that is not finite, or huge."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}: {value} is not a finite number")
    if isinstance(value, int) and abs(value) > 2**53:  # which a float still holds exactly
        raise ConfigError(f"{key}: {value} is larger than 2**53")
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, part in parts:
        _check_finite(part, f"{key}.{name}")


def build_world(
    config: Mapping[str, Any], device: torch.device | str = "cpu", seed: int = 0, **overrides: Any
) -> EnvBase:
    """Builds the world of an ``env`` group; passes ``device``, ``seed`` and overrides if the world has these options.

    The override ``num_worlds`` also sets ``num_envs`` of a world that uses this name.

    Raises:
        ConfigError: the world or an option is unknown, or a value has the wrong type or is impossible.
    """
    options = world_options(config)
    accepted = envs.options_of(config["name"])
    if "num_worlds" in overrides and "num_envs" in accepted:
        overrides["num_envs"] = overrides.pop("num_worlds")
    ours = {"device": device, "seed": seed, **overrides}
    options |= {key: value for key, value in ours.items() if key in accepted or "**" in accepted}
    try:
        env = envs.make(config["name"], **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from error
    keys = list(env.observation_spec.keys()) if isinstance(env, EnvBase) else ["observation"]
    if not {"observation", GROUP} & set(keys):
        name, shown = config["name"], ", ".join(map(str, keys))
        raise ConfigError(f"env.name: {name} shows no observation, but {shown}; env=torchrl env.id={name} takes it")
    return env


def size_key(config: Mapping[str, Any]) -> Any:
    """Returns the option of an ``env`` group with the number of worlds; None if there is only one."""
    return next((name for name in ("num_worlds", "num_envs") if config.get(name) is not None), None)


def device_of_worlds(name: str | None, learner: torch.device) -> torch.device:
    """Returns the device of the worlds; without a name, the learner's.

    Raises:
        ConfigError: the name is not that of a device, or the device does not exist.
    """
    return learner if name is None else usable_device(name, "collector.device", "null, cpu, cuda, cuda:<k>")


def choose_device(name: str) -> torch.device:
    """Returns the device of a name: ``auto`` is the GPU if there is one, otherwise the CPU. A GPU gets its number.

    Raises:
        ConfigError: the name is not that of a device, or the device does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device(name, "device", "auto, cpu, cuda, cuda:<k>")
