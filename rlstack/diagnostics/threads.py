"""The same work with more and fewer threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from .subject import Subject


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_threads(subject: Subject, rate: Callable[[float], float]) -> list[dict[str, Any]]:
    """Rates with 1, 2, 4, ... threads of torch, as many as there are cores.

    Nothing on a GPU, on one core, and where CPU time is measured, which threads do not shorten.

    Args:
        rate: measures for so many seconds.
    """
    if subject.device.type != "cpu" or subject.clock.kind == "cpu" or cores() == 1:
        return []
    counts = sorted({1, cores(), *(2**power for power in range(1, cores().bit_length()))} & set(range(cores() + 1)))
    before, points = torch.get_num_threads(), []
    try:
        for count in counts:
            torch.set_num_threads(count)
            points.append({"threads": count, "per_second": rate(subject.seconds / 3)})
    finally:
        torch.set_num_threads(before)
    return points
