"""Files: written atomically, and checked before they are read."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

_PARTIAL = re.compile(r"\..+\.[0-9a-f]+\.partial(\.[^.]*)?")


@contextmanager
def temporary(path: str | Path) -> Iterator[Path]:
    """A context with a new, empty file beside ``path``: hidden, with the same suffix, and removed at the end.

    Its name is random, so that no link that lies in the folder can lead the writing elsewhere. That of a killed process
    stays (see :func:`leftovers`).

    Raises:
        OSError: the disk fails.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.stem}.{secrets.token_hex(8)}.partial{path.suffix}")
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with suppress(OSError):  # the file system lacks locks
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    finally:
        os.close(opened)
        file.unlink(missing_ok=True)


@contextmanager
def replacing(*paths: str | Path) -> Iterator[tuple[Path, ...]]:
    """A context with temporary names, hidden and with the same suffixes, for writing files; makes missing folders.

    At the end of the block all files are flushed to disk, and then renamed in order. After an exception none is
    renamed, and existing files are intact. A killed process leaves the old file or the new one, and perhaps a
    :func:`temporary` one.

    Raises:
        OSError: the disk fails, or one of the paths is a folder.

    Example:
        >>> with replacing("results.json") as (partial,):
        ...     partial.write_text("{}")
    """
    wanted = [Path(path) for path in paths]
    with naming(wanted[0]), ExitStack() as stack:
        partial = tuple(stack.enter_context(temporary(path)) for path in wanted)
        yield partial
        for file in partial:
            _sync(file)
        for file, path in zip(partial, wanted):
            os.replace(file, path)
        for folder in {path.parent for path in wanted}:
            _sync(folder)  # brings the name to disk, too


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """A context that adds the file's name to errors of writing, which the system names only on opening."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not _PARTIAL.fullmatch(Path(str(error.filename)).name):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def leftovers(folder: str | Path) -> Iterator[Path]:
    """Yields the files of :func:`temporary` in or below a folder whose writers were killed."""
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names if _PARTIAL.fullmatch(name)):
            with suppress(OSError):  # it is gone, a link, locked by its writer, or the file system lacks locks
                opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
                finally:
                    os.close(opened)
                yield path


def open_to_append(path: str | Path) -> TextIO:
    """Opens a text file to append lines to it.

    Raises:
        OSError: the file cannot be opened, or is a symbolic link.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    return open(path, "a", encoding="utf-8", newline="", opener=opener)


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


# -- files from elsewhere ----------------------------------------------------------------------------------------------


MOST = 2**30
"""Number of bytes to which every archive may expand."""
RATIO = 100
"""Greatest ratio of content to size on disk for larger archives."""


def check_regular(path: str | Path) -> Path:
    """Returns the path, unless it is that of a device or a pipe, which may be endless or never answer.

    Raises:
        OSError: the file does not exist, or is not a regular file.
    """
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder raises an error anyway
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    return Path(path)


def check_archive(path: str | Path) -> None:
    """Refuses a zip that expands far beyond its size on disk; ignores files that are not zips.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
        ValueError: the archive expands too far.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            check_expansion(archive, path)
    except (OSError, ValueError):
        raise
    except Exception:  # zipfile raises errors of many types for damaged bytes
        return


def check_expansion(archive: zipfile.ZipFile, path: str | Path) -> None:
    """Checks an open archive as :func:`check_archive` does.

    Raises:
        ValueError: the archive expands too far.
    """
    expanded, size = sum(entry.file_size for entry in archive.infolist()), Path(path).stat().st_size
    if expanded > max(MOST, RATIO * size):
        raise ValueError(f"{size / 1e6:.1f} MB that expand to {expanded / 1e9:.1f} GB")
