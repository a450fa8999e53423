"""Loggers of a run: always ``metrics.csv``; TensorBoard, Weights & Biases, MLflow and Trackio when asked.

TorchRL's loggers write a file for every metric, and begin another run where one is resumed; these keep one table that
a crash cannot spoil, take back what lies beyond a checkpoint, continue the same run of a service, and end no run
because a service is out of reach. The packages of services are imported on use.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import os
import re
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TextIO

from typing_extensions import Self

from rlstack.config import ConfigError
from rlstack.config.allowed import links_in, sign
from rlstack.config.errors import did_you_mean
from rlstack.envs.foundation.files import check_regular, naming, open_to_append, replacing, write_text

from .config import LoggerConfig, ObjectiveConfig

FRAMES, METRICS_FILE = "frames", "metrics.csv"


class Sink(ABC):
    """One destination of metrics, with a name for messages."""

    name: ClassVar[str]

    @abstractmethod
    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Records metrics measured at ``frames``."""

    def truncate_after(self, frames: int) -> None:
        """Removes entries beyond ``frames``; a service keeps what it has received, and draws later points over it."""
        return

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """Writes pending entries; ``failed`` means that the run ended with an exception."""


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yields dotted keys and values of a configuration, without those that name the run's folder."""
    for key, value in config.items():
        if prefix or key not in ("logger", "run_dir", "resume"):
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)


class CsvSink(Sink):
    """``metrics.csv``: a row of numbers measured at the same frame, with empty cells where a metric was not measured.

    A call adds a row, or other metrics to the last row if that is of the same frame; their times replace its own. A
    metric that appears later widens the table. Each row is flushed at once, so a killed run loses none; a row that a
    crash has cut off is dropped when the file is opened again.

    Raises:
        ConfigError: the file exists and is not such a table.
    """

    name: ClassVar[str] = METRICS_FILE

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last: dict[str, float | str] = {}
        self.columns, rows = self._read()
        self._file = self._rewritten(rows)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Appends a row, or completes the last one."""
        joins = self._last.get(FRAMES) == frames and all(
            name.startswith("time/") or self._last.get(name, "") == "" for name in metrics
        )
        row = {**(self._last if joins else {}), FRAMES: frames, **metrics}
        new = [name for name in metrics if name not in self.columns]
        self.columns += new
        cells = [row.get(name, "") for name in self.columns]
        if new or joins:
            _, rows = self._read()
            self._file = self._rewritten([*rows[: len(rows) - joins], cells])
        else:
            with naming(self.path):
                csv.writer(self._file, lineterminator="\n").writerow(cells)
                self._file.flush()
        self._last = row

    def truncate_after(self, frames: int) -> None:
        """Drops the rows beyond ``frames``."""
        _, rows = self._read()
        self._file = self._rewritten([row for row in rows if int(row[0]) <= frames])

    def close(self, failed: bool = False) -> None:
        """Closes the file."""
        self._file.close()

    def _rewritten(self, rows: Sequence[Sequence[Any]]) -> TextIO:
        """Replaces the file atomically by the header and ``rows``, padded to the header's width; returns it open."""
        if (file := getattr(self, "_file", None)) is not None:
            file.close()
        with replacing(self.path) as (partial,), partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([*row, *[""] * (len(self.columns) - len(row))] for row in rows)
        self._last = dict(zip(self.columns, rows[-1])) if rows else {}
        if rows:
            self._last[FRAMES] = int(rows[-1][0])
        return open_to_append(self.path)

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Returns header and rows, without one that was cut off; another file raises an error and stays unchanged."""
        try:
            text = check_regular(self.path).read_text(encoding="utf-8") if self.path.exists() else ""
            header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [[FRAMES]]
            if header[:1] != [FRAMES]:
                raise ValueError(f"its first column is not {FRAMES}")
            for row in rows:
                if len(row) > len(header):
                    fault = f"the row of {int(row[0]):,} frames has {len(row)} cells for {len(header)} columns"
                    raise ValueError(fault)
                int(row[0])
                for cell in filter(None, row):
                    float(cell)
        except IsADirectoryError:
            raise ConfigError(f"{self.path}: a folder, not a table of metrics; move it elsewhere to continue") from None
        except (csv.Error, IndexError, ValueError) as error:
            raise ConfigError(f"{self.path}: not a table of metrics ({error}); move it elsewhere to continue") from None
        return header, rows


# -- services ----------------------------------------------------------------------------------------------------------


WANDB_RUN_ID = "wandb_run_id"


class WandbSink(Sink):
    """Weights & Biases, online or offline. A resumed run continues under the id kept in its directory."""

    name: ClassVar[str] = "W&B"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: dict[str, Any]) -> None:
        import wandb

        id_file = directory / WANDB_RUN_ID
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
        self._run: Any = None
        if config.wandb == "online":
            try:
                self._run = wandb.init(mode="online", resume="allow", **options)
            except wandb.errors.Error as error:
                reason = str(error).partition("\n")[0]
                warnings.warn(f"W&B cannot be reached, recording offline instead: {reason}", stacklevel=3)
        if self._run is None:
            self._run = wandb.init(mode="offline", **options)
        write_text(id_file, self._run.id + "\n")
        sign(directory, links_in(directory))  # W&B links to its log outside of the run
        # Frames are the x axis. W&B's own step must never decrease, but the frames of a resumed run do.
        self._run.define_metric(FRAMES, hidden=True)
        self._run.define_metric("*", step_metric=FRAMES)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Sends one point of each metric."""
        self._run.log({FRAMES: frames, **metrics})

    def close(self, failed: bool = False) -> None:
        """Waits until everything is sent (online) or written (offline)."""
        self._run.finish(exit_code=int(failed))


MLFLOW_RUN_ID = "mlflow_run_id"
DATABASE = "mlflow.db"
_MOST_PARAMETERS = 100  # parameters in a request, and characters in a value: MLflow's limits
_LONGEST_VALUE = 6000


class MlflowSink(Sink):
    """MLflow. A resumed run continues under the id kept in its directory.

    Args:
        directory: directory of the run.
        config: options with the tracking server and the experiment.
        run_config: the run's parameters in MLflow.
    """

    name: ClassVar[str] = "MLflow"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient  # slow to import, and optional
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        for package in ("mlflow", "alembic"):  # they log every table that they create
            logging.getLogger(package).setLevel(logging.WARNING)
        given = config.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(given or f"sqlite:///{directory.resolve() / DATABASE}")
        self._metric, id_file = Metric, directory / MLFLOW_RUN_ID
        if id_file.is_file():
            self._run = id_file.read_text(encoding="utf-8").strip()
            with suppress(MlflowException):  # the run is unknown to another server
                self._client.update_run(self._run, "RUNNING")
                return
        with suppress(MlflowException):  # it exists already
            self._client.create_experiment(config.mlflow_experiment)
        experiment: Any = self._client.get_experiment_by_name(config.mlflow_experiment)
        self._run = str(self._client.create_run(experiment.experiment_id, run_name=directory.name).info.run_id)
        values = [Param(_allowed(key), str(value)[:_LONGEST_VALUE]) for key, value in flat(run_config)]
        for first in range(0, len(values), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=values[first : first + _MOST_PARAMETERS])
        write_text(id_file, f"{self._run}\n")

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Sends one point of each metric, with frames as MLflow's steps."""
        now = int(1000 * time.time())
        points = [self._metric(_allowed(name), float(value), now, frames) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=points)

    def close(self, failed: bool = False) -> None:
        """Reports how the run has ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """Returns a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w\-./: ]", "_", name)


RUN_NAME_FILE = "trackio_run"


class TrackioSink(Sink):
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

    def close(self, failed: bool = False) -> None:
        """Waits until everything is written."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


RESULTS = ("eval/return", "eval/success", "train/return", "train/success")
"""Metrics by which TensorBoard compares hyperparameters."""


class TensorBoardSink(Sink):
    """TensorBoard event files under ``tensorboard/``.

    Args:
        directory: directory of the run.
        config: options, none of them for TensorBoard.
        run_config: hyperparameters, which the HPARAMS tab shows beside the last of :data:`RESULTS`.
    """

    name: ClassVar[str] = "TensorBoard"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: Mapping[str, Any]) -> None:
        self._directory, self._hyperparameters = directory / "tensorboard", dict(flat(run_config))
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


# -- all of a run ------------------------------------------------------------------------------------------------------

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
        kinds: list[tuple[Any, bool]] = [
            (TensorBoardSink, config.tensorboard),
            (WandbSink, config.wandb != "disabled"),
            (MlflowSink, config.mlflow),
            (TrackioSink, config.trackio),
        ]
        for kind, is_wanted in kinds:
            if not is_wanted:
                continue
            try:
                self._sinks.append(kind(directory, config, values))
            except ImportError:
                raise
            except Exception as error:  # each service has its own errors; the run continues without it
                _warn_without(kind.name, error)

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

        Values are numbers, or one-element tensors and arrays, which are read once (waiting for a GPU). True and False
        are recorded as 1 and 0.

        Raises:
            ValueError: a name has no group, or a value is not a single number.
            OSError: ``metrics.csv`` cannot be written. Other loggers that fail cause a warning and are dropped.
        """
        values = {}
        for name, value in metrics.items():
            if "/" not in name:
                raise ValueError(f"metric {name!r}: expected a name of the form group/name")
            try:
                values[name] = 0 + (value.item() if hasattr(value, "item") else value)
            except (AttributeError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"metric {name!r}: expected one number, got {value!r}") from error
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


# -- what a run has logged ---------------------------------------------------------------------------------------------


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Reads the rows of a ``metrics.csv``, each with the metrics measured at its frame, without one that was cut off.

    Raises:
        OSError: the file does not exist.
    """
    text = check_regular(path).read_text(encoding="utf-8")
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    return [{name: float(cell) for name, cell in row.items() if cell} for row in rows]


_OBJECTIVES = ("eval/success", "eval/return")
_VALUES: dict[str, Callable[[list[float]], float]] = {
    "last": lambda values: values[-1],
    "max": lambda values: max(_defined(values)),
    "min": lambda values: min(_defined(values)),
    "mean": lambda values: math.fsum(_defined(values)) / len(_defined(values)),
}


def _defined(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)] or [math.nan]


def score(run: Path | str, objective: ObjectiveConfig) -> float:
    """Returns the objective of a run so far; NaN if no evaluation has finished.

    Raises:
        ConfigError: the run has not logged this metric; the message lists those it has logged.
    """
    return (scores(run, objective) or [math.nan])[-1]


def scores(run: Path | str, objective: ObjectiveConfig, every: int | None = None) -> list[float]:
    """Returns the objective of a run after each row that has its metric; empty if no evaluation has finished.

    Evaluations leave out undefined numbers, such as the time to the goal without a success: after these the last value
    is NaN, and the others are those of the evaluations before.

    Args:
        every: frames between evaluations of which some were left out to save time; NaN stands for these. None: none
            was.

    Raises:
        ConfigError: the run has not logged this metric; the message lists those it has logged.
    """
    path = Path(run) / METRICS_FILE
    rows = read_metrics(path)
    columns = {name for row in rows for name in row}
    metric = objective.metric or next((name for name in _OBJECTIVES if name in columns), _OBJECTIVES[-1])
    if metric not in columns:
        if objective.metric is None and "eval/non_finite" in columns:
            return []  # no evaluation has finished
        guess = did_you_mean(metric, columns)
        raise ConfigError(f"objective.metric: {metric!r} is not in {path}, {guess}it has: {', '.join(sorted(columns))}")
    evaluated = metric.startswith("eval/")
    rows = [row for row in rows if metric in row or (evaluated and any(name.startswith("eval/") for name in row))]
    values: list[float] = []
    for row in rows:
        if evaluated and every is not None:
            values += [math.nan] * (int(row[FRAMES]) // every - 1 - len(values))
        values.append(row.get(metric, math.nan))
    return [float(_VALUES[objective.value](values[:count])) for count in range(1, len(values) + 1)]
