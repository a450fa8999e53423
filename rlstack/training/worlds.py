"""Worlds from configuration, and the device everything runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torchrl.envs import EnvBase

import envs
from rlstack.config import ConfigError

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def world_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """An ``env`` group as constructor arguments: without its name, dtype as a torch dtype."""
    options = {key: value for key, value in config.items() if key != "name"}
    if "dtype" in options:
        if options["dtype"] not in _DTYPES:
            raise ConfigError(f"env.dtype: {options['dtype']!r} is unknown, allowed: {', '.join(_DTYPES)}")
        options["dtype"] = _DTYPES[options["dtype"]]
    return options


def build_world(
    config: Mapping[str, Any], device: torch.device | str = "cpu", seed: int = 0, **overrides: Any
) -> EnvBase:
    """Builds the world of an ``env`` group.

    Raises:
        ConfigError: unknown world, unknown option or impossible value, in one line.
    """
    if not config.get("name"):
        raise ConfigError(f"env.name: missing, one of {', '.join(envs.names())} or 'package.module:Class'")
    try:
        return envs.make(config["name"], **{**world_options(config), "device": device, "seed": seed, **overrides})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"env: {error}") from error


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU if there is one; anything else is a torch device.

    Raises:
        ConfigError: not a device, or one that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device: {name!r} cannot be used ({reason}); allowed: auto, cpu, cuda, cuda:<k>") from None
    return device
