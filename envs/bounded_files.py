"""Files of unknown origin, looked at before they are read: ordinary ones, of a content that memory holds."""

from __future__ import annotations

import errno
import stat
import zipfile
from pathlib import Path

MOST = 2**30
"""Bytes that any archive may expand to."""
RATIO = 100
"""Larger ones may expand to so many times their size on disk."""


def check_regular(path: str | Path) -> None:
    """Refuses what has no end or may never answer: devices and pipes.

    Raises:
        OSError: there is no such file, or it is not an ordinary one.
    """
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder fails by itself
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))


def check_archive(path: str | Path) -> None:
    """Refuses a zip that is small on disk and does not end in memory; what is no zip is left to its reader.

    Raises:
        OSError: it cannot be read, or is not an ordinary file.
        ValueError: it expands to too much.
    """
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            check_expansion(archive, path)
    except (OSError, ValueError):
        raise
    except Exception:  # zipfile raises all sorts for damaged bytes
        return


def check_expansion(archive: zipfile.ZipFile, path: str | Path) -> None:
    """Refuses an open archive as :func:`check_archive` does.

    Raises:
        ValueError: it expands to too much.
    """
    expanded, size = sum(entry.file_size for entry in archive.infolist()), Path(path).stat().st_size
    if expanded > max(MOST, RATIO * size):
        raise ValueError(f"{size / 1e6:.1f} MB that expand to {expanded / 1e9:.1f} GB")
