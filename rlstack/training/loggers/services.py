"""Weights & Biases, MLflow, Trackio and TensorBoard, whose packages are imported on use."""

from __future__ import annotations

import io
import logging
import os
import re
import time
import uuid
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, ClassVar

from rlstack.envs.foundation.files import write_text

from ..config import LoggerConfig
from .table import FRAMES, Sink, flat

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
        from mlflow.entities import Metric
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
        from mlflow.entities import Param

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
