"""Settings of the C library for freed memory."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Makes glibc reuse freed memory instead of returning it to the system; returns whether that took effect.

    Every operation on a large batch allocates its result. By default a freed block of hundreds of kilobytes returns to
    the system at once, and the next block costs a page fault for each 4 kB, up to a third of a step's time. In return
    the process never shrinks. ``MALLOC_TRIM_THRESHOLD_`` or ``MALLOC_MMAP_THRESHOLD_`` in the environment take
    precedence; other C libraries are left unchanged.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it, and only there are the constants valid
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # The largest allowed values: an int, and half an allocation arena.
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(_M_MMAP_THRESHOLD, 2**25))
