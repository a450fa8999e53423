"""Checks untrusted files before they are read: they must be regular files whose content fits into RAM."""

from __future__ import annotations

import errno
import stat
import zipfile
from pathlib import Path

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
