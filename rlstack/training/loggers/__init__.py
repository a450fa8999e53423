"""Loggers of a run: always ``metrics.csv``; TensorBoard, Weights & Biases, MLflow and Trackio when asked.

TorchRL's loggers write a file for every metric, and begin another run where one is resumed; these keep one table that
a crash cannot spoil, take back what lies beyond a checkpoint, continue the same run of a service, and end no run
because a service is out of reach.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from ..config import LoggerConfig
from .services import MlflowSink, TensorBoardSink, TrackioSink, WandbSink
from .table import FRAMES, METRICS_FILE, CsvSink, Sink, read_metrics, score, scores

__all__ = ["FRAMES", "METRICS_FILE", "CsvSink", "MetricLogger", "Sink", "read_metrics", "score", "scores"]

OF_ONE_RUN = ("wandb", "wandb_run_id", "mlflow.db", "mlflow_run_id", "trackio_run")
"""Files in a run's folder by which services identify the run; a copy of the run leaves them out."""


class MetricLogger:
    """Sends metrics to every sink of a run. As a context manager it closes the sinks.

    Args:
        directory: the run directory, which receives all files.
        config: options that choose the sinks.
        run_config: the resolved configuration as plain values, which W&B and Trackio show beside the run, and
            TensorBoard and MLflow as hyperparameters.
    """

    def __init__(
        self,
        directory: Path | str,
        config: LoggerConfig,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        values = dict(run_config or {})
        self._sinks: list[Sink] = [CsvSink(directory / METRICS_FILE)]
        if config.tensorboard:
            self._add("TensorBoard", lambda: TensorBoardSink(directory / "tensorboard", values))
        if config.wandb != "disabled":
            self._add("W&B", lambda: WandbSink(directory, config, values))
        if config.mlflow:
            self._add("MLflow", lambda: MlflowSink(directory, config, values))
        if config.trackio:
            self._add("Trackio", lambda: TrackioSink(directory, config, values))

    def _add(self, name: str, make: Callable[[], Sink]) -> None:
        """Adds a sink; if it cannot be opened, the run continues without it."""
        try:
            self._sinks.append(make())
        except ImportError:
            raise
        except Exception as error:  # each service has its own errors
            _warn_without(name, error)

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        """Calls every sink; one that fails is dropped, except for the file ``metrics.csv``."""
        for sink in list(self._sinks):
            try:
                tell(sink)
            except Exception as error:
                if isinstance(sink, CsvSink):
                    raise
                self._sinks.remove(sink)
                _warn_without(sink.name, error)
                with suppress(Exception):
                    sink.close(failed=True)

    def log(self, frames: int, metrics: Mapping[str, Any]) -> None:
        """Records metrics ``group/name`` measured at ``frames``.

        Values are numbers, or one-element tensors and arrays, which are read once (waiting for a GPU).

        Raises:
            ValueError: a name has no group, or a value is not a single number.
            OSError: ``metrics.csv`` cannot be written. Other loggers that fail cause a warning and are dropped.
        """
        values = {name: _to_number(name, value) for name, value in metrics.items()}
        self._tell(lambda sink: sink.log(int(frames), values))

    def truncate_after(self, frames: int) -> None:
        """Drops entries beyond ``frames``, for a run that resumes from a checkpoint at that frame."""
        self._tell(lambda sink: sink.truncate_after(frames))

    def close(self, failed: bool = False) -> None:
        """Closes every sink; nothing may be logged afterwards. Closing again does nothing.

        Raises:
            OSError: the file cannot be completed; not raised after a failure of the run, which matters more.
        """
        while self._sinks:
            sink = self._sinks.pop()
            try:
                sink.close(failed)
            except Exception as error:
                if not isinstance(sink, CsvSink):
                    _warn_without(sink.name, error)
                elif not failed:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)


def _warn_without(name: str, error: Exception) -> None:
    reason = str(error).partition("\n")[0] or type(error).__name__
    warnings.warn(f"{name} fails, the run continues without it: {reason}", RuntimeWarning, stacklevel=3)


def _to_number(name: str, value: Any) -> float:
    if "/" not in name:
        raise ValueError(f"metric {name!r}: expected a name of the form group/name")
    if type(value) in (int, float):
        return value
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"metric {name!r}: expected one number, got {value!r}") from error
