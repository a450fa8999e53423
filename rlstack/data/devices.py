"""Devices by name, checked for availability."""

from __future__ import annotations

import torch

from rlstack.config import ConfigError


def usable_device(name: str, key: str, allowed: str) -> torch.device:
    """Returns a device by its name, with its index, as tensors report it.

    Args:
        name: name of the device in torch.
        key: option in which the name was given, for messages.
        allowed: allowed values of that option, for messages.

    Raises:
        ConfigError: not a device, or one that is not available.
    """
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ConfigError(f"{key}: {name!r} holds no data; allowed: {allowed}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}: {name!r} cannot be used ({reason}); allowed: {allowed}") from None
    return indexed(device)


def indexed(device: torch.device | str) -> torch.device:
    """Returns the device with its index, as tensors report it."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
