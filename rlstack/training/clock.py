"""How long a run has taken, and when something is due."""

from __future__ import annotations

import time


class Clock:
    """Wall-clock and CPU time of a run, which may have begun in an earlier process."""

    def __init__(self, before: dict[str, float]) -> None:
        self._before = before
        self._wall, self._cpu = time.monotonic(), time.process_time()

    @property
    def elapsed(self) -> float:
        """Seconds in this process."""
        return max(time.monotonic() - self._wall, 1e-9)

    def read(self) -> dict[str, float]:
        """Seconds of the whole run: on the wall, and of all its CPU threads."""
        return {
            "time/seconds": self._before["time/seconds"] + self.elapsed,
            "time/cpu_seconds": self._before["time/cpu_seconds"] + time.process_time() - self._cpu,
        }


class Due:
    """Whether something that happens every so many frames falls between two counts; always at the end of the run."""

    def __init__(self, previous: int, now: int, total: int) -> None:
        self._previous, self._now, self._last = previous, now, now >= total

    def __call__(self, every: float) -> bool:
        return self._last or self._now // every > self._previous // every
