"""Describes the machine of a measurement: names, versions, and the utilisation of the GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from rlstack.config import ConfigError
from rlstack.data.devices import usable_device
from rlstack.training.acceleration import keep_compiled_code, missing_compiler
from rlstack.training.environment import environment
from rlstack.training.hardware import GpuWatch

from .runner import NoDevice, Setting


def machine(setting: Setting) -> dict[str, Any]:
    """Returns hardware and versions, and prepares this process for rows.

    Raises:
        NoDevice: the device cannot be used.
    """
    try:
        device = usable_device(setting.device, "device", "cpu, cuda, cuda:<k>")
    except ConfigError as error:
        raise NoDevice(str(error)) from None
    keep_compiled_code()
    found = environment()
    told = {
        "date": found["started"],
        "gpu": None,
        "processor": found["processor"],
        "cores": found["cores"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **found["versions"],
        "triton": _version_of("triton"),
        "commit": found["commit"],
        "not there": ", ".join(_absent(device)) or None,
    }
    if device.type != "cuda":
        return told
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    return told | {
        "gpu": properties.name,
        "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _asked("driver_version"),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _absent(device: torch.device) -> list[str]:
    """Returns the optional requirements of rows that are missing here."""
    found = [missing_compiler(device)]
    if device.type == "cuda" and importlib.util.find_spec("pynvml") is None:
        found.append("the package nvidia-ml-py is not installed")
    return [what for what in found if what]


def _version_of(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _asked(field: str) -> str | None:
    """Returns the answer of ``nvidia-smi``; None without it."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer.strip() else None


class Use:
    """A context after which :attr:`percent` is the GPU's utilisation in per cent; None if it cannot be measured.

    NVML, or ``nvidia-smi`` without its package, is queried five times a second.
    """

    def __init__(self, device: torch.device) -> None:
        self.percent: float | None = None
        self._watch = GpuWatch(device, every=0.1)
        self._asking: subprocess.Popen[str] | None = None
        self._tool = device.type == "cuda" and not self._watch.sees_utilisation and shutil.which("nvidia-smi")

    def __enter__(self) -> Self:
        if self._tool:
            command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "200"]
            self._asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            time.sleep(0.3)  # time that nvidia-smi takes to start
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        if self._asking is not None:
            self._asking.terminate()
            answers, _ = self._asking.communicate()
            self.percent = mean_percent(answers)
        elif self._watch.sees_utilisation:
            self.percent = self._watch.read()["gpu_percent"]


def mean_percent(answers: str) -> float | None:
    """Returns the mean of the numbers that ``nvidia-smi`` has printed, one per line; None without any."""
    numbers = [float(line) for line in answers.split() if line.strip().isdigit()]
    return sum(numbers) / len(numbers) if numbers else None
