"""Measures RAM of the process, and utilisation and memory of the GPU.

RAM is read when a log line is written, which takes microseconds. The utilisation of a GPU must be sampled: a thread
does so twice a second through NVML (package ``nvidia-ml-py``, extra ``gpu``) if it is installed.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .hooks import Hook

if TYPE_CHECKING:
    from .loop import Training

_MEGABYTE = 1e6
_EVERY = 0.5  # s; NVML itself averages over a sixth of a second to a second


class Hardware(Hook):
    """Adds these measurements to log lines; a GPU is sampled from the start of a run to its end.

    Args:
        device: device of the learner.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._gpu = GpuWatch(torch.device(device))
        self._frames, self._since = 0, 0.0

    def on_start(self, training: Training) -> None:
        self._frames, self._since = training.frames, training.clock.learning()
        self._gpu.start()

    def on_log(self, training: Training) -> Mapping[str, float]:
        return self.read(training.frames, training.clock.learning(), training.worker_failures)

    def close(self) -> None:
        self._gpu.stop()

    def read(self, frames: int, now: float, worker_failures: int = 0) -> dict[str, float]:
        """Returns metrics ``system/...`` since the last call, at ``now`` seconds of collecting and learning.

        These are ``frames_per_second``, without the time of evaluations; ``memory_mb`` of the process (10^6 bytes);
        for a GPU the mean, least and greatest ``gpu_percent`` of time in use, and ``gpu_memory_mb``; and, after the
        first, ``worker_restarts``, the number of processes with worlds that have been replaced.
        """
        rate = (frames - self._frames) / max(now - self._since, 1e-9)
        self._frames, self._since = frames, now
        metrics = {"system/frames_per_second": rate, "system/memory_mb": resident_bytes() / _MEGABYTE}
        if worker_failures:
            metrics["system/worker_restarts"] = float(worker_failures)
        return metrics | {f"system/{name}": value for name, value in self._gpu.read().items()}


class GpuWatch:
    """Samples utilisation and memory of a GPU; does nothing for a CPU.

    Attributes:
        sees_utilisation: whether NVML answers.
    """

    def __init__(self, device: torch.device, every: float = _EVERY) -> None:
        self._device, self._every = device, every
        self._busy: list[float] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.sees_utilisation = device.type == "cuda"
        try:
            self.sees_utilisation = self.sees_utilisation and min(self._look()) >= 0
        except Exception:  # package, driver and device each fail with errors of their own
            self.sees_utilisation = False

    def start(self) -> None:
        """Begins to sample, in a thread."""
        if self.sees_utilisation and self._thread is None:
            self._over.clear()
            self._thread = threading.Thread(target=self._ask, name="gpu-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def read(self) -> dict[str, float]:
        """Returns ``gpu_percent``, ``gpu_percent_low`` and ``gpu_percent_high`` since the last call, if NVML answers.

        ``gpu_memory_mb`` counts all programs with NVML, otherwise this one.
        """
        if self._device.type != "cuda":
            return {}
        if not self.sees_utilisation:
            return {"gpu_memory_mb": torch.cuda.memory_reserved(self._device) / _MEGABYTE}
        (now, memory), busy = self._look(), self._busy
        self._busy, busy = [], busy or [now]
        ends = {"gpu_percent": sum(busy) / len(busy), "gpu_percent_low": min(busy), "gpu_percent_high": max(busy)}
        return ends | {"gpu_memory_mb": memory / _MEGABYTE}

    def _look(self) -> tuple[float, float]:
        """Returns the percentage of recent time in which a kernel ran, and the bytes in use."""
        return float(torch.cuda.utilization(self._device)), float(torch.cuda.device_memory_used(self._device))

    def _ask(self) -> None:
        while not self._over.wait(self._every):
            self._busy.append(self._look()[0])


def resident_bytes() -> int:
    """Returns the RAM of this process, or its maximum so far if the system does not report the current value."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    return pages * os.sysconf("SC_PAGE_SIZE")
