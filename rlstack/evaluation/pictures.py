"""Pictures of evaluated episodes, drawn by the world's own renderer."""

from __future__ import annotations

from pathlib import Path

from .evaluator import world_part
from .results import Evaluation

PER_LEVEL = 6
"""Recorded episodes per level, which make one row of the grid."""


def save_pictures(evaluation: Evaluation, folder: Path, plots: bool = True, video: bool = True) -> list[Path]:
    """Writes ``trajectories.png`` (all recorded episodes) and ``episode.mp4`` (:func:`most_telling`) as asked.

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
        written.append(folder / "episode.mp4")
        renderer.save_animation(evaluation.recordings[most_telling(evaluation)], written[-1])
    return written


def most_telling(evaluation: Evaluation) -> int:
    """Index of a recorded failure, the hardest level's first one; else of an episode of the hardest level."""
    success = evaluation.episodes.get("success")
    recorded = list(evaluation.recordings)
    failures = [index for index in recorded if success is not None and not success[index]]
    candidates = failures or recorded
    return next(index for index in candidates if evaluation.levels[index] == evaluation.levels[candidates[-1]])
