"""Checks and measures rlstack on a GPU in at most five minutes.

    python -m experiments.gpu [device=cuda] [quick=false] [order=checks] [only=<names>] [skip=<names>] [minutes=5]
                              [output=<file>]

Checks run side by side, one on each core: worlds and updates compared with the CPU's, resuming, waits for the GPU, CUDA
graphs and compiled code. Speeds follow (with ``order=speed`` those of eager kernels come first), one after the other;
what they will compile is compiled beside the checks. If a row fails, hangs or crashes, the others still run. A row
that no longer fits into the time is left out, and the command that runs it alone is told. ``only=sac,speed`` runs the
rows whose group (``correctness``, ``speed``) or name contains one of these parts, ``skip`` leaves such rows out.

After every row the results are written to ``experiments/gpu/<card>.json``, from which ``python -m experiments.tables``
makes the README's table, or to ``output``; those of ``quick=true`` and of a CPU to ``runs/gpu.json``. Rows of an
earlier run stay in the file if machine and commit are the same. ``gpu.log`` beside it has the details of failures. The
exit status is 1 if a check failed. With ``device=cpu quick=true`` the same code runs on a CPU in a minute or two.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlstack.config import ConfigError, Interval, build, to_plain

from .results import name_of, write
from .rows import MACHINE, all_rows
from .runner import NoDevice, Outcome, Row, Runner, Setting

HERE = Path(__file__).parent
_MARKS = {"passed": "ok    ", "failed": "FAILED", "left out": "--    ", "not run": "--    "}
_ENDING = 10.0  # s reserved for a process that hangs and for writing


@dataclass
class Options:
    """The options, explained above."""

    device: str = "cuda"
    quick: bool = False
    output: str | None = None
    only: str = ""
    skip: str = ""
    order: Literal["checks", "speed"] = "checks"
    minutes: Annotated[float, Interval(low=0.5)] = 5.0


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


def chosen(options: Options, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows that ``only`` and ``skip`` leave.

    Raises:
        ConfigError: they leave none, or a part of them is in no row's group or name.
    """
    found = list(rows)
    for option, keeps in (("only", True), ("skip", False)):
        parts = [part.strip() for part in getattr(options, option).split(",") if part.strip()]
        named = {part: [row for row in rows if part in f"{row.group} {row.name}"] for part in parts}
        for part in parts:
            if not named[part]:
                raise ConfigError(f"{option}: no row's name contains {part!r}")
        if parts:
            found = [row for row in found if any(row in these for these in named.values()) == keeps]
    if not found:
        raise ConfigError("only, skip: together they leave no row")
    return found


def planned(rows: Sequence[Row], order: str) -> list[tuple[list[Row], bool]]:
    """Returns the rows in the order in which they run, in parts, and whether those of a part run side by side.

    What speed rows will compile is compiled beside the checks, in processes of its own, and kept.
    """
    checks, speeds = ([row for row in rows if row.group == group] for group in ("correctness", "speed"))
    compiled = [row for row in speeds if row.arguments.get("compiles")]
    more: dict[str, Any] = {"group": "compiling", "limit": 150.0, "seconds": 15.0}
    ahead = [
        replace(row, name=f"compiling for {row.name}", arguments={**row.arguments, "once": True}, **more)
        for row in compiled
        if row.seconds < more["limit"]
    ]
    beside = [*ahead, *checks] if checks else []
    if order == "checks":
        parts = [(beside, True), (speeds, False)]
    else:
        parts = [([row for row in speeds if row not in compiled], False), (beside, True), (compiled, False)]
    return [(part, side_by_side) for part, side_by_side in parts if part]


def run(given: Sequence[str], rows: Sequence[Row]) -> int:
    """Runs the selected rows, prints and writes their results; returns the exit status.

    Raises:
        ConfigError: an option is wrong.
        NoDevice: the device cannot be used.
    """
    options, began = parsed(given), time.monotonic()
    rows = chosen(options, rows)
    rehearsal = options.quick or not options.device.startswith("cuda")
    folder = Path(options.output).parent if options.output else Path("runs") if rehearsal else HERE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output: {folder} cannot be made ({error.strerror})") from None
    setting, limit = Setting(options.device, options.quick), 60 * options.minutes - _ENDING
    runner = Runner(setting, limit, folder / "gpu.log", "experiments.gpu.machine:prepare")
    (machine,) = runner.run([MACHINE])
    if machine.status != "passed":
        raise NoDevice(machine.line)
    print(machine.line, flush=True)
    path = Path(options.output or folder / ("gpu.json" if rehearsal else name_of(machine.figures["gpu"])))
    outcomes: dict[str, Outcome] = {}

    def keep(outcome: Outcome) -> None:  # after each row, so that a killed command leaves its results
        outcomes[outcome.name] = outcome
        about = {"command": " ".join(["python -m experiments.gpu", *given]), "quick": options.quick}
        about |= {"seconds": round(time.monotonic() - began, 1), "machine": machine.figures}
        write(path, about, [outcomes[row.name] for row in rows if row.name in outcomes])

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [(part, cores if side_by_side else 1) for part, side_by_side in planned(rows, options.order)]
    width = max(len(row.name) for part, _ in parts for row in part)
    for part, processes in parts:
        for outcome in runner.run(part, processes, keep):
            mark = _MARKS[outcome.status]
            print(f"{mark} {outcome.name:{width}} {outcome.seconds:6.1f} s  {outcome.line}", flush=True)
    counts = Counter(outcome.status for outcome in outcomes.values())
    told = ", ".join(f"{counts[status]} {status}" for status in _MARKS if counts[status])
    print(f"{told}, {time.monotonic() - began:.0f} s; written to {path} and gpu.log beside it")
    return int(any(outcome.fails for outcome in outcomes.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status.

    Args:
        arguments: ``key=value``, by default those of the command line.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if {"--help", "-h"} & set(given):
        print(__doc__)
        return 0
    try:
        return run(given, all_rows())
    except (ConfigError, NoDevice) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
