"""Rows with all possible outcomes, for the tests of ``python -m experiments.gpu``."""

from __future__ import annotations

import os
import time
from typing import Any

from experiments.gpu.runner import Found, LeftOut, Mismatch, NoDevice, Setting

_seen: list[str] = []


def machine(setting: Setting) -> dict[str, Any]:
    if setting.device == "nowhere":
        raise NoDevice("device: 'nowhere' cannot be used")
    return {"gpu": "none", "process": os.getpid()}


def passes(setting: Setting, name: str = "") -> Found:
    _seen.append(name)
    return Found(f"{len(_seen)} in this process", {"process": os.getpid(), "quick": setting.quick})


def differs(setting: Setting) -> Found:
    raise Mismatch("0.3 beside 0.5 | allowed 0.1")


def lacks(setting: Setting) -> Found:
    raise LeftOut("there is no compiler")


def poisons(setting: Setting) -> Found:
    raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")


def hangs(setting: Setting) -> Found:
    time.sleep(600)
    raise AssertionError


def dies(setting: Setting) -> Found:
    print("last words", flush=True)
    os._exit(7)
