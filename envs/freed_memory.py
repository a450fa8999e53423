"""Settings of the C library for the memory that this process frees."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Lets glibc reuse freed memory instead of returning it to the system; True if that took effect.

    Every operation on a large batch allocates its result. By default a freed block of hundreds of kilobytes goes back
    to the system at once and the next one costs a page fault for each 4 kB, up to a third of a step's time. The price
    is a process that stays as large as it once was. Whoever sets ``MALLOC_TRIM_THRESHOLD_`` or
    ``MALLOC_MMAP_THRESHOLD_`` in the environment decides instead; other C libraries are left alone.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - glibc alone has it, and its constants mean what they say here
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # The largest values they take: an int, and half an allocation arena.
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**25))
