"""Weights & Biases."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rlstack.envs.foundation.files import write_text

from ..config import LoggerConfig
from .table import FRAMES

RUN_ID_FILE = "wandb_run_id"


class WandbSink:
    """Weights & Biases, online or offline. A resumed run continues under the id kept in its directory."""

    name: ClassVar[str] = "W&B"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: dict[str, Any]) -> None:
        self._run = _start_wandb(directory, config, run_config)
        write_text(directory / RUN_ID_FILE, self._run.id + "\n")
        # Frames are the x axis. W&B's own step must never decrease, but the frames of a resumed run do.
        self._run.define_metric(FRAMES, hidden=True)
        self._run.define_metric("*", step_metric=FRAMES)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Sends one point of each metric."""
        self._run.log({FRAMES: frames, **metrics})

    def truncate_after(self, frames: int) -> None:
        """Does nothing: W&B keeps the points it has received, and draws later ones over them."""

    def close(self, failed: bool = False) -> None:
        """Waits until everything is sent (online) or written (offline)."""
        self._run.finish(exit_code=int(failed))


def _start_wandb(directory: Path, config: LoggerConfig, run_config: dict[str, Any]) -> Any:
    import wandb  # slow to import, and optional

    id_file = directory / RUN_ID_FILE
    times: dict[str, Any] = {"init_timeout": config.wandb_timeout, "login_timeout": config.wandb_timeout}
    if hasattr(wandb.Settings(), "finish_timeout"):
        times["finish_timeout"] = 10 * config.wandb_timeout
    options: dict[str, Any] = {
        "id": id_file.read_text(encoding="utf-8").strip() if id_file.is_file() else None,
        "dir": str(directory),
        "project": config.wandb_project,
        "entity": config.wandb_entity,
        "group": config.wandb_group,
        "tags": config.wandb_tags,
        "name": config.wandb_name or directory.name,
        "config": run_config,
        "settings": wandb.Settings(console="off", quiet=True, **times),
    }
    if config.wandb == "online":
        try:
            return wandb.init(mode="online", resume="allow", **options)
        except wandb.errors.Error as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"W&B cannot be reached, recording offline instead: {reason}", stacklevel=4)
    return wandb.init(mode="offline", **options)
