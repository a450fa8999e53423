"""Files that are whole or not there: every file is written under another name and gets its own once it is on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(*paths: str | Path) -> Iterator[tuple[Path, ...]]:
    """Gives names to write files under, hidden ones beside them with the same endings; makes missing folders.

    When the block ends, all of them are brought to the disk, and only then does each take its place, in this order.
    After an exception none has: files that were there are untouched. A process that is killed leaves the old file or
    the new one, and perhaps a hidden one (``.<stem>.<process>.partial<ending>``).

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
            _sync(folder)  # only then has the file its name on disk, too
    finally:
        for file in partial:
            file.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file, wholly or not at all; makes missing folders.

    Raises:
        OSError: the disk fails; a file that was there is untouched.
    """
    with replacing(path) as (partial,):
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, nan: bool = True) -> None:
    """Writes a JSON file as :func:`write_text` does.

    Args:
        nan: numbers that are not finite, which JSON does not know, are written the way Python reads them.

    Raises:
        ValueError: such numbers without ``nan``.
        OSError: the disk fails; a file that was there is untouched.
    """
    write_text(path, json.dumps(content, indent=1, allow_nan=nan) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
