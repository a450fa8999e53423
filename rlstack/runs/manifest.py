"""``manifest.json``: size and SHA-256 of a folder's files, by which damage is found when they are read.

A run, an evaluation, a league and a sweep each have one in their folder. It is removed before a file changes, and
written when the work has ended, so a killed process leaves none. Checkpoints are left out: they hold their own digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlstack.config import ConfigError
from rlstack.config.allowed import SIGNED
from rlstack.envs.foundation.files import check_regular, write_json

MANIFEST = "manifest.json"
_FORMAT = {"format": "rlstack-manifest", "version": 1}
_OF_OTHERS = ("tensorboard", "wandb", "mlflow.db", "report.html", "explanation.json", "exports", "rewards", SIGNED)
"""Files of loggers and of other commands, which may change later, and one that is signed."""


@contextmanager
def sealed(folder: Path, *names: str) -> Iterator[None]:
    """A context for work that changes a folder's files: without a manifest inside, with a new one at its end.

    Args:
        names: paths of the files in the folder; default: all in or below it, except hidden ones, checkpoints, those of
            loggers and of other commands, and those of folders with manifests of their own.
    """
    unseal(folder)
    try:
        yield
    finally:
        with suppress(OSError):  # the error that ends the work reports a full disk
            seal(folder, names or sorted(_files(folder)))


def seal(folder: Path, names: Sequence[str]) -> None:
    """Writes the manifest of these files of a folder.

    Raises:
        OSError: the disk fails.
    """
    write_json(folder / MANIFEST, {**_FORMAT, "files": {name: _facts(folder, name) for name in names}})


def unseal(folder: Path) -> None:
    """Removes the manifest of a folder whose files are about to change."""
    (folder / MANIFEST).unlink(missing_ok=True)


def changed(folder: Path, *names: str) -> list[str]:
    """Returns the files that were changed, damaged or removed after the manifest of their folder was written.

    Args:
        names: paths in the folder; default: all that the manifest names.

    Returns an empty list for a folder without a manifest, and the manifest's own name if it is damaged.
    """
    while (content := _content(folder)) is not None:
        try:
            listed = json.loads(content)["files"].items()  # earlier versions listed files of other commands, too
            files = {name: facts for name, facts in listed if name.partition("/")[0] not in _OF_OTHERS}
            damaged = [name for name in (names or files) if name in files and files[name] != _facts(folder, name)]
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            damaged = [MANIFEST]
        if not damaged or _content(folder) == content:  # otherwise another process has just written both
            return damaged
    return []


def check(path: Path) -> None:
    """Raises a :class:`ConfigError` if a file is not as its manifest says."""
    if changed(path.parent, path.name):
        fault = f"changed or damaged since it was written, its digest is not that of {path.with_name(MANIFEST)}"
        raise ConfigError(f"{path}: {fault}; restore the file, or delete {MANIFEST} to use it as it is")


def _content(folder: Path) -> bytes | None:
    try:
        return check_regular(folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _files(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if here != folder and MANIFEST in names:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _OF_OTHERS]
        for name in names:
            if not name.startswith(".") and not name.endswith(".pt") and name not in (MANIFEST, *_OF_OTHERS):
                yield (here / name).relative_to(folder).as_posix()


def _facts(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns size and digest of an ordinary file in a folder, None for anything else."""
    path = folder / name
    try:
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode) or not path.resolve().is_relative_to(folder.resolve()):
            return None
        with path.open("rb") as file:
            return {"bytes": facts.st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError:
        return None
