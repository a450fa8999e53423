"""Recordings of a world that draws itself only by ``render``: the pictures of its first world, one per step."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ..foundation.packages import place_in_users_code
from ..recording import EpisodeRecording
from ..world import hooks_of
from .canvas import Picture
from .films import Animation, in_grid


class Still(NamedTuple):
    """A compressed picture; an episode may have a thousand of them."""

    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, drawn: Any, before: Still | None = None) -> Still:
        """Compresses a picture, scaled to the size of the one before it, as all pictures of a film have one size.

        The first is cut to even numbers of rows and columns, which films require.
        """
        pixels = as_picture(drawn)
        if before is None:
            height, width = (length - length % 2 for length in pixels.shape[:2])
            pixels = np.ascontiguousarray(pixels[:height, :width])
        elif pixels.shape != before.shape:
            height, width, _ = before.shape
            pixels = np.asarray(Image.fromarray(pixels).resize((width, height)))
        return cls(pixels.shape, zlib.compress(pixels.tobytes(), 1))

    def unpacked(self) -> Picture:
        """Returns the picture, uint8 ``[H, W, 3]``."""
        return np.frombuffer(zlib.decompress(self.content), np.uint8).reshape(self.shape)


def as_picture(drawn: Any) -> Picture:
    """Converts what an environment's ``render`` returned to uint8 ``[H, W, 3]``.

    A grey picture, ``[H, W]`` or ``[H, W, 1]``, becomes one of three equal colours, and transparency is left out.
    Floating-point numbers are taken for fractions of full brightness if none is above 1, otherwise for 0 to 255.

    Raises:
        ValueError: it is not a picture.
    """
    pixels = np.asarray(drawn)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4) or pixels.dtype.kind not in "buif" or not pixels.size:
        kind = f"{pixels.dtype} {list(pixels.shape)}" if pixels.size > 1 else type(drawn).__name__
        raise ValueError(f"render() returns {kind} in place of a picture uint8 [height, width, 3]")
    if pixels.dtype != np.uint8:
        fractions = pixels.dtype.kind in "bf" and not np.any(pixels > 1)
        pixels = np.clip(np.nan_to_num(pixels * (255.0 if fractions else 1.0)), 0, 255).astype(np.uint8)
    return np.broadcast_to(pixels[..., :3], (*pixels.shape[:2], 3)).copy()


@dataclass(eq=False)
class RenderedEpisode(EpisodeRecording, Animation):
    """An episode as the pictures that its world drew, which are also its animation, with time counted in steps.

    Args:
        stills: at least one picture.
        per_second: steps per second at the usual speed of watching.
    """

    stills: list[Still]
    per_second: float

    def __post_init__(self) -> None:
        height, width = self.stills[0].shape[:2]
        self.size = (width, height)

    @property
    def span(self) -> tuple[float, float]:
        return 0.0, float(len(self.stills) - 1)

    def draw(self, time: float, pause: float = 0.0, /) -> Picture:
        return self.stills[int(time)].unpacked()

    def animation(self) -> Animation:
        return self

    def overview(self) -> Picture:
        """Returns up to six pictures, evenly spaced from the first to the last, in rows of three."""
        chosen = np.unique(np.linspace(0, len(self.stills) - 1, 6).round().astype(int))
        return in_grid((self.stills[index].unpacked() for index in chosen), 3)


class RenderedRecorder:
    """Collects the pictures of an env's first world, with the interface of :class:`EpisodeRecorder`.

    Its user must not add pictures after the episode's end, which pictures do not show. If the env fails to draw one,
    there is a warning, and the recording ends with the last picture before it.
    """

    def __init__(self, env: Any) -> None:
        self._env, self._stills, self._failed = env, list[Still](), False

    def add(self) -> None:
        """Adds a picture of the current state."""
        if self._failed:
            return
        try:
            self._stills.append(Still.of(self._env.render(), self._stills[0] if self._stills else None))
        except Exception as error:
            self._failed = True
            warnings.warn(f"the film of this world ends at step {len(self._stills)}: {_line(error)}", stacklevel=2)

    def recordings(self) -> list[RenderedEpisode]:
        """Returns the episode so far."""
        return [RenderedEpisode(list(self._stills), hooks_of(self._env).pictures_per_second)]


def rendered(env: Any) -> RenderedRecorder | None:
    """Returns a recorder of an env that draws pictures; None for other envs, with a warning if drawing fails."""
    try:
        as_picture(env.render())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    except Exception as error:  # of a simulator: what it needs is missing, or there is no display
        warnings.warn(f"no film of this world: {_line(error)}", stacklevel=2)
        return None
    return RenderedRecorder(env)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}{place_in_users_code(error)}".split())
