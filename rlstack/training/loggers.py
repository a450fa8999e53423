"""Loggers of a run: always a CSV file, and TensorBoard and Weights & Biases when asked.

TorchRL's loggers write a file for every metric and know no resumed runs; these keep one table that a crash cannot
spoil, take back what lies beyond a checkpoint, and end no run because a service is out of reach.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TextIO

from typing_extensions import Self

from envs.whole_files import replacing, write_text
from rlstack.config import ConfigError
from rlstack.config.errors import did_you_mean
from rlstack.runs.run_directory import naming

from .config import LoggerConfig, ObjectiveConfig

FRAMES = "frames"
METRICS_FILE = "metrics.csv"
RUN_ID_FILE = "wandb_run_id"
RESULTS = ("eval/return", "eval/success", "train/return", "train/success")
"""Metrics by which runs with other hyperparameters are compared."""


class Sink(Protocol):
    """One destination of metrics, and its name for messages."""

    name: ClassVar[str]

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Record metrics measured at ``frames``."""

    def truncate_after(self, frames: int) -> None:
        """Forget what was recorded beyond ``frames``, as far as the destination can."""

    def close(self, failed: bool) -> None:
        """Write out what is pending; ``failed`` says that the run ended with an exception."""


class MetricLogger:
    """Sends metrics to every sink of a run. A context manager, which closes the sinks.

    Args:
        directory: the run directory; everything that is written lies in it.
        config: which sinks.
        run_config: the resolved configuration as plain values, shown beside the run by W&B, and as hyperparameters by
            TensorBoard.
    """

    def __init__(
        self,
        directory: Path | str,
        config: LoggerConfig,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._sinks: list[Sink] = [CsvSink(directory / METRICS_FILE)]
        if config.tensorboard:
            self._add("TensorBoard", lambda: TensorBoardSink(directory / "tensorboard", run_config or {}))
        if config.wandb != "disabled":
            self._add("W&B", lambda: WandbSink(directory, config, dict(run_config or {})))

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
            OSError: the file cannot be written. TensorBoard or W&B that fail are warned of, and left out from then on.
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


class CsvSink:
    """``metrics.csv``: one row a call, one column a metric, empty cells where a metric was not measured.

    A metric that appears later widens the table. Each row is handed to the system at once, so a killed run
    loses none; a row cut off by a crash is dropped when the file is opened again.

    Raises:
        ConfigError: a file of this name that is no such table.
    """

    name: ClassVar[str] = METRICS_FILE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns, rows = self._read()
        self._file = self._rewritten(rows)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Append a row."""
        if new := [name for name in metrics if name not in self.columns]:
            _, rows = self._read()
            self.columns += new
            self._file = self._rewritten(rows)
        row = {FRAMES: frames, **metrics}
        with naming(self.path):
            csv.writer(self._file, lineterminator="\n").writerow([row.get(name, "") for name in self.columns])
            self._file.flush()

    def truncate_after(self, frames: int) -> None:
        """Drop the rows of more than ``frames`` frames."""
        _, rows = self._read()
        self._file = self._rewritten([row for row in rows if int(row[0]) <= frames])

    def close(self, failed: bool = False) -> None:
        """Close the file."""
        self._file.close()

    def _rewritten(self, rows: list[list[str]]) -> TextIO:
        """The file, replaced at once by header and ``rows``, each filled up to the header's width."""
        if (file := getattr(self, "_file", None)) is not None:
            file.close()
        with (
            naming(self.path),
            replacing(self.path) as (partial,),
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(row + [""] * (len(self.columns) - len(row)) for row in rows)
        return self.path.open("a", encoding="utf-8", newline="")

    def _read(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows, without one that was cut off; an error if it is something else, of which nothing is lost."""
        try:
            text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
            header, *rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines())) or [[FRAMES]]
            if header[:1] != [FRAMES]:
                raise ValueError(f"its first column is not {FRAMES}")
            for row in rows:
                if len(row) > len(header):
                    told = f"the row of {int(row[0]):,} frames has {len(row)} cells for {len(header)} columns"
                    raise ValueError(told)
                int(row[0])
                for cell in filter(None, row):
                    float(cell)
        except IsADirectoryError:
            raise ConfigError(f"{self.path}: a folder, not a table of metrics; move it elsewhere to go on") from None
        except (csv.Error, IndexError, ValueError) as error:
            raise ConfigError(f"{self.path}: not a table of metrics ({error}); move it elsewhere to go on") from None
        return header, rows


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a ``metrics.csv``, each with what was measured then.

    Raises:
        OSError: there is no such file.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


_OBJECTIVES = ("eval/success", "eval/return")
_VALUES: dict[str, Callable[[list[float]], float]] = {
    "last": lambda values: values[-1],
    "max": max,
    "min": min,
    "mean": lambda v: math.fsum(v) / len(v),
}


def score(run: Path | str, objective: ObjectiveConfig) -> float:
    """The objective of a run, so far as it has come; NaN where no evaluation could be summed up.

    Raises:
        ConfigError: the run has not logged such a metric; it says what it has logged.
    """
    path = Path(run) / METRICS_FILE
    rows = read_metrics(path)
    columns = {name for row in rows for name in row}
    metric = objective.metric or next((name for name in _OBJECTIVES if name in columns), _OBJECTIVES[-1])
    values = [row[metric] for row in rows if metric in row]
    if not values and objective.metric is None and "eval/non_finite" in columns:
        return math.nan  # no evaluation could be summed up
    if not values:
        guess = did_you_mean(metric, columns)
        raise ConfigError(f"objective.metric: {metric!r} is not in {path}, {guess}it has: {', '.join(sorted(columns))}")
    return float(_VALUES[objective.value](values))


class TensorBoardSink:
    """TensorBoard event files under ``tensorboard/``.

    Args:
        directory: for the files.
        run_config: hyperparameters, beside which its HPARAMS tab shows the last of :data:`RESULTS`.
    """

    name: ClassVar[str] = "TensorBoard"

    def __init__(self, directory: Path, run_config: Mapping[str, Any]) -> None:
        self._directory, self._hyperparameters = directory, dict(_flat(run_config))
        self._writer = self._open()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one point to each metric's curve."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, frames)

    def truncate_after(self, frames: int) -> None:
        """Mark the points beyond ``frames`` as superseded: event files can only be added to."""
        self._writer.close()
        self._writer = self._open(purge_step=frames + 1)

    def close(self, failed: bool = False) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _open(self, purge_step: int | None = None) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and not always wanted
        from torch.utils.tensorboard.summary import hparams

        writer: Any = SummaryWriter(str(self._directory), purge_step=purge_step)
        if self._hyperparameters:  # in the run's own file: add_hparams would make another run
            for summary in hparams(self._hyperparameters, dict.fromkeys(RESULTS, 0.0)):
                writer.file_writer.add_summary(summary)
        return writer


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Dotted keys and values of a configuration, but for those that say where a run goes."""
    for key, value in config.items():
        if prefix or key not in ("logger", "run_dir", "resume"):
            if isinstance(value, Mapping) and value:
                yield from _flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)


class WandbSink:
    """Weights & Biases, online or offline. A resumed run continues under the id kept in its directory."""

    name: ClassVar[str] = "W&B"

    def __init__(self, directory: Path, config: LoggerConfig, run_config: dict[str, Any]) -> None:
        self._run = _start_wandb(directory, config, run_config)
        write_text(directory / RUN_ID_FILE, self._run.id + "\n")
        # Frames are the x axis. W&B's own step must never go back, which a resumed run does.
        self._run.define_metric(FRAMES, hidden=True)
        self._run.define_metric("*", step_metric=FRAMES)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Send one point of each metric."""
        self._run.log({FRAMES: frames, **metrics})

    def truncate_after(self, frames: int) -> None:
        """Nothing: what the service has received stays, and later points are drawn over it."""

    def close(self, failed: bool = False) -> None:
        """Wait until everything is sent (online) or written (offline)."""
        self._run.finish(exit_code=int(failed))


def _start_wandb(directory: Path, config: LoggerConfig, run_config: dict[str, Any]) -> Any:
    import wandb  # slow to import, and not always wanted

    id_file = directory / RUN_ID_FILE
    times: dict[str, Any] = {"init_timeout": config.wandb_timeout, "login_timeout": config.wandb_timeout}
    if hasattr(wandb.Settings(), "finish_timeout"):
        times["finish_timeout"] = 10 * config.wandb_timeout
    options: dict[str, Any] = {
        "id": id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None,
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
            warnings.warn(f"W&B is out of reach, recording offline instead: {reason}", stacklevel=4)
    return wandb.init(mode="offline", **options)


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
