"""Plays a reel: in a window that can stop and seek, in a terminal, or into a film."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from envs.drawing.canvas import Picture
from envs.drawing.films import save_film
from envs.drawing.window import Window
from rlstack.config import ConfigError

from .reels import Reel

_FPS = 30.0
_LONGEST = 0.2  # s that are passed at once where drawing is slow
_SEEK_SECONDS = 0.2  # per picture while an arrow is held
HOLD_SECONDS = 1.5
"""How long an end stands still."""


def show(
    reel: Reel,
    screen: Window,
    speed: float = 1.0,
    hold: float = HOLD_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows a reel until its end has stood still for ``hold`` seconds, or the screen is closed.

    The space bar stops and goes on, the arrows go back and forth, Enter begins anew. Where drawing is too slow,
    pictures are left out; where the world is, its time goes by more slowly.
    """
    now, runs, pressed, before = reel.span[0], True, False, clock()
    passed = 0.0
    while screen.is_open:
        held = screen.held
        if "space" in held and not pressed:
            runs = not runs
        pressed = "space" in held
        seconds = speed * passed * runs + _SEEK_SECONDS * (("Right" in held) - ("Left" in held))
        first = reel.span[0]
        now = first if "Return" in held else max(now + seconds * reel.per_second, first)
        last = _grown(reel, now)
        if now - last > hold * reel.per_second:
            return
        screen.show(reel.draw(max(min(now, last), reel.span[0]), max(now - last, 0.0)))
        sleep(max(before + 1 / _FPS - clock(), 0.0))
        after = clock()
        passed, before = min(max(after - before, 1 / _FPS), _LONGEST), after


def frames(reel: Reel, speed: float, fps: float = _FPS, hold: float = HOLD_SECONDS) -> Iterator[Picture]:
    """The pictures of a whole episode at even times, its end standing still for a moment."""
    first, step = reel.span[0], speed * reel.per_second / fps
    count = 0
    while (now := first + count * step) <= _grown(reel, now):
        yield reel.draw(now)
        count += 1
    last = reel.span[1]
    for place in range(1, math.ceil(hold * fps) + 1):
        yield reel.draw(last, place * speed * reel.per_second / fps)


def record(reels: Iterator[Reel], path: Path, speed: float) -> None:
    """Writes episodes one after another as MP4 or GIF.

    Raises:
        ConfigError: a folder that cannot be written to.
        ValueError: a name with another ending.
    """
    fps = 15.0 if path.suffix.lower() == ".gif" else _FPS
    pictures = (picture for reel in reels for picture in frames(reel, speed, fps))
    first = next(pictures)
    height, width = first.shape[:2]

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_film(path, fps, (width, height), chain([first], pictures))
    except OSError as error:
        raise ConfigError(f"record: {path} cannot be written ({error.strerror or error})") from None


def _grown(reel: Reel, now: float) -> float:
    """The last time of the reel, once it has come to ``now`` or to its end."""
    while not reel.over and reel.span[1] < now:
        reel.grow()
    return reel.span[1]
