"""Pictures of evaluated episodes, drawn by the world's own renderer."""

from __future__ import annotations

from pathlib import Path

from .evaluator import world_part
from .results import Evaluation

PER_LEVEL = 6
"""Recorded episodes per level, which make one row of the grid."""


def save_pictures(evaluation: Evaluation, folder: Path, plots: bool = True, video: bool = True) -> list[Path]:
    """Writes ``trajectories.png`` (all recorded episodes), ``best.mp4`` and ``worst.mp4`` (of them) as asked.

    A world draws what it records with ``save_trajectories(recordings, path, columns)`` and ``save_animation(recording,
    path)``, both or one of them, in the module ``render`` beside it.

    Returns:
        What was written; nothing for an evaluation without recordings or a world without a renderer.
    """
    renderer = world_part(evaluation.world, "render") if evaluation.recordings else None
    if renderer is None:
        return []
    written = []
    if plots and hasattr(renderer, "save_trajectories"):
        written.append(folder / "trajectories.png")
        renderer.save_trajectories(list(evaluation.recordings.values()), written[-1], columns=PER_LEVEL)
    if video and hasattr(renderer, "save_animation"):
        for name, index in best_and_worst(evaluation).items():
            written.append(folder / f"{name}.mp4")
            renderer.save_animation(evaluation.recordings[index], written[-1])
    return written


def best_and_worst(evaluation: Evaluation) -> dict[str, int]:
    """Which recorded episodes went best and worst: by success, then by return, of equal ones on the hardest level.

    Where all went the same way there is but a best one.
    """
    columns = [evaluation.episodes[name] for name in ("success", "return") if name in evaluation.episodes]

    def rank(index: int) -> list[float]:
        return [float(column[index]) for column in columns]

    recorded = list(reversed(evaluation.recordings))  # levels ascend
    best, worst = max(recorded, key=rank), min(recorded, key=rank)
    return {"best": best} if rank(best) == rank(worst) else {"best": best, "worst": worst}
