"""The size of a picture, and what is measured by it."""

from __future__ import annotations

from dataclasses import dataclass

_SMALLEST = (640, 360)


@dataclass(frozen=True)
class Page:
    """A picture's size, in pixels.

    Args:
        size: width and height of the picture, at least 640 by 360.

    Raises:
        ValueError: a size that is too small.
    """

    size: tuple[int, int]

    def __post_init__(self) -> None:
        """Refuses sizes at which nothing can be read."""
        if self.size[0] < _SMALLEST[0] or self.size[1] < _SMALLEST[1]:
            raise ValueError(f"size: {self.size[0]} x {self.size[1]} is too small, at least 640 x 360 are needed")

    @property
    def unit(self) -> float:
        """A pixel of a picture of 720 lines."""
        return min(self.size[1] / 720, self.size[0] / 1280)
