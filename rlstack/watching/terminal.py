"""Pictures on a terminal: every character is two pixels, one above the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from typing import TextIO

import numpy as np
from PIL import Image

from envs.drawing.canvas import Picture

_HALF = "\N{UPPER HALF BLOCK}"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor
_HOME, _PLAIN, _CLEAR = "\x1b[H", "\x1b[0m", "\x1b[K"


class TerminalScreen:
    """Shows pictures as coloured half blocks, with a line of words below; a context that leaves the terminal as it was.

    Colours are 24 bit where ``$COLORTERM`` says so, else the nearest of 256.

    Args:
        stream: the terminal.
        caption: what the line below says.
        environment: variables of the process.
    """

    is_open = True

    def __init__(self, stream: TextIO, caption: Callable[[], str], environment: Mapping[str, str] = os.environ) -> None:
        self._stream, self._caption = stream, caption
        self._deep = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
        self._size = (0, 0)

    @property
    def held(self) -> Collection[str]:
        """No key is known to be held."""
        return ()

    def __enter__(self) -> TerminalScreen:
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_PLAIN + _LEAVE)

    def show(self, picture: Picture) -> None:
        """Shows a picture, as large as fits."""
        columns, lines = shutil.get_terminal_size()
        cleared = "" if self._size == (columns, lines) else "\x1b[2J"
        self._size = columns, lines
        rows = blocks(picture, columns, max(lines - 1, 1), self._deep)
        body = "".join(f"{row}{_PLAIN}{_CLEAR}\r\n" for row in rows)
        self._write(f"{cleared}{_HOME}{body}{self._caption()[: columns - 1]}{_CLEAR}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def blocks(picture: Picture, columns: int, lines: int, deep: bool = True) -> list[str]:
    """A picture ``[H, W, 3]`` as lines of text with colours, in its own proportions, no larger than asked for."""
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    size = max(int(width * scale), 1), max(2 * int(height * scale / 2), 2)
    pixels = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    codes = pixels.astype(np.int64) if deep else _indexed(pixels)
    return [_line(top, bottom) for top, bottom in zip(codes[0::2].tolist(), codes[1::2].tolist())]


def _line(top: list[list[int]], bottom: list[list[int]]) -> str:
    parts, ink, paper = [], None, None
    for upper, lower in zip(top, bottom):
        wanted = []
        if upper != ink:
            wanted.append(_colour(38, upper))
        if lower != paper:
            wanted.append(_colour(48, lower))
        if wanted:
            parts.append(f"\x1b[{';'.join(wanted)}m")
        ink, paper = upper, lower
        parts.append(_HALF)
    return "".join(parts)


def _colour(layer: int, code: list[int]) -> str:
    return f"{layer};{'2' if len(code) == 3 else '5'};{';'.join(map(str, code))}"


def _indexed(pixels: Picture) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Indices ``[H, W, 1]`` into the 6 x 6 x 6 cube of the 256 colours; its levels are 0, 95, 135, ... 255."""
    levels = np.where(pixels < 48, 0, np.where(pixels < 115, 1, (pixels.astype(np.int64) - 35) // 40))
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = 16 + levels @ np.array([[36], [6], [1]])
    return found
