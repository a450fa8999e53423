"""Overrides: writes Python values as Hydra reads them on a command line, ``key=value``, and tells which were given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rlstack.config.errors import ConfigError, prefixed
from rlstack.config.typed import to_plain

Word: TypeAlias = str | os.PathLike[str]
_PLAIN = re.compile(r"[A-Za-z_/][\w./:@%+-]*", re.ASCII)
_CONSTANTS = ("null", "true", "false", "nan", "inf")
_OPEN = re.compile(r"(agent|env)\.|imitation\.expert_options[.=]")
"""Keys of groups that take more keys than the yaml files have; what is built from them checks these keys."""


def override(key: str, value: Any) -> str:
    """Returns ``key=value`` as it is typed, for a value that a configuration file can hold.

    Raises:
        ConfigError: it is none.
    """
    with prefixed(key):
        return f"{key}={_written(to_plain(value))}"


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        # Hydra takes no quotes around a key; a number becomes text again where text is expected.
        keys = (str(key) if str(key).isdecimal() else _written(key) for key in value)
        return "{" + ",".join(f"{key}:{_written(entry)}" for key, entry in zip(keys, value.values())) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _CONSTANTS else quoted(value)
    return "null" if value is None else str(value).lower()


def quoted(word: str) -> str:
    """Quotes a word with any characters as the value of an override."""
    return QuotedString(word, Quote.single).with_quotes()


def word(value: Word) -> str:
    """Returns a word of a command line; a path, or the result of a training, stands for its name.

    Raises:
        ConfigError: the value is something else.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"expected words as on the command line, or paths, got {type(value).__name__}: {value!r:.60}")
    return os.fspath(value)


def readable(entry: str) -> list[str]:
    """Returns an override as Hydra takes it: text with letters beyond ASCII in quotes, keys of open groups with ``++``.

    A mapping in an open group replaces what was there, with which Hydra would merge it.
    """
    key, equals, value = entry.partition("=")
    if not value.isascii() and set(value).isdisjoint("'\"[]{}(),=$"):
        entry = f"{key}={quoted(value)}"
    if not _OPEN.match(entry) or not equals:
        return [entry]
    return [f"++{key}=null", f"++{entry}"] if value.startswith("{") else [f"++{entry}"]


def assign_again(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Assigns the values of open groups once more, in order: a sweeper keeps only the last override of each key."""
    for entry in OverridesParser.create().parse_overrides(list(overrides)):
        if _OPEN.match(str(entry.input_line).lstrip("+")) and not entry.is_delete():
            OmegaConf.update(cfg, entry.key_or_group, entry.value(), merge=False, force_add=True)


def given_overrides() -> list[str]:
    """Returns the overrides that the user gave on the command line, or from Python; none outside a command."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def given_keys(group: str = "") -> set[str]:
    """Returns the names of a group's keys, or of the outermost, on the command line that composed the configuration."""
    keys, above = [entry.lstrip("+~").partition("=")[0] for entry in given_overrides()], f"{group}." if group else ""
    return {key.removeprefix(above).split(".")[0] for key in keys if key.startswith(above)}


def in_sweep() -> bool:
    """Returns whether this process is a job of ``-m``."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
