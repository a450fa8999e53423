"""Disks and processes that fail at a chosen moment."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TOUCHING = ("fsync", "replace", "link", "unlink", "remove", "rename", "truncate")
"""Calls of ``os`` that change what is on disk under which name; ``pathlib`` goes through them, too."""


class Killed(BaseException):
    """The process has been killed: from here on it does nothing to the disk, tidying up included."""


@contextmanager
def killed_at(number: int | None) -> Iterator[list[str]]:
    """Inside, the ``number``-th call that touches the disk (from 1) and all later ones raise :class:`Killed`.

    Gives the names of the calls that were made; with None nothing fails, to count them.
    """
    calls: list[str] = []

    def guarded(name: str, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if number is not None and len(calls) >= number:
                raise Killed(name)
            return real(*arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in TOUCHING:
            patch.setattr(os, name, guarded(name, getattr(os, name)))
        yield calls


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Inside, no file can grow beyond so many bytes: writes fail as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
