"""Disks that are full, read-only, or broken."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OF_THE_DISK = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM", "ESTALE", "ENXIO", "ENODEV")
    if hasattr(errno, name)
}
"""What an :class:`OSError` says of them."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within it, errors of writing name the file, which the system only does when it is opened."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
