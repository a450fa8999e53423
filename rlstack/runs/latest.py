"""``latest`` in place of a run's name."""

from __future__ import annotations

import os
from pathlib import Path

from rlstack.config import ConfigError

LATEST = "latest"
"""The newest run; a folder of that name is ``./latest``."""
_CONFIG = "config.yaml"


def named(path: str, key: str) -> str:
    """A run directory or a checkpoint as the user named it; of ``latest`` the run, which the first process also prints.

    That is the run below ``runs/`` whose last checkpoint is the newest.

    Args:
        path: the name.
        key: where it was given, for messages.

    Raises:
        ConfigError: there is no such run.
    """
    if path != LATEST:
        return path
    files = (file for file in Path("runs").rglob("checkpoints/[!.]*.pt") if (file.parents[1] / _CONFIG).is_file())
    newest = max(files, key=lambda file: (file.stat().st_mtime_ns, file), default=None)
    if newest is None:
        raise ConfigError(
            f"{key}: latest is the newest run below runs/, where no run has a checkpoint; give {key}=<run>"
        )
    if os.environ.get("RANK", "0") == "0":
        print(f"{key}: latest is {newest.parents[1]}", flush=True)
    return str(newest.parents[1])
