"""Plays animations of episodes: in a window that can pause and seek, in a terminal, or into a film."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

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
    below. A legend and the caption follow, a line each.

    Args:
        stream: stream of the terminal.
        present: returns the animation that is being shown.
    """

    is_open = True

    def __init__(self, stream: TextIO, present: Callable[[], EpisodeAnimation]) -> None:
        self._present = present
        self._console = Console(file=stream, force_terminal=True)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._stack, self._texts = ExitStack(), list[WrittenText]()

    @property
    def held(self) -> Collection[str]:
        """Returns nothing, because a terminal does not report which keys are held."""
        return ()

    def __enter__(self) -> TerminalScreen:
        self._texts = self._stack.enter_context(texts_apart())
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, picture: Picture) -> None:
        """Shows a picture as large as fits, and the text written since the last one."""
        columns, lines = self._console.size
        legend = Text(no_wrap=True, overflow="crop")
        for sign, words, colour in self._present().legend:
            if len(legend) + len(words) + 5 < columns:
                legend.append(sign, Style(color=Color.from_rgb(*colour))).append(f" {words}   ")
        last = [legend] if legend else []
        last.append(Text(self._present().caption, no_wrap=True, overflow="crop"))
        drawn, left = blocks(picture, columns, max(lines - len(last), 1), self._texts)
        self._texts.clear()
        self._live.update(Group(drawn, *([Text("   ".join(left))] if left else []), *last), refresh=True)


def blocks(picture: Picture, columns: int, lines: int, texts: Sequence[WrittenText] = ()) -> tuple[Segments, list[str]]:
    """Converts a picture ``[H, W, 3]`` to lines of coloured text, with its proportions, at most of the given size.

    Args:
        texts: texts to be put over it.

    Returns the lines, and the texts for which there was no room.
    """
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * lines / height)
    size = max(int(width * scale), 1), max(2 * int(height * scale / 2), 2)
    pixels = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX)).tolist()
    letters, left = _placed(texts, scale, size[0], size[1] // 2)
    drawn = []
    for row, (top, bottom) in enumerate(zip(pixels[0::2], pixels[1::2])):
        for column, (upper, lower) in enumerate(zip(top, bottom)):
            sign, ink = letters.get(row, {}).get(column, (_HALF_BLOCK, upper))
            drawn.append(Segment(sign, _style(tuple(ink), tuple(lower))))
        drawn.append(Segment.line())
    return Segments(Segment.simplify(drawn)), left


@lru_cache(maxsize=2**16)
def _style(ink: Colour, paper: Colour) -> Style:
    return Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*paper))


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
