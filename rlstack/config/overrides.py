"""Writes Python values as Hydra reads them on a command line: ``key=value``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, TypeAlias

from omegaconf import DictConfig, OmegaConf, open_dict

from rlstack.config.errors import ConfigError

Word: TypeAlias = str | os.PathLike[str]
_PLAIN = re.compile(r"[A-Za-z_/][\w./:@%+-]*")
_MAPPING = re.compile(r"((agent|env)\.[\w.]+|imitation\.expert_options)=\{.*\}$", re.DOTALL)
_CONSTANTS = ("null", "true", "false", "nan", "inf")


def override(key: str, value: Any) -> str:
    """Returns ``key=value``; a class becomes ``package.module:Class``.

    Raises:
        ConfigError: the value cannot be written on a command line.
    """
    try:
        return f"{key}={written(value)}"
    except (TypeError, ValueError, RuntimeError) as error:  # the latter two of arrays
        if key in ("agent", "env"):
            raise ConfigError(f"{key}: expected a name or a class, got {type(value).__name__}") from None
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
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
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


def opened(entry: str) -> str:
    """Returns an override that sets a mapping of :data:`_MAPPING`, so that it may have other keys than those there."""
    return f"++{entry}" if _MAPPING.match(entry) else entry


def replace_mappings(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Sets the options of agent and world to the mappings of some overrides, which Hydra has merged into others.

    Args:
        cfg: configuration that was composed with the overrides, which is changed.
        overrides: in their order; those after a mapping change it further.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    replaced: list[str] = []
    for entry in overrides:
        key, whole = entry.lstrip("+~").partition("=")[0], _MAPPING.match(entry.lstrip("+")) is not None
        if not whole and not any(f"{key}.".startswith(f"{other}.") for other in replaced):
            continue
        told = OverridesParser.create().parse_override(entry)
        parent, _, name = key.rpartition(".")
        with open_dict(cfg):
            if told.is_delete():
                OmegaConf.select(cfg, parent).pop(name, None)
            else:
                OmegaConf.update(cfg, key, told.value(), merge=False)
        replaced += [key] if whole else []


def given_overrides() -> list[str]:
    """Returns the overrides that the user gave on the command line, or from Python; none outside a command."""
    from hydra.core.hydra_config import HydraConfig

    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def word(value: Word) -> str:
    """Returns a word of a command line; a path, or the result of a training, stands for its name.

    Raises:
        ConfigError: the value is something else.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"expected words as on the command line, or paths, got {type(value).__name__}: {value!r:.60}")
    return os.fspath(value)


def quoted(word: str) -> str:
    """Quotes a word with any characters as the value of an override."""
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"
