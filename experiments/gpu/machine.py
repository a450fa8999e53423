"""Describes the machine of a measurement, and prepares its processes."""

from __future__ import annotations

import torch
from torch.utils.collect_env import get_nvidia_driver_version, run

from rlstack.config import ConfigError
from rlstack.data.replay import usable_device
from rlstack.training.acceleration import keep_compiled_code, missing_compiler
from rlstack.training.environment import environment

from .runner import Found, NoDevice, Setting


def prepare(setting: Setting) -> None:
    """Prepares a process for rows: one thread, the card of the setting, and the folder of compiled code."""
    torch.set_num_threads(1)
    keep_compiled_code()
    if setting.device.startswith("cuda") and torch.cuda.is_available():
        torch.cuda.set_device(torch.empty(0, device=setting.device).device)


def machine(setting: Setting) -> Found:
    """Describes hardware and versions.

    Raises:
        NoDevice: the device cannot be used.
    """
    try:
        device = usable_device(setting.device, "device", "cpu, cuda, cuda:<k>")
    except ConfigError as error:
        raise NoDevice(str(error)) from None
    found = environment()
    told = {
        "gpu": None,
        "processor": found["processor"],
        "cores": found["cores"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        **found["versions"],
        "commit": found["commit"],
        "not there": missing_compiler(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told |= {
            "gpu": properties.name,
            "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
            "capability": f"{properties.major}.{properties.minor}",
            "driver": get_nvidia_driver_version(run),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    return Found(f"{told['gpu'] or told['processor']}, {told['cores']} cores, torch {told['torch']}", told)
