"""Where a run's numbers go: always a CSV file, and TensorBoard and Weights & Biases when asked."""

import csv
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Protocol, TextIO

from typing_extensions import Self

from envs.whole_files import replacing
from rlstack.config import ConfigError, Interval

FRAMES = "frames"
METRICS_FILE = "metrics.csv"
RUN_ID_FILE = "wandb_run_id"


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
        wandb_timeout: seconds to wait for the service before the run is recorded offline instead.
    """

    tensorboard: bool
    wandb: Literal["online", "offline", "disabled"]
    wandb_project: str
    wandb_entity: str | None
    wandb_group: str | None
    wandb_tags: list[str]
    wandb_timeout: Annotated[float, Interval(low=0, open_low=True)]


class Sink(Protocol):
    """One destination of metrics."""

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
        run_config: the resolved configuration as plain values, shown beside the run by W&B.
        run_name: the run's name for W&B; the directory's name by default.
    """

    def __init__(
        self,
        directory: Path | str,
        config: LoggerConfig,
        run_config: Mapping[str, Any] | None = None,
        run_name: str | None = None,
    ) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._sinks: list[Sink] = [CsvSink(directory / METRICS_FILE)]
        if config.tensorboard:
            self._sinks.append(TensorBoardSink(directory / "tensorboard"))
        if config.wandb != "disabled":
            self._sinks.append(WandbSink(directory, config, dict(run_config or {}), run_name or directory.name))

    def log(self, frames: int, metrics: Mapping[str, Any]) -> None:
        """Record metrics, named ``group/name``, measured at ``frames``.

        Values are numbers, or one-element tensors and arrays, which are read (and a GPU waited for) once.

        Raises:
            ValueError: for a name without a group, or a value that is no single number.
        """
        values = {name: _to_number(name, value) for name, value in metrics.items()}
        for sink in self._sinks:
            sink.log(int(frames), values)

    def truncate_after(self, frames: int) -> None:
        """Drop what lies beyond ``frames``: call it when a run resumes from a checkpoint of that many."""
        for sink in self._sinks:
            sink.truncate_after(frames)

    def close(self, failed: bool = False) -> None:
        """Close every sink; nothing may be logged afterwards. Closing again does nothing."""
        while self._sinks:
            self._sinks.pop().close(failed)

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
        with replacing(self.path) as (partial,), partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(row + [""] * (len(self.columns) - len(row)) for row in rows)

    def _check(self) -> None:
        """Raises a :class:`ConfigError` where there is a file of something else: nothing of it may be lost."""
        try:
            header, *rows = list(self._rows())[:-1] or [[FRAMES]]  # the last one may have been cut off
            if header[:1] != [FRAMES]:
                raise ValueError(f"its first column is not {FRAMES}")
            for row in rows:
                int(row[0])
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


class TensorBoardSink:
    """TensorBoard event files under ``tensorboard/``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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

        return SummaryWriter(str(self._directory), purge_step=purge_step)


class WandbSink:
    """Weights & Biases, online or offline. A resumed run continues under the id kept in its directory."""

    def __init__(self, directory: Path, config: LoggerConfig, run_config: dict[str, Any], name: str) -> None:
        self._run = _start_wandb(directory, config, run_config, name)
        with replacing(directory / RUN_ID_FILE) as (partial,):
            partial.write_text(self._run.id + "\n", encoding="utf-8")
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


def _start_wandb(directory: Path, config: LoggerConfig, run_config: dict[str, Any], name: str) -> Any:
    import wandb  # slow to import, and not always wanted

    id_file = directory / RUN_ID_FILE
    options: dict[str, Any] = {
        "id": id_file.read_text(encoding="utf-8").strip() if id_file.exists() else None,
        "dir": str(directory),
        "project": config.wandb_project,
        "entity": config.wandb_entity,
        "group": config.wandb_group,
        "tags": config.wandb_tags,
        "name": name,
        "config": run_config,
        "settings": wandb.Settings(
            console="off",
            quiet=True,
            init_timeout=config.wandb_timeout,
            login_timeout=config.wandb_timeout,
        ),
    }
    if config.wandb == "online":
        try:
            return wandb.init(mode="online", resume="allow", **options)
        except wandb.errors.Error as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"W&B is out of reach, recording offline instead: {reason}", stacklevel=4)
    return wandb.init(mode="offline", **options)


def _to_number(name: str, value: Any) -> float:
    if "/" not in name:
        raise ValueError(f"metric {name!r}: expected a name of the form group/name")
    if type(value) in (int, float):
        return value
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError) as error:
        raise ValueError(f"metric {name!r}: expected one number, got {value!r}") from error
