"""How far a run came through its curriculum, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from envs.whole_files import replacing
from rlstack.training.loggers import FRAMES, METRICS_FILE, read_metrics

STAGE = "curriculum/stage"
SHOWN = ("train/success", "train/return")
"""What is drawn below the stages: the first that was logged."""
PICTURE = "curriculum.png"
_BLUE, _GREY = "#1f5fa8", "#888888"
Curve = list[tuple[float, float]]


def save_curriculum(run: Path, names: Sequence[str] = ()) -> Path | None:
    """Draws the stages of a run over its frames, from ``metrics.csv``, into ``curriculum.png`` beside it.

    Args:
        run: the run directory.
        names: of the stages; numbers where there are none.

    Returns the file, or None for a run without a curriculum.
    """
    curves = {name: read_curve(run / METRICS_FILE, name) for name in (STAGE, *SHOWN)}
    stages = curves[STAGE]
    if not stages:
        return None
    below = next((name for name in SHOWN if curves[name]), None)
    figure = Figure(figsize=(8, 5 if below else 3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if below else 1, 1, sharex=True, squeeze=False)[:, 0]
    _draw_stages(axes[0], stages, names)
    if below is not None:
        axes[1].plot(*zip(*curves[below], strict=True), color=_BLUE, linewidth=1.2)
        axes[1].set_ylabel(below.removeprefix("train/"))
        if below == SHOWN[0]:
            axes[1].set_ylim(-0.02, 1.02)
        for frames, _ in advances(stages):
            axes[1].axvline(frames, color=_GREY, linewidth=0.6, linestyle=":")
    axes[-1].set_xlabel("frames")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    with replacing(run / PICTURE) as (partial,):
        figure.savefig(partial, dpi=120)
    return run / PICTURE


def _draw_stages(axis: Axes, stages: Curve, names: Sequence[str]) -> None:
    points = [(0.0, 0.0), *stages]
    axis.step(*zip(*points, strict=True), where="post", color=_BLUE, linewidth=1.6)
    top = max(len(names) - 1, int(max(stage for _, stage in points)))
    axis.set_yticks(range(top + 1), [names[k] if k < len(names) else str(k) for k in range(top + 1)])
    axis.set_ylim(-0.3, top + 0.3)


def advances(stages: Curve) -> Curve:
    """The points at which a stage begins: ``(frames, stage)``."""
    return [now for before, now in zip([(0.0, 0.0), *stages], stages) if now[1] != before[1]]


def read_curve(path: Path, column: str) -> Curve:
    """One metric of a run over its frames; empty where it was never logged."""
    if not path.is_file():
        return []
    return [(row[FRAMES], row[column]) for row in read_metrics(path) if column in row]
