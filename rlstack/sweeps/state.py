"""The file with every decision of a population or a search, from which the same command continues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.config.allowed import check_named, links_in, sign
from rlstack.config.errors import writing
from rlstack.envs.bounded_files import check_regular
from rlstack.envs.whole_files import write_json
from rlstack.runs.manifest import check, sealed


def write_state(path: Path, kind: str, **content: Any) -> None:
    """Writes a file of this kind atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    with writing(path), sealed(path.parent, path.name):
        sign(path.parent, links_in(path.parent))
        write_json(path, {"format": f"rlstack-{kind}", "version": 1, **content})


def read_state(path: Path, kind: str) -> dict[str, Any]:
    """Reads a file of :func:`write_state`.

    Raises:
        ConfigError: the file cannot be read, or is of another kind, or its folder links to places outside that the
            user has not allowed.
    """
    check(path)
    check_named(links_in(path.parent), path)
    with reading(path, kind):
        content: dict[str, Any] = json.loads(check_regular(path).read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (f"rlstack-{kind}", 1):
            raise ValueError("another format")
        return content


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """A context that reports in one line that a file is not of this kind."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a {kind} ({error})") from None


def check_settings(path: Path, kind: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raises a :class:`ConfigError` if a file was begun with other settings."""
    for key, value in ours.items():
        if theirs.get(key) != value:
            told = f"whose {key} is {theirs.get(key)}, not {value}; hydra.sweeper.folder=<another> begins a new one"
            raise ConfigError(f"{path.parent} holds a {kind} {told}")
