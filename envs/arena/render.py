"""Pictures of Arena: single worlds, frames of recorded episodes, animations. y points down, as in the game."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..drawing.canvas import Picture
from ..drawing.films import save_film, save_grid, save_picture
from .hud import STEPS_PER_SECOND
from .recording import Recording, snapshot
from .rules import Rules
from .scene import Scene
from .state import ArenaState

SIZE = (800, 640)
"""Width and height of pictures, pixels: half the arena, and whole macroblocks for the video encoder."""

_TILE = (400, 320)
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
    save_picture(path, draw_frame(recording, t, size))


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
    scene, advance = Scene(recording.rules, size), speed * STEPS_PER_SECOND / fps
    moving, still = frame_indices(recording, advance), round(_HOLD_SECONDS * fps)

    def pictures() -> Iterator[Picture]:
        for t in moving:
            yield scene.draw(recording.frames[t], title=recording.title)
        for frame in range(1, still + 1):
            yield scene.draw(recording.frames[-1], round(frame * advance), recording.title)

    save_film(path, fps, size, pictures(), len(moving) + still)


def save_trajectories(recordings: Sequence[Recording], path: str | Path, columns: int = 6) -> None:
    """Writes a grid of last frames as PNG, each with the way of the ship, which brightens with time.

    Args:
        recordings: at least one episode.
        path: file to write.
        columns: pictures per row, at most.

    Raises:
        ValueError: there is no recording.
    """

    def picture(recording: Recording) -> Picture:
        scene = Scene(recording.rules, _TILE)
        tile = scene.draw(recording.frames[-1], title=recording.title)
        scene.draw_way(tile, [frame.position for frame in recording.frames])
        return tile

    save_grid(path, map(picture, recordings), columns)


def frame_indices(recording: Recording, advance: float) -> list[int]:
    """The frames to show at even times, ``advance`` steps apart: from the first to the last."""
    steps = np.array([frame.step for frame in recording.frames])
    wanted = np.arange(steps[0], steps[-1] + advance, advance)
    return [int(t) for t in np.searchsorted(steps, wanted).clip(max=len(steps) - 1)]
