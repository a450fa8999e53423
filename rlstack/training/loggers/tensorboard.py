"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from .table import flat

RESULTS = ("eval/return", "eval/success", "train/return", "train/success")
"""Metrics by which TensorBoard compares hyperparameters."""


class TensorBoardSink:
    """TensorBoard event files under ``tensorboard/``.

    Args:
        directory: directory of the files.
        run_config: hyperparameters, which the HPARAMS tab shows beside the last of :data:`RESULTS`.
    """

    name: ClassVar[str] = "TensorBoard"

    def __init__(self, directory: Path, run_config: Mapping[str, Any]) -> None:
        self._directory, self._hyperparameters = directory, dict(flat(run_config))
        self._writer = self._open()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Adds one point to each metric's curve."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, frames)

    def truncate_after(self, frames: int) -> None:
        """Marks the points beyond ``frames`` as superseded: event files can only be appended to."""
        self._writer.close()
        self._writer = self._open(purge_step=frames + 1)

    def close(self, failed: bool = False) -> None:
        """Flushes and closes the file."""
        self._writer.close()

    def _open(self, purge_step: int | None = None) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and optional
        from torch.utils.tensorboard.summary import hparams

        writer: Any = SummaryWriter(str(self._directory), purge_step=purge_step)
        if self._hyperparameters:  # into the run's own file: add_hparams would create another run
            for summary in hparams(self._hyperparameters, dict.fromkeys(RESULTS, 0.0)):
                writer.file_writer.add_summary(summary)
        return writer
