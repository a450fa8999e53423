"""Plays animations of episodes: in a window that can pause and seek, in a terminal, or into a film."""

from __future__ import annotations

import math
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image

from rlstack.config.errors import writing
from rlstack.envs.rendering.canvas import Colour, Picture, WrittenText, texts_apart
from rlstack.envs.rendering.films import save_film
from rlstack.envs.rendering.window import Window

from .pictures import EpisodeAnimation

_FPS = 30.0
_LONGEST = 0.2  # s skipped at once when drawing is slow
_SEEK_SECONDS = 0.2  # s per picture while an arrow key is held
HOLD_SECONDS = 1.5
"""Seconds for which the last picture is shown."""
_HALF_BLOCK = "\N{UPPER HALF BLOCK}"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor
_HOME, _PLAIN, _CLEAR = "\x1b[H", "\x1b[0m", "\x1b[K"


def show(
    animation: EpisodeAnimation,
    screen: Window,
    speed: float = 1.0,
    hold: float = HOLD_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows an animation until its last picture was shown for ``hold`` seconds, or the screen is closed.

    The space bar pauses and continues, the arrow keys seek, Enter restarts. If drawing is too slow, pictures are
    skipped; if the world is too slow, its time passes more slowly.
    """
    now, runs, pressed, before = animation.span[0], True, False, clock()
    passed = 0.0
    while screen.is_open:
        held = screen.held
        if "space" in held and not pressed:
            runs = not runs
        pressed = "space" in held
        seconds = speed * passed * runs + _SEEK_SECONDS * (("Right" in held) - ("Left" in held))
        first = animation.span[0]
        now = first if "Return" in held else max(now + seconds * animation.per_second, first)
        last = _grown(animation, now)
        if now - last > hold * animation.per_second:
            return
        screen.show(animation.draw(max(min(now, last), animation.span[0]), max(now - last, 0.0)))
        sleep(max(before + 1 / _FPS - clock(), 0.0))
        after = clock()
        passed, before = min(max(after - before, 1 / _FPS), _LONGEST), after


def frames(
    animation: EpisodeAnimation, speed: float, fps: float = _FPS, hold: float = HOLD_SECONDS
) -> Iterator[Picture]:
    """Yields the pictures of a whole episode at even times, with its last picture repeated for ``hold`` seconds."""
    first, step = animation.span[0], speed * animation.per_second / fps
    count = 0
    while (now := first + count * step) <= _grown(animation, now):
        yield animation.draw(now)
        count += 1
    last = animation.span[1]
    for place in range(1, math.ceil(hold * fps) + 1):
        yield animation.draw(last, place * speed * animation.per_second / fps)


def record(animations: Iterator[EpisodeAnimation], path: Path, speed: float) -> None:
    """Writes episodes one after another as MP4 or GIF.

    Raises:
        ConfigError: the folder cannot be written to.
        ValueError: the file name has another ending.
    """
    fps = 15.0 if path.suffix.lower() == ".gif" else _FPS
    pictures = (picture for animation in animations for picture in frames(animation, speed, fps))
    first = next(pictures)
    height, width = first.shape[:2]
    with writing(f"record: {path}"):
        save_film(path, fps, (width, height), chain([first], pictures))


def _grown(animation: EpisodeAnimation, now: float) -> float:
    """Grows the animation until ``now`` or its end, and returns its last time."""
    while not animation.over and animation.span[1] < now:
        animation.grow()
    return animation.span[1]


# -- terminal ----------------------------------------------------------------------------------------------------


class TerminalScreen:
    """Shows pictures as coloured half blocks; a context that restores the terminal.

    Text that a world writes on its pictures becomes letters of the terminal, in its place if there is room, otherwise
    below. A legend and the caption follow, a line each. Colours have 24 bits if ``$COLORTERM`` says so, otherwise the
    nearest of 256 is shown.

    Args:
        stream: stream of the terminal.
        present: returns the animation that is being shown.
        environment: environment variables of the process.
    """

    is_open = True

    def __init__(
        self, stream: TextIO, present: Callable[[], EpisodeAnimation], environment: Mapping[str, str] = os.environ
    ) -> None:
        self._stream, self._present = stream, present
        self._deep = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
        self._size = (0, 0)
        self._stack, self._texts = ExitStack(), list[WrittenText]()

    @property
    def held(self) -> Collection[str]:
        """Returns nothing, because a terminal does not report which keys are held."""
        return ()

    def __enter__(self) -> TerminalScreen:
        self._texts = self._stack.enter_context(texts_apart())
        self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._write(_PLAIN + _LEAVE)

    def show(self, picture: Picture) -> None:
        """Shows a picture as large as fits, and the text written since the last one."""
        columns, lines = shutil.get_terminal_size()
        cleared = "" if self._size == (columns, lines) else "\x1b[2J"
        self._size = columns, lines
        line, width = "", 0
        for sign, words, colour in self._present().legend:
            width += len(words) + 5
            if width < columns:
                line += f"\x1b[{_colour(38, _code(colour, self._deep))}m{sign}{_PLAIN} {words}   "
        legend = [line] if line else []
        room = max(lines - 1 - len(legend), 1)
        rows, left = blocks(picture, columns, room, self._deep, self._texts)
        self._texts.clear()
        more = textwrap.wrap("   ".join(left), columns - 1)[: room - len(rows)]
        body = "".join(f"{row}{_PLAIN}{_CLEAR}\r\n" for row in (*rows, *more, *legend))
        self._write(f"{cleared}{_HOME}{body}{self._present().caption[: columns - 1]}{_CLEAR}")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def blocks(
    picture: Picture, columns: int, lines: int, deep: bool = True, texts: Sequence[WrittenText] = ()
) -> tuple[list[str], list[str]]:
    """Converts a picture ``[H, W, 3]`` to lines of coloured text, with its proportions, at most of the given size.

    Args:
        deep: True for 24 bits of colour, False for 256 colours.
        texts: texts to be put over it.

    Returns the lines, and the texts for which there was no room.
    """
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    size = max(int(width * scale), 1), max(2 * int(height * scale / 2), 2)
    pixels = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    codes = pixels.astype(np.int64) if deep else _indexed(pixels)
    letters, left = _placed(texts, scale, size[0], size[1] // 2)
    rows = zip(codes[0::2].tolist(), codes[1::2].tolist())
    return [_line(*row, letters.get(index, {}), deep) for index, row in enumerate(rows)], left


def _placed(
    texts: Sequence[WrittenText], scale: float, columns: int, rows: int
) -> tuple[dict[int, dict[int, tuple[str, Colour]]], list[str]]:
    """Returns letters by row and column, each text at most a row from its place, and the texts that do not fit."""
    letters: dict[int, dict[int, tuple[str, Colour]]] = {}
    left = []
    for index, text in enumerate(texts):
        later = texts[index + 1 :]
        if any(text.text == other.text and abs(text.x - other.x) + abs(text.y - other.y) < 4 for other in later):
            continue  # the shadow of the text that follows
        start = min(max(round(text.x * scale - text.align * len(text.text)), 0), columns - len(text.text))
        taken, row = range(start - 1, start + len(text.text) + 1), int(text.y * scale / 2)
        near = [place for place in (row, row + 1, row - 1) if 0 <= place < rows]
        chosen = next((place for place in near if not letters.get(place, {}).keys() & taken), None)
        if start < 0 or chosen is None:
            left.append(text.text)
            continue
        letters.setdefault(chosen, {}).update((start + k, (sign, text.colour)) for k, sign in enumerate(text.text))
    return letters, left


def _line(top: list[list[int]], bottom: list[list[int]], letters: Mapping[int, tuple[str, Colour]], deep: bool) -> str:
    parts: list[str] = []
    ink: list[int] | None = None
    paper: list[int] | None = None
    for column, (upper, lower) in enumerate(zip(top, bottom)):
        sign, wanted_ink, wanted_paper = _HALF_BLOCK, upper, lower
        if column in letters:
            sign, colour = letters[column]
            wanted_ink = _code(colour, deep)
        changes: list[tuple[int, Any, Any]] = [(38, wanted_ink, ink), (48, wanted_paper, paper)]
        if wanted := [_colour(layer, code) for layer, code, before in changes if code != before]:
            parts.append(f"\x1b[{';'.join(wanted)}m")
        ink, paper = wanted_ink, wanted_paper
        parts.append(sign)
    return "".join(parts)


def _code(colour: Colour, deep: bool) -> list[int]:
    code: list[int] = (np.array(colour) if deep else _indexed(np.array(colour, np.uint8))).tolist()
    return code


def _colour(layer: int, code: list[int]) -> str:
    return f"{layer};{'2' if len(code) == 3 else '5'};{';'.join(map(str, code))}"


def _indexed(pixels: Picture) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Returns indices ``[H, W, 1]`` into the 6 x 6 x 6 cube of the 256 colours (levels 0, 95, 135, ... 255)."""
    levels = np.where(pixels < 48, 0, np.where(pixels < 115, 1, (pixels.astype(np.int64) - 35) // 40))
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = 16 + levels @ np.array([[36], [6], [1]])
    return found
