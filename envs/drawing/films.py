"""Pictures, films, and grids of pictures as files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import imageio.v2 as imageio
import numpy as np

from ..whole_files import replacing
from ..working import working
from .canvas import Picture

_SUFFIXES = (".gif", ".mp4")
_QUICK = ["-preset", "veryfast"]  # half the encoder's time, files as small


def save_film(
    path: str | Path, fps: float, size: tuple[int, int], pictures: Iterator[Picture], total: int | None = None
) -> None:
    """Writes pictures as GIF or MP4, by the suffix of ``path``.

    Args:
        fps: pictures shown per second.
        size: width and height in pixels, even numbers.
        pictures: at least one; none is asked for before it is known that they can be written.
        total: how many there are, to tell how far it is.

    Raises:
        ValueError: another suffix, or an odd size.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"cannot write {path.name}: the suffix must be one of {', '.join(_SUFFIXES)}")
    if size[0] % 2 or size[1] % 2:
        raise ValueError(f"size: {size[0]} x {size[1]} must be even numbers of pixels")
    first = next(pictures)  # what cannot be drawn leaves no file
    gif = path.suffix.lower() == ".gif"
    mp4 = {"fps": fps, "codec": "libx264", "quality": 7, "macro_block_size": 2, "ffmpeg_params": _QUICK}
    options = {"duration": 1000 / fps, "loop": 0} if gif else mp4
    with (
        working(f"writing {path.name}", "pictures", total) as work,
        replacing(path) as (partial,),
        # The writer as a context of its own would leave FFmpeg writing after an exception.
        closing(imageio.get_writer(partial, mode="I", **options)) as writer,
    ):
        for count, picture in enumerate(chain([first], pictures), 1):
            writer.append_data(picture)
            work.reach(count)


def save_picture(path: str | Path, picture: Picture) -> None:
    """Writes a picture as a PNG."""
    with replacing(path) as (partial,):
        imageio.imwrite(partial, picture, format="png")


def save_grid(path: str | Path, pictures: Iterable[Picture], columns: int) -> None:
    """Writes pictures of one size as a PNG, row by row; what is left of the last row is black.

    Raises:
        ValueError: there is no picture.
    """
    tiles = list(pictures)
    if not tiles:
        raise ValueError("save_trajectories needs at least one recording")
    columns = min(columns, len(tiles))
    tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[start : start + columns], 1) for start in range(0, len(tiles), columns)]
    save_picture(path, np.concatenate(rows))
