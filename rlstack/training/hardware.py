"""What a run takes of the machine: memory of the process, and how busy and full the GPU is.

On a CPU everything is read where a log line is written, which takes microseconds. How busy a GPU is has to be asked
again and again: a thread does so twice a second, through NVML (package ``nvidia-ml-py``, extra ``gpu``) where it is
installed.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .hooks import Hook

if TYPE_CHECKING:
    from .loop import Training

_MEGABYTE = 1e6
_EVERY = 0.5  # s; NVML itself averages over a sixth of a second to a second


class Hardware(Hook):
    """Readings for log lines; a GPU is watched from the start of a run to its end.

    Args:
        device: what the run computes on.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._gpu = GpuWatch(torch.device(device))
        self._frames, self._since = 0, time.monotonic()

    def on_start(self, training: Training) -> None:
        self._frames, self._since = training.frames, time.monotonic()
        self._gpu.start()

    def on_log(self, training: Training) -> Mapping[str, float]:
        return self.read(training.frames, training.worker_failures)

    def close(self) -> None:
        self._gpu.stop()

    def read(self, frames: int, worker_failures: int = 0) -> dict[str, float]:
        """Metrics ``system/...`` since the last reading.

        ``frames_per_second``, evaluations included; ``memory_mb`` of the process (10^6 bytes); of a GPU the mean, least
        and most ``gpu_percent`` of time in use, and ``gpu_memory_mb``; once there are any, ``worker_restarts``:
        how many processes with worlds have been replaced.
        """
        now = time.monotonic()
        rate = (frames - self._frames) / max(now - self._since, 1e-9)
        self._frames, self._since = frames, now
        metrics = {"system/frames_per_second": rate, "system/memory_mb": resident_bytes() / _MEGABYTE}
        if worker_failures:
            metrics["system/worker_restarts"] = float(worker_failures)
        return metrics | {f"system/{name}": value for name, value in self._gpu.read().items()}


class GpuWatch:
    """Utilisation and memory of a GPU; of a CPU, nothing."""

    def __init__(self, device: torch.device, every: float = _EVERY) -> None:
        self._device, self._every = device, every
        self._nvml = _Nvml.of(device)
        self._busy: list[float] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sees_utilisation(self) -> bool:
        """NVML answers."""
        return self._nvml is not None

    def start(self) -> None:
        """Begins to ask, in a thread of its own."""
        if self._nvml is not None and self._thread is None:
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
        """Since the last reading: ``gpu_percent``, ``gpu_percent_low`` and ``gpu_percent_high``, where NVML is there.

        ``gpu_memory_mb`` is of all programs with NVML, else of this one.
        """
        if self._device.type != "cuda":
            return {}
        busy, self._busy = self._busy, []
        if self._nvml is None:
            return {"gpu_memory_mb": torch.cuda.memory_reserved(self._device) / _MEGABYTE}
        if not busy:
            busy = [self._nvml.busy()]
        ends = {"gpu_percent": sum(busy) / len(busy), "gpu_percent_low": min(busy), "gpu_percent_high": max(busy)}
        return ends | {"gpu_memory_mb": self._nvml.memory() / _MEGABYTE}

    def _ask(self) -> None:
        assert self._nvml is not None
        while not self._over.wait(self._every):
            self._busy.append(self._nvml.busy())


class _Nvml:
    """One GPU, as NVIDIA's management library sees it."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def of(cls, device: torch.device) -> _Nvml | None:
        """None without the package, the driver, or a way to find the device."""
        if device.type != "cuda":
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
            # NVML counts all GPUs in an order of its own, whatever CUDA_VISIBLE_DEVICES shows of them.
            identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            found = cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(identity.encode()))
            found.busy(), found.memory()
        except Exception:  # NVML has errors of its own for every reason why it cannot tell
            return None
        return found

    def busy(self) -> float:
        """Per cent of the time in which a kernel ran, lately."""
        return float(self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def memory(self) -> float:
        """Bytes in use."""
        return float(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)


def resident_bytes() -> int:
    """Memory of this process; where the system does not tell, the most it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> float:
    """Memory that programs can still have; infinite where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), float("inf"))
