"""Loggers of a run, a file each: always ``metrics.csv``; TensorBoard, Weights & Biases, MLflow and Trackio when asked.

TorchRL's loggers write a file for every metric, and begin another run where one is resumed; these keep one table that
a crash cannot spoil, take back what lies beyond a checkpoint, go on in the same run of a service, and end no run
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
from .mlflow import MlflowSink
from .sink import FRAMES, Sink
from .table import METRICS_FILE, CsvSink, read_metrics, score, scores
from .tensorboard import TensorBoardSink
from .trackio import TrackioSink
from .wandb import WandbSink

__all__ = ["FRAMES", "METRICS_FILE", "CsvSink", "MetricLogger", "Sink", "read_metrics", "score", "scores"]

OF_ONE_RUN = ("wandb", "wandb_run_id", "mlflow.db", "mlflow_run_id", "trackio_run")
"""What loggers keep in a run's folder by which services know the run; a copy of the run leaves it out."""


class MetricLogger:
    """Sends metrics to every sink of a run. A context manager, which closes the sinks.

    Args:
        directory: the run directory; everything that is written lies in it.
        config: which sinks.
        run_config: the resolved configuration as plain values, shown beside the run by W&B and Trackio, and as
            hyperparameters by TensorBoard and MLflow.
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
        """A sink that a run can do without."""
        try:
            self._sinks.append(make())
        except ImportError:
            raise
        except Exception as error:  # theirs are of all kinds
            _warn_without(name, error)

    def _tell(self, tell: Callable[[Sink], None]) -> None:
        """Tells every sink; one that fails is left out from then on, except for the file."""
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
        """Record metrics, named ``group/name``, measured at ``frames``.

        Values are numbers, or one-element tensors and arrays, which are read (and a GPU waited for) once.

        Raises:
            ValueError: for a name without a group, or a value that is no single number.
            OSError: the file cannot be written. Other loggers that fail are warned of, and left out from then on.
        """
        values = {name: _to_number(name, value) for name, value in metrics.items()}
        self._tell(lambda sink: sink.log(int(frames), values))

    def truncate_after(self, frames: int) -> None:
        """Drop what lies beyond ``frames``: call it when a run resumes from a checkpoint of that many."""
        self._tell(lambda sink: sink.truncate_after(frames))

    def close(self, failed: bool = False) -> None:
        """Close every sink; nothing may be logged afterwards. Closing again does nothing.

        Raises:
            OSError: the file cannot be completed; not after a failure, which is what has to be told.
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
    warnings.warn(f"{name} fails, the run goes on without it: {reason}", RuntimeWarning, stacklevel=3)


def _to_number(name: str, value: Any) -> float:
    if "/" not in name:
        raise ValueError(f"metric {name!r}: expected a name of the form group/name")
    if type(value) in (int, float):
        return value
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"metric {name!r}: expected one number, got {value!r}") from error
