"""Where a run's numbers go: always a CSV file, and TensorBoard and Weights & Biases when asked."""

import csv
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Literal, Protocol, TextIO

from typing_extensions import Self

from envs.whole_files import replacing
from rlstack.config import ConfigError, Interval
from rlstack.runs.disk import naming

FRAMES = "frames"
METRICS_FILE = "metrics.csv"
RESULTS = ("eval/return", "eval/success", "train/return", "train/success")
"""What runs of other hyperparameters are compared by."""


@dataclass
class LoggerConfig:
    """The options of the ``logger`` group.

    Attributes:
        tensorboard: whether to write TensorBoard event files.
        wandb: whether and how to use Weights & Biases.
        wandb_project: its project.
        wandb_entity: its team or user; None is the account's default.
        wandb_group: under which name several runs are grouped, or None.
        wandb_tags: tags of the run.
        wandb_name: of the run in W&B, None for that of its directory.
        wandb_timeout: seconds to wait for the service before the run is recorded offline instead; at the end, ten times
            as long for what is not uploaded yet, which otherwise stays in the run directory for ``wandb sync``.
    """

    tensorboard: bool
    wandb: Literal["online", "offline", "disabled"]
    wandb_project: str
    wandb_entity: str | None
    wandb_group: str | None
    wandb_tags: list[str]
    wandb_timeout: Annotated[float, Interval(low=0, open_low=True)]
    wandb_name: str | None = None


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
            from .wandb_sink import WandbSink

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
        self._check()
        self._drop_incomplete_row()
        self.columns = next(self._rows(), [FRAMES])
        if not path.exists():
            self._rewrite([])
        self._file = self._open()

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Append a row."""
        new = [name for name in metrics if name not in self.columns]
        if new:
            self.columns += new
            self._file.close()
            self._rewrite(self._data())
            self._file = self._open()
        row = {FRAMES: frames, **metrics}
        with naming(self.path):
            csv.writer(self._file, lineterminator="\n").writerow([row.get(name, "") for name in self.columns])
            self._file.flush()

    def truncate_after(self, frames: int) -> None:
        """Drop the rows of more than ``frames`` frames."""
        self._file.close()
        self._rewrite(row for row in self._data() if int(row[0]) <= frames)
        self._file = self._open()

    def close(self, failed: bool = False) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> TextIO:
        return self.path.open("a", encoding="utf-8", newline="")

    def _rows(self) -> Iterator[list[str]]:
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                yield from csv.reader(file)

    def _data(self) -> Iterator[list[str]]:
        rows = self._rows()
        next(rows, None)
        return rows

    def _rewrite(self, rows: Iterable[list[str]]) -> None:
        """Replace the file at once: header and ``rows``, each filled up to the header's width."""
        with (
            naming(self.path),
            replacing(self.path) as (partial,),
            partial.open("w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(row + [""] * (len(self.columns) - len(row)) for row in rows)

    def _check(self) -> None:
        """Raises a :class:`ConfigError` where there is a file of something else: nothing of it may be lost."""
        try:
            rows = list(self._rows())
            if rows and not self.path.read_bytes().endswith(b"\n"):
                rows.pop()  # it was cut off
            header, *rows = rows or [[FRAMES]]
            if header[:1] != [FRAMES]:
                raise ValueError(f"its first column is not {FRAMES}")
            for row in rows:
                if len(row) > len(header):
                    raise ValueError(
                        f"the row of {int(row[0]):,} frames has {len(row)} cells for {len(header)} columns"
                    )
                int(row[0])
                for cell in filter(None, row):
                    float(cell)
        except IsADirectoryError:
            raise ConfigError(f"{self.path}: a folder, not a table of metrics; move it elsewhere to go on") from None
        except (csv.Error, IndexError, ValueError) as error:
            raise ConfigError(f"{self.path}: not a table of metrics ({error}); move it elsewhere to go on") from None

    def _drop_incomplete_row(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        if b"\n" not in content:  # not even a header
            self.path.unlink()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a ``metrics.csv``, each with what was measured then.

    Raises:
        OSError: there is no such file.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


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
