"""The results of a run, read from its folder on demand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing torch takes seconds, even before a mistyped key is reported
    import torch

    from rlstack.evaluation.results import Evaluation
    from rlstack.runs.loading import LoadedRun


@dataclass(frozen=True)
class TrainedRun:
    """A finished run and its results; where a path is expected, it stands for its folder.

    Attributes:
        path: the folder.
        score: number by which sweeps compare runs: the last ``eval/success``, or ``eval/return`` in worlds without
            success, unless ``objective.*`` says otherwise; NaN if no evaluation has finished.
    """

    path: Path
    score: float

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def evaluation(self) -> Evaluation:
        """Returns the last evaluation with every episode; printed, it is the table at the end of the command."""
        from rlstack.evaluation.results import Evaluation

        newest = max(file for file in (self.path / "evaluations").glob("*.json") if file.stem.isdigit())
        return Evaluation.from_json(newest.read_text(encoding="utf-8"))

    @property
    def metrics(self) -> list[dict[str, float]]:
        """Returns the rows of ``metrics.csv``: ``frames`` and the metrics logged at that frame."""
        from .loggers import METRICS_FILE, read_metrics

        return read_metrics(self.path / METRICS_FILE)

    def load(self, which: str = "latest", device: torch.device | str = "cpu") -> LoadedRun:
        """Loads the agent and its configuration, as :func:`rlstack.load` does; ``which`` is latest or best."""
        from rlstack.runs.loading import load

        return load(self.path, device, which)
