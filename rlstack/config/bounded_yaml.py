"""Reads yaml of unknown origin, in which a few lines of aliases may expand to more than fits into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlstack.config.errors import ConfigError

_BYTES, _ENTRIES, _DEPTH = 2**18, 100_000, 100
"""Limits, many times what the configuration of any run needs."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path) -> str:
    """Returns the text of a yaml file, after checking that its expanded content is not too large.

    Raises:
        ConfigError: the file is too large or nested too deeply, or its aliases are circular.
        OSError, UnicodeDecodeError, yaml.YAMLError: the file cannot be read.
    """
    return _checked(path)[0]


def read(path: Path) -> Any:
    """Returns the content of a yaml file as plain values, checked as by :func:`read_text`."""
    root = _checked(path)[1]
    return None if root is None else _LOADER("").construct_document(root)


def _checked(path: Path) -> tuple[str, yaml.Node | None]:
    if (size := path.stat().st_size) > _BYTES:
        raise ConfigError(f"{size:,} bytes are more than the {_BYTES:,} that a configuration may have")
    text = path.read_text(encoding="utf-8")
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):  # nodes are composed recursively, which needs a bound
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ConfigError("nested too deeply")
    root: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    if root is not None and _expanded(root, {}) > _ENTRIES:
        raise ConfigError(f"its aliases stand for more than {_ENTRIES:,} entries")
    return text, root


def _expanded(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Returns the number of entries that a node expands to, including those of its aliases."""
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
