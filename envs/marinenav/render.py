"""Pictures of recorded MarineNav episodes: frames, animations and grids of trajectories.

Every picture has north (x) up and east (y) to the right, the view from above: a positive yaw turns a vessel
clockwise, to starboard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..drawing.films import save_film, save_picture
from ..whole_files import replacing
from .recording import Recording
from .scene import SIZE, Scene, draw_map, draw_trajectories

STEPS_PER_SECOND = 20.0
"""How many steps are shown in a second: ten times faster than it was, where a step is half a second."""

_latest: list[Scene] = []


def draw_frame(recording: Recording, t: int, ego: int | None = None) -> NDArray[np.uint8]:
    """One frame as an RGB picture, uint8 [720, 960, 3].

    Args:
        recording: the episode.
        t: frame index, negative from the end.
        ego: robot whose perceived objects and sensing range are shown; None shows those of all, faintly.

    Raises:
        IndexError: when there is no such frame or robot.
    """
    if not (_latest and _latest[0].takes(recording)):  # most of the time goes into what stands still
        _latest[:] = [Scene(recording)]
    return _latest[0].draw(t, ego)


def save_png(recording: Recording, path: str | Path, t: int = -1, ego: int | None = None) -> None:
    """Write frame ``t`` (default: the last) as a PNG; see ``draw_frame``."""
    save_picture(path, draw_frame(recording, t, ego))


def save_animation(
    recording: Recording, path: str | Path, fps: float = STEPS_PER_SECOND, ego: int | None = None
) -> None:
    """Write all frames as GIF or MP4, by the suffix of ``path``.

    Args:
        recording: the episode.
        path: file to write.
        fps: frames shown per second; at 20 an episode with frames of 0.5 s runs ten times faster than it was.
        ego: as in ``draw_frame``.

    Raises:
        ValueError: for another suffix.
    """
    scene, count = Scene(recording), len(recording.pose)
    save_film(path, fps, SIZE, (scene.draw(t, ego) for t in range(count)), count)


def save_trajectories(recordings: Sequence[Recording], path: str | Path, columns: int = 6) -> None:
    """Write a grid of whole trajectories as PNG, with green titles where all robots reached their goals.

    Args:
        recordings: at least one episode; its title is put above its plot.
        path: file to write.
        columns: plots per row, at most.

    Raises:
        ValueError: when there is no recording.
    """
    if not recordings:
        raise ValueError("save_trajectories needs at least one recording")
    columns = min(columns, len(recordings))
    rows = math.ceil(len(recordings) / columns)
    figure = Figure(figsize=(2.4 * columns, 2.7 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, recording in zip(axes, recordings):
        draw_map(ax, recording)
        draw_trajectories(ax, recording)
        ax.tick_params(labelleft=False, labelbottom=False, length=0)
    for ax in axes[len(recordings) :]:
        ax.set_axis_off()
    with replacing(path) as (partial,):
        figure.savefig(partial, format="png")
