"""Smooth text on pictures: matplotlib's own DejaVu Sans, as masks that any colour can be put through."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .canvas import Colour, Picture

_FILES = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}


@lru_cache(maxsize=64)
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FILES[bold], size)


@lru_cache(maxsize=1024)
def _mask(text: str, size: int, bold: bool) -> NDArray[np.float32]:
    """How much of each pixel the letters cover, ``[height, width]``; the height depends on the size alone."""
    font = _font(size, bold)
    ascent, descent = font.getmetrics()
    width = max(1, int(np.ceil(font.getlength(text))))
    sheet = Image.new("L", (width, ascent + descent))
    ImageDraw.Draw(sheet).text((0, 0), text, fill=255, font=font)
    return np.asarray(sheet, dtype=np.float32) / np.float32(255)


def width_of(text: str, size: int, bold: bool = False) -> int:
    """In pixels."""
    return int(_mask(text, size, bold).shape[1])


def write(
    picture: Picture,
    text: str,
    x: float,
    y: float,
    size: int,
    colour: Colour,
    align: float = 0.0,
    bold: bool = False,
    opacity: float = 1.0,
) -> None:
    """Writes a line of text; what lies outside of the picture is left out.

    Args:
        x: pixel of its left end (``align`` 0), its middle (0.5) or its right end (1).
        y: pixel of the middle of its capitals.
        size: height of a line in pixels, nearly.
    """
    letters = _mask(text, size, bold)
    ascent, _ = _font(size, bold).getmetrics()
    left, top = round(x - align * letters.shape[1]), round(y - ascent + 0.365 * size)
    height, width = picture.shape[:2]
    rows, columns = slice(max(top, 0), min(top + letters.shape[0], height)), slice(max(left, 0), None)
    columns = slice(columns.start, min(left + letters.shape[1], width))
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    cover = opacity * letters[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left, None]
    patch = picture[rows, columns].astype(np.float32)
    picture[rows, columns] = patch + cover * (np.array(colour, np.float32) - patch)
