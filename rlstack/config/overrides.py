"""Writes Python values as Hydra reads them on a command line: ``key=value``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from rlstack.config.errors import ConfigError, prefixed
from rlstack.config.typed import to_plain

Word: TypeAlias = str | os.PathLike[str]
_PLAIN = re.compile(r"[A-Za-z_/][\w./:@%+-]*", re.ASCII)
_MAPPING = re.compile(r"((agent|env)\.[\w.]+|imitation\.expert_options)=\{.*\}$", re.DOTALL)
_TOO_LONG = "a number of more than 300 digits"
_CONSTANTS = ("null", "true", "false", "nan", "inf")


def override(key: str, value: Any) -> str:
    """Returns ``key=value`` as it is typed, for a value that a configuration file can hold.

    Raises:
        ConfigError: it is none.
    """
    with prefixed(key):
        return f"{key}={_written(to_plain(value))}"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_written(key)}:{_written(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _CONSTANTS else quoted(value)
    if isinstance(value, int) and abs(value) > 1e300:
        raise ConfigError(_TOO_LONG)
    return "null" if value is None else str(value).lower()


def in_sweep() -> bool:
    """Returns whether this process is a job of ``-m``."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def readable(entry: str) -> str:
    """Returns what was typed as Hydra takes it: quoted if it has letters beyond ASCII, and without other syntax.

    An override that sets a mapping of :data:`_MAPPING` is opened, so that it may have other keys than those there.

    Raises:
        ConfigError: a number has so many digits that no float is as large.
    """
    key, _, value = entry.partition("=")
    if re.search(r"\b\d{301,}\b", value):
        raise ConfigError(f"{key.lstrip('+~')}: {_TOO_LONG}")
    if not value.isascii() and set(value).isdisjoint("'\"[]{}(),=$"):
        return f"{key}={quoted(value)}"
    return f"++{entry}" if _MAPPING.match(entry) else entry


def replace_mappings(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Sets the options of agent and world to the mappings of some overrides, which Hydra has merged into others.

    Args:
        cfg: configuration that was composed with the overrides, which is changed.
        overrides: in their order; those after a mapping change it further.
    """
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


def set_value(cfg: DictConfig, entry: str, value: Any) -> None:
    """Sets a Python value in a configuration as Hydra and :func:`replace_mappings` would do it with its override.

    Raises:
        ConfigCompositionException: there is no such key, and the override does not begin with ``+``.
    """
    key, whole = entry.lstrip("+").partition("=")[0], _MAPPING.match(entry.lstrip("+")) is not None
    try:
        OmegaConf.update(cfg, key, value, merge=not whole, force_add=entry.startswith("+"))
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise ConfigCompositionException(f"{key}: cannot be set") from error


def given_overrides() -> list[str]:
    """Returns the overrides that the user gave on the command line, or from Python; none outside a command."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def given_keys(group: str = "") -> set[str]:
    """Returns the names of a group's keys, or of the outermost, on the command line that composed the configuration."""
    keys, above = [entry.lstrip("+~").partition("=")[0] for entry in given_overrides()], f"{group}." if group else ""
    return {key.removeprefix(above).split(".")[0] for key in keys if key.startswith(above)}


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
    return QuotedString(word, Quote.single).with_quotes()
