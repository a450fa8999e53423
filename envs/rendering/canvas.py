"""Soft, glowing shapes and smooth text on RGB pictures.

A shape is the signed distance of the pixels around it to its edge: less than 0 inside, so that the edge is
anti-aliased wherever it is, and what glows fades with it. Only a small patch of the picture is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]
Array = NDArray[Any]
Legend = Sequence[tuple[str, str, Colour]]
"""The legend of a picture: a sign of one letter, its meaning, and its colour."""

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
PAPER: Colour = (235, 240, 248)
FAINT: Colour = (138, 151, 172)
NIGHT: Colour = (13, 16, 23)
PLATE: Colour = (24, 29, 41)
_FONTS = {False: "DejaVuSans.ttf", True: "DejaVuSans-Bold.ttf"}
_SMALLEST = (640, 360)


@dataclass(frozen=True)
class PictureLayout:
    """The layout of a picture, which follows from its size.

    Args:
        size: width and height of the picture in pixels, at least 640 by 360.

    Raises:
        ValueError: the picture is too small to be legible.
    """

    size: tuple[int, int]

    def __post_init__(self) -> None:
        if self.size[0] < _SMALLEST[0] or self.size[1] < _SMALLEST[1]:
            raise ValueError(f"size: {self.size[0]} x {self.size[1]} is too small, at least 640 x 360 are needed")

    @property
    def unit(self) -> float:
        """Size of a pixel in a picture with 720 lines."""
        return min(self.size[1] / 720, self.size[0] / 1280)

    def points(self, size: float) -> int:
        """Converts a letter size for pictures with 720 lines to this one."""
        return max(7, round(size * self.unit))


@dataclass(eq=False)
class Canvas:
    """A picture for shapes, which are placed in units of the world.

    Args:
        picture: uint8 ``[H, W, 3]``, drawn on in place.
        scale: pixels per unit.
        corner: pixel (x, y) of the world's (0, 0).
    """

    picture: Picture
    scale: float
    corner: tuple[float, float]

    def disc(self, at: Array, radius: float, colour: Colour, opacity: float = 1.0, glow: float = 0.0) -> None:
        """Draws a disc whose glow reaches as far as its diameter."""
        spread = 2 * radius if glow else 0.0
        where, x, y = self._patch(at[0], at[1], radius + spread)
        self._put(where, np.hypot(x, y) - radius, colour, opacity, glow, spread)

    def ring(
        self, at: Array, radius: float, width: float, colour: Colour, opacity: float = 1.0, share: float = 1.0
    ) -> None:
        """Draws a ring, or the ``share`` of it that begins at the top and goes clockwise."""
        where, x, y = self._patch(at[0], at[1], radius + width)
        distance = np.abs(np.hypot(x, y) - radius) - width / 2
        if share < 1:
            turn = np.remainder(np.arctan2(x, -y) / (2 * np.pi), 1)
            distance = np.where(turn < share, distance, np.inf)
        self._put(where, distance, colour, opacity, 0.0, 0.0)

    def polygon(
        self,
        corners: Array,
        colour: Colour,
        opacity: float = 1.0,
        line: float = 0.0,
        glow: float = 0.0,
        spread: float = 0.0,
    ) -> None:
        """Draws a convex polygon.

        Args:
            corners: ``[V, 2]``, clockwise as seen, which is counter-clockwise with y up.
            line: width of the outline to draw, inwards; 0 fills the polygon.
            spread: reach of the glow.
        """
        centre = corners.mean(0)
        reach = float(np.abs(corners - centre).max())
        where, x, y = self._patch(centre[0], centre[1], reach + spread)
        corners = corners - centre
        edge = np.roll(corners, -1, 0) - corners
        length = np.hypot(edge[:, 0], edge[:, 1])[:, None, None]
        along_x, along_y = (edge[:, axis, None, None] / length for axis in (0, 1))
        right, below = (points - corners[:, axis, None, None] for axis, points in ((0, x), (1, y)))
        outwards, along = along_y * right - along_x * below, along_x * right + along_y * below
        inside = outwards.max(0)
        beside = np.hypot(outwards, along - np.clip(along, 0, length)).min(0)
        distance = np.where(inside <= 0, inside, beside)
        if line:
            distance = np.abs(distance + line / 2) - line / 2
        self._put(where, distance, colour, opacity, glow, spread)

    def streak(
        self,
        head: Array,
        tail: Array,
        width: float,
        colour: Colour,
        opacity: float = 1.0,
        glow: float = 0.0,
        spread: float = 0.0,
    ) -> None:
        """Draws a line that fades from its head to its tail."""
        middle, reach = (head + tail) / 2, float(np.abs(head - tail).max()) / 2 + width + spread
        where, x, y = self._patch(middle[0], middle[1], reach)
        x, y = x - (head[0] - middle[0]), y - (head[1] - middle[1])
        along = tail - head
        share = np.clip((x * along[0] + y * along[1]) / max(float(along @ along), 1e-6), 0, 1)
        distance = np.hypot(x - share * along[0], y - share * along[1]) - width / 2 * (1 - 0.5 * share)
        self._put(where, distance, colour, opacity * (1 - share), glow * (1 - share), spread)

    def line(
        self, start: Array, end: Array, width: float, colour: Colour, opacity: float = 1.0, glow: float = 0.0
    ) -> None:
        """Draws a straight line of even colour whose glow reaches twice its width."""
        along = end - start
        length = float(np.hypot(*along))
        if length < 1e-6:
            return
        across = np.array([-along[1], along[0]]) / length * width / 2
        corners = np.array([start - across, end - across, end + across, start + across])
        self.polygon(corners, colour, opacity, glow=glow, spread=2 * width if glow else 0.0)

    def burst(
        self,
        at: Array,
        reach: float,
        share: float,
        colour: Colour,
        sparks: int,
        width: float,
        phase: float = 0.0,
        flash: Colour = WHITE,
    ) -> None:
        """Draws an explosion of which ``share`` has passed: a flash, a growing ring, and sparks that fade.

        Args:
            reach: greatest radius.
            width: width of the ring and of a spark.
            phase: angle that makes explosions differ.
        """
        out = 1 - (1 - share) ** 2
        if share < 0.5:
            self.disc(at, 0.3 * reach * (1 - share), flash, 0.0, glow=1 - 2 * share)
        self.ring(at, max(reach * out, 0.1 * width), width * (1.1 - 0.6 * share), colour, 0.85 * (1 - share))
        for spark in range(sparks):
            angle, speed = phase + 2.4 * spark, 0.55 + 0.45 * np.sin(phase + 5.1 * spark) ** 2
            away = np.array([np.cos(angle), np.sin(angle)]) * reach * speed
            self.streak(at + out * away, at + 0.7 * out * away, width, mixed(WHITE, colour, share), 1 - share)

    def way(self, points: Array, width: float, colour: Colour, leap: float = np.inf) -> None:
        """Draws a trail ``[n, 2]`` that brightens with time, with gaps at steps of ``leap`` and more."""
        for place, (start, end) in enumerate(pairwise(points), 1):
            if 1e-3 < np.abs(end - start).max() < leap:
                self.line(start, end, width, colour, 0.15 + 0.6 * place / len(points))

    def _patch(self, x: float, y: float, reach: float) -> tuple[tuple[slice, slice], Array, Array]:
        """Returns the pixels within ``reach`` of a place, perhaps none, and their offsets to its right and below."""
        height, width = self.picture.shape[:2]
        (left, right), (top, bottom) = (
            (
                min(limit, max(0, int((middle - reach) * self.scale + corner - 1))),
                min(limit, max(0, int((middle + reach) * self.scale + corner + 2))),
            )
            for middle, corner, limit in ((x, self.corner[0], width), (y, self.corner[1], height))
        )
        columns = np.arange(left, right, dtype=np.float32) + np.float32(0.5 - self.corner[0])
        rows = np.arange(top, bottom, dtype=np.float32) + np.float32(0.5 - self.corner[1])
        place = slice(top, bottom), slice(left, right)
        return place, (columns / self.scale - x)[None], (rows / self.scale - y)[:, None]

    def _put(
        self,
        where: tuple[slice, slice],
        distance: Array,
        colour: Colour,
        opacity: float | Array,
        glow: float | Array,
        spread: float,
    ) -> None:
        patch, light = self.picture[where].astype(np.float32), np.array(colour, np.float32)
        if spread:
            shine = np.clip(1 - distance / spread, 0, 1)
            patch += (glow * shine * shine)[..., None] * light
        cover = np.clip(0.5 - distance * self.scale, 0, 1) * opacity
        patch += cover[..., None] * (light - patch)
        self.picture[where] = np.clip(patch, 0, 255)


def lay(light: Array, cover: Array, colour: Sequence[int], opacity: float | Array = 1.0) -> None:
    """Mixes a colour into a picture of floating-point numbers ``[H, W, 3]``, by the share of each pixel it covers."""
    light += (cover * opacity)[..., None] * (np.array(colour, np.float32) - light)


def mixed(first: Colour, second: Colour, share: float) -> Colour:
    """Mixes two colours; ``share`` is that of the second."""
    red, green, blue = (round(one + share * (other - one)) for one, other in zip(first, second))
    return red, green, blue


# -- in pixels of the picture ----------------------------------------------------------------------------------------


def box(
    picture: Picture, left: float, top: float, width: float, height: float, colour: Colour, opacity: float = 1.0
) -> None:
    """Draws a rectangle in pixels."""
    rows = slice(max(round(top), 0), max(round(top + height), 0))
    columns = slice(max(round(left), 0), max(round(left + width), 0))
    patch = picture[rows, columns].astype(np.float32)
    picture[rows, columns] = patch + opacity * (np.array(colour, np.float32) - patch)


@lru_cache(maxsize=64)
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    import matplotlib  # slow to import, and most runs draw nothing

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _FONTS[bold], size)


@lru_cache(maxsize=1024)
def _letters(text: str, size: int, bold: bool) -> NDArray[np.float32]:
    """Returns the share of each pixel that letters cover, ``[height, width]``; the height depends only on the size."""
    font = _font(size, bold)
    width = max(1, int(np.ceil(font.getlength(text))))
    sheet = Image.new("L", (width, sum(font.getmetrics())))
    ImageDraw.Draw(sheet).text((0, 0), text, fill=255, font=font)
    return np.asarray(sheet, dtype=np.float32) / np.float32(255)


def width_of(text: str, size: int, bold: bool = False) -> int:
    """Returns the width of a line of text in pixels."""
    return int(_letters(text, size, bold).shape[1])


class WrittenText(NamedTuple):
    """A line of text that belongs on a picture; see :func:`write`."""

    text: str
    x: float
    y: float
    align: float
    colour: Colour


_apart: list[WrittenText] | None = None


@contextmanager
def texts_apart() -> Iterator[list[WrittenText]]:
    """A context that collects texts in a list instead of drawing them, for screens too coarse for drawn letters."""
    global _apart
    before, _apart = _apart, []
    try:
        yield _apart
    finally:
        _apart = before


def shortened(text: str, size: int, width: float, bold: bool = True) -> str:
    """Shortens a text in its middle so that it takes at most ``width`` pixels."""
    shown, kept = text, len(text)
    while kept > 4 and width_of(shown, size, bold) > width:
        kept -= 1
        shown = f"{text[: kept // 2]}…{text[-(kept // 2) :]}"
    return shown


def banner(
    picture: Picture, text: str, at: tuple[float, float], width: float, height: float, size: int, colour: Colour
) -> None:
    """Draws large letters in the middle of a dark band with two coloured edges.

    Args:
        at: pixel of the band's middle.
        width, height: size of the band including the edges, whose thickness is a thirtieth of the height.
    """
    (x, y), edge = at, height * 3 / 92
    box(picture, x - width / 2, y - height / 2, width, height, (0, 0, 0), 0.58)
    for top in (y - height / 2, y + height / 2 - edge):
        box(picture, x - width / 2, top, width, edge, colour)
    write(picture, text, x, y, size, colour, 0.5, bold=True)


def meter(
    picture: Picture, place: tuple[float, float], y: float, high: float, share: float, colour: Colour, empty: Colour
) -> None:
    """Draws a bar of which a share is full.

    Args:
        place: pixels of its left and its right end.
        y: pixel of its middle.
        high: height in pixels.
    """
    left, right = place
    box(picture, left, y - high / 2, right - left, high, empty, 0.22)
    box(picture, left, y - high / 2, (right - left) * min(share, 1.0), high, colour, 0.95)


def captioned(picture: Picture, title: str, legend: Legend) -> Picture:
    """Adds a title and a legend above a picture, on a strip as dark or light as its corner."""
    size, margin = 15, 10
    paper: Colour = (20, 23, 30) if picture[0, 0].mean() < 128 else (255, 255, 255)
    ink: Colour = (225, 232, 242) if paper[0] < 128 else (34, 49, 63)
    places, x, y = [], margin, 3 * size
    for sign, words, colour in legend:
        width = width_of(f"{sign}  {words}", size)
        x, y = (margin, y + round(1.5 * size)) if x > margin and x + width > picture.shape[1] else (x, y)
        places.append((sign, words, colour, x, y))
        x += width + 2 * size
    strip = np.empty((y + size, picture.shape[1], 3), np.uint8)
    strip[:] = paper
    write(strip, shortened(title, size, picture.shape[1] - 2 * margin), margin, size, size, ink, bold=True)
    for sign, words, colour, x, y in places:
        write(strip, sign, x, y, size, colour)
        write(strip, words, x + width_of(f"{sign} ", size), y, size, ink)
    return np.concatenate((strip, picture))


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
    """Writes a line of text, clipped to the picture.

    Args:
        x: pixel of its left end (``align`` 0), its middle (0.5) or its right end (1).
        y: pixel of the middle of its capitals.
        size: approximate height of a line in pixels.
    """
    if _apart is not None:
        if opacity > 0.25:
            _apart.append(WrittenText(text, x, y, align, colour))
        return
    letters = _letters(text, size, bold)
    ascent, _ = _font(size, bold).getmetrics()
    left, top = round(x - align * letters.shape[1]), round(y - ascent + 0.365 * size)
    height, width = picture.shape[:2]
    rows = slice(max(top, 0), min(top + letters.shape[0], height))
    columns = slice(max(left, 0), min(left + letters.shape[1], width))
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return
    cover = opacity * letters[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left, None]
    patch = picture[rows, columns].astype(np.float32)
    picture[rows, columns] = patch + cover * (np.array(colour, np.float32) - patch)
