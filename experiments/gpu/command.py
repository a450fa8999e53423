"""The options of ``python -m experiments.gpu`` and its run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlstack.config import ConfigError, Interval, build, to_plain

from .runner import Outcome, Row, Runner, Setting, fails, write

_MARKS = {"passed": "ok    ", "failed": "FAILED", "left out": "--    ", "not run": "--    "}
_ENDING = 10.0  # s reserved for a process that hangs and for writing


@dataclass
class Options:
    """Options of the command line; see :mod:`experiments.gpu.__main__`."""

    device: str = "cuda"
    quick: bool = False
    output: str | None = None
    only: str = ""
    minutes: Annotated[float, Interval(low=0.5)] = 9.0


def parsed(given: Sequence[str]) -> Options:
    """Parses options from ``key=value``.

    Raises:
        ConfigError: an option is unknown or has an impossible value.
    """
    for argument in given:
        if "=" not in argument:
            raise ConfigError(f"{argument}: options are given as key=value, such as device=cuda or quick=true")
    try:
        plain = to_plain(OmegaConf.from_dotlist(list(given)))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(str(error)) from None
    return build(Options, plain)


def run(given: Sequence[str], rows: Sequence[Row]) -> int:
    """Runs the selected rows, prints and writes their results; returns the exit status.

    Raises:
        ConfigError: an option is wrong.
        NoDevice: the device cannot be used.
    """
    options, began = parsed(given), time.monotonic()
    chosen = [row for row in rows if options.only in row.name]
    if not chosen:
        raise ConfigError(f"only: no row's name contains {options.only!r}")
    folder = Path(options.output or f"runs/gpu_{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {folder} cannot be made ({error.strerror})") from None
    setting = Setting(options.device, options.quick)
    log = folder / "log.txt"
    runner = Runner(setting, 60 * options.minutes - _ENDING, log, "experiments.gpu.machine:machine")
    outcomes: list[Outcome] = []
    width = max(len(row.name) for row in chosen)
    for outcome in runner.run(chosen):
        outcomes.append(outcome)
        mark = _MARKS[outcome.status]
        print(f"{mark} {outcome.name:{width}} {outcome.seconds:6.1f} s  {outcome.line}", flush=True)
        about: dict[str, Any] = {
            "command": " ".join(["python -m experiments.gpu", *given]),
            "device": options.device,
            "quick": options.quick,
            "seconds": round(time.monotonic() - began, 1),
            "machine": runner.machine,
        }
        write(folder, about, outcomes)  # after each row, so that a killed command leaves its results
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _MARKS}
    print(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    print(f"written to {folder}: gpu.json, gpu.md, log.txt")
    return 1 if fails(outcomes) else 0
