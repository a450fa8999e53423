"""Recordings of a world that shows itself by ``render`` alone: the pictures of its first world, one a step."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np

from ..recording import EpisodeRecording
from ..world import hooks_of
from .canvas import Picture
from .films import Animation


class Still(NamedTuple):
    """A picture, packed: a thousand of them are an episode."""

    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, picture: Any) -> Still:
        """Packs uint8 ``[H, W, 3 or 4]``, without the last row or column of an odd number, which no film takes."""
        pixels = np.asarray(picture)[..., :3]
        height, width = (length - length % 2 for length in pixels.shape[:2])
        pixels = np.ascontiguousarray(pixels[:height, :width])
        return cls(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def unpacked(self) -> Picture:
        """The picture, uint8 ``[H, W, 3]``."""
        return np.frombuffer(zlib.decompress(self.content), np.uint8).reshape(self.shape)


class RenderedAnimation(Animation):
    """The pictures one after another; time is counted in steps.

    Args:
        stills: one at least.
        per_second: steps a second at which to watch them.
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
        """The last picture."""
        return self._stills[-1].unpacked()


class RenderedRecorder:
    """Collects the pictures of the first world of an env; used as an :class:`~envs.recording.EpisodeRecorder`.

    Whoever uses it adds nothing after the episode's end, which pictures do not show.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._stills = env, list[Still]()

    def add(self) -> None:
        """Adds a picture of the present state."""
        self._stills.append(Still.of(self._env.render()))

    def recordings(self) -> list[RenderedEpisode]:
        """The episode so far."""
        return [RenderedEpisode(list(self._stills), hooks_of(self._env).pictures_per_second)]


def rendered(env: Any) -> RenderedRecorder | None:
    """A recorder of an env that draws pictures, None for one that draws none."""
    try:
        env.render()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return RenderedRecorder(env)
