"""Writes Python values as Hydra reads them on a command line: ``key=value``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from types import FunctionType
from typing import Any

from rlstack.config.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_/][\w./:@%+-]*")
_CONSTANTS = ("null", "true", "false", "nan", "inf")


def override(key: str, value: Any) -> str:
    """Returns ``key=value``; a class becomes ``package.module:Class``.

    Raises:
        ConfigError: the value cannot be written on a command line.
    """
    try:
        return f"{key}={written(value)}"
    except (TypeError, ValueError, RuntimeError) as error:  # the latter two of arrays
        raise ConfigError(f"{key}: {error}") from None


def written(value: Any) -> str:
    """Writes the value of an override: numbers, strings, paths, None, and containers of them; code by its name.

    Raises:
        TypeError: the value is something else.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(float(value) if isinstance(value, float) else int(value))  # numpy's numbers have another repr
    if isinstance(value, str | PurePath):
        text = str(value)
        return text if _PLAIN.fullmatch(text) and text.lower() not in _CONSTANTS else quoted(text)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{written(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, type | FunctionType):
        return written(f"{value.__module__}:{value.__qualname__}")
    if type(value).__module__ in ("numpy", "torch"):  # their numbers, and torch.device
        return written(value.item() if hasattr(value, "item") else str(value))
    raise TypeError(f"expected what a configuration file can hold, got {type(value).__name__}")


def quoted(word: str) -> str:
    """Quotes a word with any characters as the value of an override."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
