"""Yaml of unknown origin: a few lines of aliases may stand for more than memory holds."""

from __future__ import annotations

from pathlib import Path

import yaml

from rlstack.config.errors import ConfigError

_BYTES, _ENTRIES = 2**18, 100_000
"""Many times what the configuration of any run takes."""


def read_text(path: Path) -> str:
    """The text of a yaml file, whose content has a size that any reader of it copes with.

    Raises:
        ConfigError: it is larger, or its aliases go round in circles.
        OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError: it cannot be read.
    """
    if (size := path.stat().st_size) > _BYTES:
        raise ConfigError(f"{size:,} bytes are more than the {_BYTES:,} that a configuration may have")
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and _expanded(root, {}) > _ENTRIES:
        raise ConfigError(f"its aliases stand for more than {_ENTRIES:,} entries")
    return text


def _expanded(node: yaml.Node, known: dict[int, int | None]) -> int:
    """The number of entries that a node stands for, those of its aliases included."""
    if id(node) in known:
        count = known[id(node)]
        if count is None:
            raise ConfigError("an alias stands for what it is in")
        return count
    known[id(node)], count = None, 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_expanded(entry, known) for entry in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_expanded(part, known) for pair in node.value for part in pair)
    known[id(node)] = count
    return count
