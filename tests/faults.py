"""Disks and processes that fail at a chosen moment."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TOUCHING = ("fsync", "replace", "link", "unlink", "remove", "rename", "truncate")
"""Functions of ``os`` that change files or their names on disk; ``pathlib`` uses them, too."""


class Killed(BaseException):
    """The process has been killed: it no longer changes the disk, not even for clean-up."""


@contextmanager
def killed_at(number: int | None) -> Iterator[list[str]]:
    """Returns a context in which the ``number``-th call that changes the disk (from 1) and later ones raise Killed.

    It yields the names of the calls made; with None no call fails, so that they can be counted.
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
    """Returns a context in which no file can exceed ``size`` bytes: writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
