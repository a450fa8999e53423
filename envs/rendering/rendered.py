"""Recordings of a world that draws itself only by ``render``: the pictures of its first world, one per step."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from ..recording import EpisodeRecording
from ..world import hooks_of
from .canvas import Picture
from .films import Animation


class Still(NamedTuple):
    """A compressed picture; an episode may have a thousand of them."""

    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, picture: Any) -> Still:
        """Compresses uint8 ``[H, W, 3 or 4]``, cut to even numbers of rows and columns, which films require."""
        pixels = np.asarray(picture)[..., :3]
        height, width = (length - length % 2 for length in pixels.shape[:2])
        pixels = np.ascontiguousarray(pixels[:height, :width])
        return cls(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def unpacked(self) -> Picture:
        """Returns the picture, uint8 ``[H, W, 3]``."""
        return np.frombuffer(zlib.decompress(self.content), np.uint8).reshape(self.shape)


class RenderedAnimation(Animation):
    """The pictures in order, with time counted in steps.

    Args:
        stills: at least one picture.
        per_second: steps per second at the usual speed of watching.
    """

    def __init__(self, stills: list[Still], per_second: float) -> None:
        self._stills, self.per_second = stills, per_second
        height, width = stills[0].shape[:2]
        self.size = (width, height)

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, float(len(self._stills) - 1)

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self._stills[int(time)].unpacked()


class RenderedEpisode(EpisodeRecording):
    """An episode as the pictures that its world drew; arguments as of :class:`RenderedAnimation`."""

    def __init__(self, stills: list[Still], per_second: float) -> None:
        self._stills, self._per_second = stills, per_second

    def animation(self) -> RenderedAnimation:
        return RenderedAnimation(self._stills, self._per_second)

    def overview(self) -> Picture:
        """Returns the last picture."""
        return self._stills[-1].unpacked()


class RenderedRecorder:
    """Collects the pictures of an env's first world, with the interface of :class:`EpisodeRecorder`.

    Its user must not add pictures after the episode's end, which pictures do not show.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._stills = env, list[Still]()

    def add(self) -> None:
        """Adds a picture of the current state."""
        self._stills.append(Still.of(self._env.render()))

    def recordings(self) -> list[RenderedEpisode]:
        """Returns the episode so far."""
        return [RenderedEpisode(list(self._stills), hooks_of(self._env).pictures_per_second)]


def rendered(env: Any) -> RenderedRecorder | None:
    """Returns a recorder of an env that draws pictures; None for other envs."""
    try:
        env.render()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return RenderedRecorder(env)
