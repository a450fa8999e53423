"""Reads yaml of unknown origin, whose aliases and nesting could take all memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlstack.config.errors import ConfigError
from rlstack.envs.foundation.files import check_regular

_BYTES, _DEPTH = 2**18, 100
"""Limits, many times what the configuration of any run needs."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path) -> str:
    """Returns the text of a yaml file, after checking that its content is not larger than the text.

    Raises:
        ConfigError: the file is too large or nested too deeply, or has aliases, which no configuration of a run has.
        OSError, UnicodeDecodeError, yaml.YAMLError: the file cannot be read.
    """
    if (size := check_regular(path).stat().st_size) > _BYTES:
        raise ConfigError(f"{size:,} bytes are more than the {_BYTES:,} that a configuration may have")
    text, depth = path.read_text(encoding="utf-8"), 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ConfigError("nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"line {event.start_mark.line + 1} has an alias, *{event.anchor}: write its value there")
    return text


def read(path: Path) -> Any:
    """Returns the content of a yaml file as plain values, checked as by :func:`read_text`."""
    return yaml.load(read_text(path), Loader=_LOADER)
