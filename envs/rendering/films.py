"""Animations of episodes, and files of pictures, grids of pictures and films."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np

from ..foundation.files import replacing
from ..foundation.work import working
from .canvas import Picture

_SUFFIXES = (".gif", ".mp4")
_QUICK = ["-preset", "veryfast"]  # half the encoder's time at the same file size


class Animation(ABC):
    """Pictures of an episode by time.

    Attributes:
        per_second: units of time per second at the usual speed of watching.
        fps: pictures per second in a film.
        size: width and height of the pictures in pixels.
    """

    per_second: float
    fps: float = 30.0
    size: tuple[int, int]

    @property
    @abstractmethod
    def span(self) -> tuple[float, float]:
        """Returns the first and the last time."""

    @abstractmethod
    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        """Draws the picture at a time, or ``pause`` after the end, uint8 ``[H, W, 3]``."""

    def longer(self, recording: Any) -> Animation:
        """Returns the animation of a recording of the same episode with more steps."""
        longer: Animation = recording.animation()
        return longer


def save_animation(
    animation: Animation, path: str | Path, fps: float | None = None, speed: float = 1.0, hold: float = 2.0
) -> None:
    """Writes an animation as GIF or MP4, by the suffix of ``path``.

    Args:
        fps: pictures per second, rounded as :func:`possible_fps` does; None: the animation's own number.
        speed: speed relative to the usual one.
        hold: seconds for which the last picture stays.

    Raises:
        ValueError: the suffix is another, or the size is odd.
    """
    fps = possible_fps(path, animation.fps if fps is None else fps)
    first, last = animation.span
    advance = speed * animation.per_second / fps
    moving, still = math.floor((last - first) / advance) + 1, round(hold * fps)

    def pictures() -> Iterator[Picture]:
        for frame in range(moving):
            yield animation.draw(first + frame * advance)
        for frame in range(1, still + 1):
            yield animation.draw(last, frame * advance)

    save_film(path, fps, animation.size, pictures(), moving + still)


def possible_fps(path: str | Path, fps: float) -> float:
    """Returns the pictures per second nearest to ``fps``: in a GIF each is shown for whole hundredths of a second."""
    return 100 / max(round(100 / fps), 1) if Path(path).suffix.lower() == ".gif" else fps


def save_film(
    path: str | Path, fps: float, size: tuple[int, int], pictures: Iterator[Picture], total: int | None = None
) -> None:
    """Writes pictures as GIF or MP4, by the suffix of ``path``.

    Args:
        fps: pictures per second, of which :func:`possible_fps` returns those of a GIF.
        size: width and height in pixels, even numbers.
        pictures: at least one picture; the first is requested once it is certain that they can be written.
        total: number of pictures, for progress.

    Raises:
        ValueError: the suffix is another, or the size is odd.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"cannot write {path.name}: the suffix must be one of {', '.join(_SUFFIXES)}")
    if size[0] % 2 or size[1] % 2:
        raise ValueError(f"size: {size[0]} x {size[1]} must be even numbers of pixels")
    first = next(pictures)  # before the file is opened: drawing may fail
    gif = path.suffix.lower() == ".gif"
    mp4 = {"fps": fps, "codec": "libx264", "quality": 5, "macro_block_size": 2, "ffmpeg_params": _QUICK}
    options = {"duration": 10 * round(100 / fps), "loop": 0} if gif else mp4
    with (
        working(f"writing {path.name}", "pictures", total) as work,
        replacing(path) as (partial,),
        # As a context manager the writer would leave FFmpeg running after an exception.
        closing(imageio.get_writer(partial, mode="I", **options)) as writer,
    ):
        for count, picture in enumerate(chain([first], pictures), 1):
            writer.append_data(picture)
            work.reach(count)


def save_picture(path: str | Path, picture: Picture) -> None:
    """Writes a picture as a PNG."""
    with replacing(path) as (partial,):
        imageio.imwrite(partial, picture, format="png")


def in_grid(pictures: Iterable[Picture], columns: int) -> Picture:
    """Arranges pictures of one size row by row; the rest of the last row is black.

    Raises:
        ValueError: there is no picture.
    """
    tiles = list(pictures)
    if not tiles:
        raise ValueError("a grid needs at least one picture")
    columns = min(columns, len(tiles))
    tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[start : start + columns], 1) for start in range(0, len(tiles), columns)]
    return np.concatenate(rows)
