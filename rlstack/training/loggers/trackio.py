"""Trackio: a database on this machine (``trackio show``), or a Space that the environment names."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from rlstack.envs.foundation.files import write_text

from ..config import LoggerConfig
from .table import flat

RUN_NAME_FILE = "trackio_run"


class TrackioSink:
    """Trackio, which identifies a run by its name. A resumed run continues under the name kept in its directory.

    Args:
        directory: directory of the run.
        config: options with the project.
        run_config: configuration that Trackio shows beside the run.
    """

    name: ClassVar[str] = "Trackio"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: Mapping[str, Any]) -> None:
        import trackio  # slow to import, and optional

        name_file = directory / RUN_NAME_FILE
        if not name_file.is_file():  # a unique name, since another folder may have the same one
            write_text(name_file, f"{directory.name}-{uuid.uuid4().hex[:8]}\n")
        with redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=config.trackio_project,
                name=name_file.read_text(encoding="utf-8").strip(),
                resume="allow",
                config=dict(flat(run_config)),
                embed=False,
                auto_log_gpu=False,  # a run measures its hardware itself
                auto_log_cpu=False,
            )

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Sends one point of each metric, with frames as Trackio's steps."""
        self._run.log(dict(metrics), step=frames)

    def truncate_after(self, frames: int) -> None:
        """Does nothing: Trackio keeps the points it has received, and draws later ones over them."""

    def close(self, failed: bool = False) -> None:
        """Waits until everything is written."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()
