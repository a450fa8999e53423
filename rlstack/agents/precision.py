"""The precision in which networks compute: the option ``agent.precision``.

``auto`` means bfloat16 if the configuration says that bfloat16 pays (``agent.bfloat16_pays``, which recipes set once
that has been measured), the device has units for it, and the agent has no recurrent core; otherwise it means float32.
An LSTM won fewer games of Echelon in bfloat16 (58 % against 74 %, five seeds each, p = .07, see
``experiments/echelon/memory.py``).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

SLOWDOWN = 16
"""Time in bfloat16 over that in float32 on a CPU without units for it (``experiment=arena/style1``, AVX2, 1 thread)."""


def has_bfloat16(device: torch.device) -> bool:
    """Returns True if a device has units that multiply bfloat16 matrices without converting them."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_has_bfloat16()


def _cpu_has_bfloat16() -> bool:
    """Returns True if a CPU has units for bfloat16.

    oneDNN accepts plain AVX-512 on x86, although it converts there, so AVX512_BF16 is asked for, which CPUs with AMX
    have, too. Torch has no public name for what oneDNN supports; if a version lacks one of these names, the answer is
    unknown, and float32 is the safe choice.
    """
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        return platform.machine().lower() not in ("x86_64", "amd64") or torch.cpu.get_capabilities()["avx512_bf16"]
    except AttributeError:
        return False


def decided(agent: Mapping[str, Any], device: torch.device) -> str | None:
    """Returns the precision of an ``agent`` group on a device, with ``auto`` resolved; None without such an option."""
    asked = agent.get("precision")
    if asked != "auto":
        return asked
    pays = agent.get("bfloat16_pays") and agent.get("recurrent") is None
    return "bfloat16" if pays and has_bfloat16(device) else "float32"


def explained(agent: Mapping[str, Any], device: torch.device, resumed: bool = False) -> str | None:
    """Returns the same with the reason, in one line.

    Args:
        agent: the group as it was given, with ``auto`` not yet resolved.
        device: device of the networks.
        resumed: whether the group is that of a resumed run, perhaps on a different machine.
    """
    asked, taken = agent.get("precision"), decided(agent, device)
    here = "this GPU" if device.type == "cuda" else "this CPU" if device.type == "cpu" else f"the device {device}"
    if asked == "auto":
        if not agent.get("bfloat16_pays"):
            return f"{taken} (auto: agent.bfloat16_pays is false)"
        if agent.get("recurrent") is not None:
            return f"{taken} (auto: recurrent cores stay in float32)"
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
