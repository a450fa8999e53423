"""MLflow: a tracking server, or a SQLite file in the run's folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from rlstack.envs.foundation.files import write_text

from ..config import LoggerConfig
from .table import flat

RUN_ID_FILE = "mlflow_run_id"
DATABASE = "mlflow.db"
_MOST_PARAMETERS = 100  # parameters in a request, and characters in a value: MLflow's limits
_LONGEST_VALUE = 6000


class MlflowSink:
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
        self._metric, id_file = Metric, directory / RUN_ID_FILE
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

    def truncate_after(self, frames: int) -> None:
        """Does nothing: MLflow keeps the points it has received, and draws later ones over them."""

    def close(self, failed: bool = False) -> None:
        """Reports how the run has ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    """Returns a name with only the characters that MLflow allows."""
    return re.sub(r"[^\w\-./: ]", "_", name)
