"""The precision that networks compute in: the option ``agent.precision``.

``auto`` is bfloat16 where two things hold: the configuration says that bfloat16 pays (``agent.bfloat16_pays``, which
recipes set once it has been measured), and the device has units for it. Everywhere else it is float32.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

SLOWDOWN = 16
"""Time in bfloat16 over time in float32 on a CPU without units for it: ``experiment=arena/style1``, AVX2, a thread."""


def has_bfloat16(device: torch.device) -> bool:
    """True if a device has units that multiply matrices of bfloat16, rather than converting them."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """For oneDNN, AVX-512 is enough on x86, though it converts there; AVX512_BF16 comes with AMX, too.

    What oneDNN takes, torch tells under no public name. If a torch lacks one of these, so that nobody knows, float32 is
    right.
    """
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        return platform.machine().lower() not in ("x86_64", "amd64") or torch.cpu.get_capabilities()["avx512_bf16"]
    except AttributeError:
        return False


def decided(agent: Mapping[str, Any], device: torch.device) -> str | None:
    """The precision of an ``agent`` group on a device, ``auto`` decided; None for agents that have no such option."""
    asked = agent.get("precision")
    if asked != "auto":
        return asked
    return "bfloat16" if agent.get("bfloat16_pays") and has_bfloat16(device) else "float32"


def explained(agent: Mapping[str, Any], device: torch.device, resumed: bool = False) -> str | None:
    """The same with the reason, in one line.

    Args:
        agent: the group as it was given, ``auto`` not decided yet.
        device: of the networks.
        resumed: the group is that of a run which goes on, perhaps on another machine than before.
    """
    asked, taken = agent.get("precision"), decided(agent, device)
    here = "this GPU" if device.type == "cuda" else "this CPU" if device.type == "cpu" else f"the device {device}"
    if asked == "auto":
        if not agent.get("bfloat16_pays"):
            return f"{taken} (auto: agent.bfloat16_pays is false)"
        has = "has" if taken == "bfloat16" else "has no"
        return f"{taken} (auto: bfloat16 pays with this recipe, and {here} {has} units for it)"
    remarks = []
    if resumed and agent.get("bfloat16_pays") and taken != "float16":
        other = decided({**agent, "precision": "auto"}, device)
        if other != taken:
            remarks.append(f"as the run began; on {here} auto is {other}, which agent.precision=auto changes to")
    if taken == "bfloat16" and not has_bfloat16(device):
        cost = f" and takes about {SLOWDOWN} times as long as in float32" if device.type == "cpu" else ""
        remarks.append(f"WARNING: {here} has no units for it{cost}")
    return f"{taken} ({'; '.join(remarks)})" if remarks else taken
