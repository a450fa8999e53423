"""Pictures of Echelon: frames of recorded episodes, animations, grids."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..rendering.canvas import Picture
from ..rendering.films import save_film, save_grid, save_picture
from . import rules
from .film import Film
from .story import Recording

SIZE = (1280, 720)
"""Width and height of pictures, pixels."""

TILE = (960, 540)
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
    save_picture(path, draw_frame(recording, t, size))


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
    film, advance = Film(recording, size), speed / (fps * rules.DT)
    first, last = float(recording.frames.tick[0]), float(recording.frames.tick[-1])
    moving, still = math.floor((last - first) / advance) + 1, round(_HOLD_SECONDS * fps)

    def pictures() -> Iterator[Picture]:
        for frame in range(moving):
            yield film.draw(first + frame * advance)
        for frame in range(still):
            yield film.draw(last, (frame + 1) * advance)

    save_film(path, fps, size, pictures(), moving + still)


def save_trajectories(recordings: Sequence[Recording], path: str | Path, columns: int = 6) -> None:
    """Writes a grid of last frames as PNG, each with the ways of all mechs, which brighten with time.

    Args:
        recordings: at least one episode.
        path: file to write.
        columns: pictures per row, at most; never more than two, or nothing could be read.

    Raises:
        ValueError: there is no recording.
    """
    save_grid(path, (Film(recording, TILE).draw(ways=True) for recording in recordings), min(columns, 2))
