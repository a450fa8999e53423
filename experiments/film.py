"""The film at the top of README.md, of two worlds side by side: ``python -m experiments.film``."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as imageio
import numpy as np
from PIL import Image

from rlstack.envs.foundation.files import replacing

HERE = Path(__file__).parent
LEFT = HERE / "zoo" / "marinenav" / "film.mp4", (0, 0, 704, 720)
"""A film, and the left, upper, right and lower edge of the part to show, in pixels."""
RIGHT = HERE / "rocket" / "rules.mp4", (262, 0, 1018, 720)
HEIGHT = 360
COLOURS = 200
SECONDS = 7.0


def pictures(path: Path, box: tuple[int, int, int, int], count: int) -> list[np.ndarray]:
    """Returns ``count`` pictures ``[HEIGHT, width, 3]`` of a film, evenly spaced from first to last."""
    film = list(imageio.imiter(path, plugin="FFMPEG"))
    width = round((box[2] - box[0]) * HEIGHT / (box[3] - box[1]))
    chosen = [film[round(place)] for place in np.linspace(0, len(film) - 1, count)]
    small = [Image.fromarray(picture).crop(box).resize((width, HEIGHT), Image.Resampling.LANCZOS) for picture in chosen]
    return [np.asarray(picture) for picture in small]


def side_by_side(count: int = 56) -> list[Image.Image]:
    """Joins both films in ``count`` pictures with one palette, undithered, so that still areas compress well."""
    pairs = [np.concatenate(pair, 1) for pair in zip(pictures(*LEFT, count), pictures(*RIGHT, count))]
    palette = Image.fromarray(np.concatenate(pairs[:: count // 4])).quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    return [Image.fromarray(pair).quantize(palette=palette, dither=Image.Dither.NONE) for pair in pairs]


if __name__ == "__main__":
    first, *others = side_by_side()
    each = round(1000 * SECONDS / (1 + len(others)))
    pause = [each] * len(others) + [1500]
    with replacing(HERE / "film.gif") as (partial,):
        first.save(partial, "GIF", save_all=True, append_images=others, duration=pause, loop=0)
