"""How long a run has taken, and when something is due."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock and CPU time of a run, which may have begun in an earlier process.

    Attributes:
        total: seconds of the whole run as they were last read: on the wall, and of all its CPU threads.
    """

    def __init__(self) -> None:
        self.total = {"time/seconds": 0.0, "time/cpu_seconds": 0.0}
        self.start(0)

    def start(self, frames: int) -> None:
        """This process begins, or goes on, after so many frames."""
        self._before, self._frames = self.total, frames
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def rate(self, frames: int) -> float:
        """Frames per second of this process."""
        return (frames - self._frames) / max(time.monotonic() - self._wall, 1e-9)

    def read(self) -> dict[str, float]:
        """Reads :attr:`total`."""
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        before = self._before
        self.total = {
            "time/seconds": before["time/seconds"] + max(wall, 1e-9),
            "time/cpu_seconds": before["time/cpu_seconds"] + cpu,
        }
        return self.total


class Due:
    """Whether something that happens every so many frames falls between two counts; always at the end of the run."""

    def __init__(self, previous: int, now: int, total: int) -> None:
        self._previous, self._now, self._last = previous, now, now >= total

    def __call__(self, every: float) -> bool:
        return self._last or self._now // every > self._previous // every
