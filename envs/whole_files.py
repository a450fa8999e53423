"""Writes files atomically: under a temporary name, renamed once they are on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(*paths: str | Path) -> Iterator[tuple[Path, ...]]:
    """A context with temporary names, hidden and with the same suffixes, for writing files; makes missing folders.

    At the end of the block all files are flushed to disk, and then renamed in order. After an exception none is
    renamed, and existing files are intact. A killed process leaves the old file or the new one, and perhaps a hidden
    one (``.<stem>.<process>.partial<suffix>``).

    Raises:
        OSError: the disk fails, or one of the paths is a folder.

    Example:
        >>> with replacing("results.json") as (partial,):
        ...     partial.write_text("{}")
    """
    wanted = [Path(path) for path in paths]
    partial = tuple(path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}") for path in wanted)
    try:
        for path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        for file in partial:
            _sync(file)
        for file, path in zip(partial, wanted):
            os.replace(file, path)
        for folder in {path.parent for path in wanted}:
            _sync(folder)  # brings the name to disk, too
    finally:
        for file in partial:
            file.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file atomically; makes missing folders.

    Raises:
        OSError: the disk fails; an existing file is intact.
    """
    with replacing(path) as (partial,):
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, nan: bool = True) -> None:
    """Writes a JSON file as :func:`write_text` does.

    Args:
        nan: whether to write numbers that are not finite, which JSON lacks, in the form that Python reads.

    Raises:
        ValueError: a number is not finite, and ``nan`` is False.
        OSError: the disk fails; an existing file is intact.
    """
    write_text(path, json.dumps(content, indent=1, allow_nan=nan) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
