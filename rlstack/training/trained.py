"""What a run has left: results that are read from its folder when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing torch takes seconds, which a mistyped key need not cost
    import torch

    from rlstack.evaluation.results import Evaluation
    from rlstack.runs.loading import LoadedRun


@dataclass(frozen=True)
class TrainedRun:
    """What a run has left in its folder.

    Attributes:
        path: the folder.
        score: by which sweeps compare runs: the last ``eval/success``, or ``eval/return`` in worlds without success,
            unless ``objective.*`` says otherwise; NaN where no evaluation could be summed up.
        allowed: code that its configuration names, such as a network of your own: whoever has trained it may load it.
    """

    path: Path
    score: float
    allowed: tuple[str, ...] = ()

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation, with every episode; printed, it is the table that the command ends with."""
        from rlstack.evaluation.results import Evaluation

        newest = max(file for file in (self.path / "evaluations").glob("*.json") if file.stem.isdigit())
        return Evaluation.from_json(newest.read_text(encoding="utf-8"))

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of ``metrics.csv``: ``frames``, and what was logged then."""
        from .loggers import METRICS_FILE, read_metrics

        return read_metrics(self.path / METRICS_FILE)

    def load(self, which: str = "latest", device: torch.device | str = "cpu") -> LoadedRun:
        """The agent and its configuration, see :func:`rlstack.load`; ``which``: latest or best."""
        from rlstack.runs.loading import load

        return load(self.path, device, which, allow=self.allowed)
