"""Rows with all possible outcomes, for the tests of ``python -m experiments.gpu``."""

from __future__ import annotations

import os
import time

from experiments.gpu.runner import Found, LeftOut, Mismatch, Setting

_seen: list[str] = []


def passes(setting: Setting, name: str = "") -> Found:
    _seen.append(name)  # another row in this process would see it
    return Found(f"{len(_seen)} in this process", {"process": os.getpid(), "quick": setting.quick})


def differs(setting: Setting) -> Found:
    raise Mismatch("0.3 beside 0.5 | allowed 0.1")


def lacks(setting: Setting) -> Found:
    raise LeftOut("there is no compiler")


def poisons(setting: Setting) -> Found:
    raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later")


def waits(setting: Setting, until: str) -> Found:
    while not os.path.exists(until):
        time.sleep(0.01)
    time.sleep(0.5)
    return Found("")


def makes(setting: Setting, path: str) -> Found:
    with open(path, "w"):
        return Found("")


def hangs(setting: Setting) -> Found:
    time.sleep(600)
    raise AssertionError


def dies(setting: Setting) -> Found:
    print("last words", flush=True)
    os._exit(7)
