"""The run directory: everything a run leaves behind, and everything needed to go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlstack.config import ConfigError

from .checkpoint import CheckpointStore

CONFIG = "config.yaml"


class RunDirectory:
    """``config.yaml``, ``metrics.csv``, ``checkpoints/``, ``evaluations/``, ``tensorboard/`` of one run."""

    def __init__(self, path: Path | str, keep: int = 3) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointStore(self.path / "checkpoints", keep)
        self.evaluations = self.path / "evaluations"

    @classmethod
    def create(cls, path: Path | str | None, name: str, keep: int) -> RunDirectory:
        """Makes a new, empty run directory.

        Args:
            path: where, or None for ``runs/<name>_<time>``.

        Raises:
            ConfigError: the folder already holds a run, or cannot be written to.
        """
        chosen = Path(path) if path is not None else Path("runs") / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
        if path is None:
            chosen = first_free(chosen)
        if (chosen / CONFIG).exists():
            raise ConfigError(f"run_dir: {chosen} already holds a run; choose another, or resume={chosen}")
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"run_dir: {chosen} cannot be made ({error.strerror})") from None
        if not os.access(chosen, os.W_OK):
            raise ConfigError(f"run_dir: {chosen} is not writable")
        return cls(chosen, keep)

    @classmethod
    def open(cls, path: Path | str, keep: int = 3) -> RunDirectory:
        """An existing run.

        Raises:
            ConfigError: there is no run in that folder.
        """
        if not (Path(path) / CONFIG).is_file():
            raise ConfigError(f"{path}: not a run directory, it has no {CONFIG}")
        return cls(path, keep)

    def remove_if_empty(self) -> None:
        """Leaves no trace of a run that could not start."""
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_config(self, config: dict[str, Any]) -> None:
        """Stores the resolved configuration."""
        temporary = self.path / f".{CONFIG}.tmp"
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(config)), encoding="utf-8")
        os.replace(temporary, self.path / CONFIG)

    def read_config(self) -> dict[str, Any]:
        """The stored configuration.

        Raises:
            ConfigError: the file is not readable as yaml.
        """
        try:
            config = OmegaConf.to_container(OmegaConf.load(self.path / CONFIG))
        except Exception as error:
            raise ConfigError(f"{self.path / CONFIG}: not a configuration ({error})") from None
        if not isinstance(config, dict):
            raise ConfigError(f"{self.path / CONFIG}: not a configuration")
        return {str(key): value for key, value in config.items()}


def first_free(path: Path) -> Path:
    """The path itself, or with the first free number: runs of a sweep can start within one second."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
