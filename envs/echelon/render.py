"""Pictures of Echelon: frames of recorded episodes, animations, grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np

from ..arena.canvas import Picture
from . import rules
from .film import Film
from .story import Recording

SIZE = (1280, 720)
"""Width and height of pictures, pixels."""

_TILE = (960, 540)
_VIDEO_SUFFIXES = (".gif", ".mp4")
_QUICK = ["-preset", "veryfast"]  # half the encoder's time, files as small
_HOLD_SECONDS = 2.0


def draw_frame(recording: Recording, t: int, size: tuple[int, int] = SIZE) -> Picture:
    """One frame of an episode, uint8 ``[H, W, 3]``.

    Args:
        t: frame index, negative from the end.

    Raises:
        IndexError: there is no such frame.
        ValueError: the size is too small.
    """
    t = range(len(recording.frames))[t]
    return Film(recording, size).draw(float(recording.frames.tick[t]))


def save_png(recording: Recording, path: str | Path, t: int = -1, size: tuple[int, int] = SIZE) -> None:
    """Writes frame ``t`` (default: the last) as a PNG; see :func:`draw_frame`."""
    imageio.imwrite(path, draw_frame(recording, t, size), format="png")


def save_animation(
    recording: Recording, path: str | Path, fps: float = 20.0, size: tuple[int, int] = SIZE, speed: float = 1.0
) -> None:
    """Writes the episode as GIF or MP4, by the suffix of ``path``; the end stands still for a moment.

    Args:
        fps: frames shown per second; 20 is one for each sub-step.
        size: width and height in pixels, even numbers.
        speed: 1 is real time.

    Raises:
        ValueError: another suffix, or an impossible size.
    """
    path = Path(path)
    if path.suffix.lower() not in _VIDEO_SUFFIXES:
        raise ValueError(f"cannot write {path.name}: the suffix must be one of {', '.join(_VIDEO_SUFFIXES)}")
    if size[0] % 2 or size[1] % 2:
        raise ValueError(f"size: {size[0]} x {size[1]} must be even numbers of pixels")
    film, advance = Film(recording, size), speed / (fps * rules.DT)
    gif = path.suffix.lower() == ".gif"
    mp4 = {"fps": fps, "codec": "libx264", "quality": 7, "macro_block_size": 2, "ffmpeg_params": _QUICK}
    options = {"duration": 1000 / fps, "loop": 0} if gif else mp4
    first, last = float(recording.frames.tick[0]), float(recording.frames.tick[-1])
    writer: Any = imageio.get_writer(path, mode="I", **options)
    with writer:
        for frame in range(math.floor((last - first) / advance) + 1):
            writer.append_data(film.draw(first + frame * advance))
        for frame in range(round(_HOLD_SECONDS * fps)):
            writer.append_data(film.draw(last, (frame + 1) * advance))


def save_trajectories(recordings: Sequence[Recording], path: str | Path, columns: int = 6) -> None:
    """Writes a grid of last frames as PNG, each with the ways of all mechs, which brighten with time.

    Args:
        recordings: at least one episode.
        path: file to write.
        columns: pictures per row, at most; never more than two, or nothing could be read.

    Raises:
        ValueError: there is no recording.
    """
    if not recordings:
        raise ValueError("save_trajectories needs at least one recording")
    columns = min(columns, len(recordings), 2)
    rows = math.ceil(len(recordings) / columns)
    width, height = _TILE
    grid = np.zeros((rows * height, columns * width, 3), np.uint8)
    for place, recording in enumerate(recordings):
        top, left = place // columns * height, place % columns * width
        grid[top : top + height, left : left + width] = Film(recording, _TILE).draw(ways=True)
    imageio.imwrite(path, grid, format="png")
