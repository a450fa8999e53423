"""Pictures of Arena: single worlds, frames of recorded episodes, animations. y points down, as in the game."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np

from .canvas import Picture
from .hud import STEPS_PER_SECOND
from .recording import Recording, snapshot
from .rules import Rules
from .scene import Scene
from .state import ArenaState

SIZE = (800, 640)
"""Width and height of pictures, pixels: half the arena, and whole macroblocks for the video encoder."""

_TILE = (400, 320)
_VIDEO_SUFFIXES = (".gif", ".mp4")
_QUICK = ["-preset", "veryfast"]  # half the encoder's time, files as small
_LOOK_BACK = 80  # frames; no effect is seen for longer
_HOLD_SECONDS = 1.5


def draw_world(state: ArenaState, world: int, rules: Rules, size: tuple[int, int] = SIZE) -> Picture:
    """One world of a batch as it stands, uint8 ``[H, W, 3]``; without explosions, which need what was before.

    Args:
        state: see ``Arena.worlds``.
        rules: see ``Arena.rules``.
        size: width and height in pixels; the arena is 5:4, other shapes have dark edges.

    Raises:
        ValueError: there is no such world, or the size is too small.
    """
    return Scene(rules, size).draw(snapshot(state, world, rules))


def draw_frame(recording: Recording, t: int, size: tuple[int, int] = SIZE) -> Picture:
    """One frame of an episode, uint8 ``[H, W, 3]``.

    Args:
        t: frame index, negative from the end.

    Raises:
        IndexError: there is no such frame.
        ValueError: the size is too small.
    """
    t = range(len(recording.frames))[t]
    scene = Scene(recording.rules, size)
    for frame in recording.frames[max(0, t - _LOOK_BACK) : t]:
        scene.watch(frame)
    return scene.draw(recording.frames[t], title=recording.title)


def save_png(recording: Recording, path: str | Path, t: int = -1, size: tuple[int, int] = SIZE) -> None:
    """Writes frame ``t`` (default: the last) as a PNG; see :func:`draw_frame`."""
    imageio.imwrite(path, draw_frame(recording, t, size), format="png")


def save_animation(
    recording: Recording, path: str | Path, fps: float = 30.0, size: tuple[int, int] = SIZE, speed: float = 1.0
) -> None:
    """Writes the episode as GIF or MP4, by the suffix of ``path``; the end stands still for a moment.

    Args:
        fps: frames shown per second.
        size: width and height in pixels, even numbers.
        speed: 1 plays 60 steps per second, as the game is played.

    Raises:
        ValueError: another suffix, or an impossible size.
    """
    path = Path(path)
    if path.suffix.lower() not in _VIDEO_SUFFIXES:
        raise ValueError(f"cannot write {path.name}: the suffix must be one of {', '.join(_VIDEO_SUFFIXES)}")
    if size[0] % 2 or size[1] % 2:
        raise ValueError(f"size: {size[0]} x {size[1]} must be even numbers of pixels")
    gif = path.suffix.lower() == ".gif"
    mp4 = {"fps": fps, "codec": "libx264", "quality": 7, "macro_block_size": 2, "ffmpeg_params": _QUICK}
    options = {"duration": 1000 / fps, "loop": 0} if gif else mp4
    scene, advance = Scene(recording.rules, size), speed * STEPS_PER_SECOND / fps
    writer: Any = imageio.get_writer(path, mode="I", **options)
    with writer:
        for t in frame_indices(recording, advance):
            writer.append_data(scene.draw(recording.frames[t], title=recording.title))
        for frame in range(1, round(_HOLD_SECONDS * fps) + 1):
            writer.append_data(scene.draw(recording.frames[-1], round(frame * advance), recording.title))


def save_trajectories(recordings: Sequence[Recording], path: str | Path, columns: int = 6) -> None:
    """Writes a grid of last frames as PNG, each with the way of the ship, which brightens with time.

    Args:
        recordings: at least one episode.
        path: file to write.
        columns: pictures per row, at most.

    Raises:
        ValueError: there is no recording.
    """
    if not recordings:
        raise ValueError("save_trajectories needs at least one recording")
    columns = min(columns, len(recordings))
    rows = math.ceil(len(recordings) / columns)
    width, height = _TILE
    grid = np.zeros((rows * height, columns * width, 3), np.uint8)
    for place, recording in enumerate(recordings):
        top, left = place // columns * height, place % columns * width
        scene = Scene(recording.rules, _TILE)
        tile = scene.draw(recording.frames[-1], title=recording.title)
        scene.draw_way(tile, [frame.position for frame in recording.frames])
        grid[top : top + height, left : left + width] = tile
    imageio.imwrite(path, grid, format="png")


def frame_indices(recording: Recording, advance: float) -> list[int]:
    """The frames to show at even times, ``advance`` steps apart: from the first to the last."""
    steps = np.array([frame.step for frame in recording.frames])
    wanted = np.arange(steps[0], steps[-1] + advance, advance)
    return [int(t) for t in np.searchsorted(steps, wanted).clip(max=len(steps) - 1)]
