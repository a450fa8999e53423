"""Devices by name, and whether they are there."""

from __future__ import annotations

import torch

from rlstack.config import ConfigError


def usable_device(name: str, key: str, allowed: str) -> torch.device:
    """A device by its name, with its number as tensors report it.

    Args:
        name: as torch has it.
        key: where the name was given, for messages.
        allowed: what may be given there, for messages.

    Raises:
        ConfigError: not a device, or one that is not there.
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
    """The device with its number, as tensors report it."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
